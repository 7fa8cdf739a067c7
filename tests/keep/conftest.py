"""An empty store, and a daemon with an account of what lies in its folder."""

from pathlib import Path

import pytest

from modelstore.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")
