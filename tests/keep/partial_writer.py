"""Leaves partial downloads in a store as a transfer does that was interrupted."""

import json
import os
import time
from pathlib import Path

from modelstore.digest import Digest


def leave_partial(
    blobs: Path, weights: bytes, model: str, *, n_here: int = 2, age_s: float = 0.0
) -> Path:
    """The data file: `n_here` of the bytes of `weights`, with a journal for `model`."""
    blobs.mkdir(parents=True, exist_ok=True)
    data = blobs / f"{Digest.of(weights).file_name}-partial"
    journal = data.with_name(data.name + ".json")
    data.write_bytes(weights[:n_here])
    journal.write_text(
        json.dumps({"total": len(weights), "model": model, "completed": [[0, n_here]]})
    )
    past = time.time() - age_s
    for path in (data, journal):
        os.utime(path, (past, past))
    return data
