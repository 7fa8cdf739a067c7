"""`python -m bench.step`: Python's part of a step, without a model.

A model that computes nothing sleeps for a forward's time, so that the text thread has its turn as
in a real runner. Printed is what the engine thread needs for itself beside that, and the CPU time
of the text thread, a step; a single sequence's text is the engine thread's own. Limits: 150 µs at
8 sequences and 400 µs at 32.
"""

import base64
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence as Seq
from pathlib import Path
from queue import SimpleQueue

import gguf

from localrun.core import RawPrompt, SamplingParams
from localrun.ipc.messages import Outbox, Submit, encode
from localrun.runner.engine.engine import Engine
from localrun.runner.fake import FakeModel
from localrun.runner.fake_script import SCRIPT_KEY
from localrun.runner.prompt.composer import Prepared
from localrun.runner.text import TextMessage, TextThread
from localrun.spec import FAKE_ARCHITECTURE, LoadSpec

_FORWARD_S = 0.002
_N_STEPS = 1000


class _Idle(FakeModel):
    """Books like the scripted model; every token is its first piece, and takes no looking up."""

    def greedy(self) -> list[int]:
        return [256] * len(self._outputs)

    def forward(
        self, tokens: Seq[int], positions: Seq[int], kv_ids: Seq[int], outputs: Seq[bool]
    ) -> int:
        time.sleep(_FORWARD_S)
        for kv_id in kv_ids:
            self.n_written[kv_id] = self.n_written.get(kv_id, 0) + 1
        self._outputs = [kv_id for kv_id, wanted in zip(kv_ids, outputs, strict=True) if wanted]
        return 0

    def n_positions(self, kv_id: int) -> int:
        return self.n_written[kv_id]

    n_written: dict[int, int]


def measure(n_sequences: int, layout: str) -> tuple[float, float]:
    """(µs of the engine beside its forwards, CPU µs of the text thread) a step."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "idle.gguf"
        writer = gguf.GGUFWriter(path, FAKE_ARCHITECTURE)
        piece = base64.b64encode(b"la ").decode()
        writer.add_string(SCRIPT_KEY, json.dumps({"pieces": [piece], "endless": True}))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        spec = LoadSpec(
            str(path),
            "digest",
            n_ctx=100_000,
            n_parallel=n_sequences,
            n_threads=1,
            kv_layout="unified" if layout == "unified" else "split",
        )
        model = _Idle(spec, lambda _fraction: None)
    model.n_written = {}
    inbox: SimpleQueue[TextMessage] = SimpleQueue()
    engine = Engine(model, spec, lambda output: text.tell(output))
    text_cpu_ns = 0

    def send(outbox: Outbox) -> None:
        nonlocal text_cpu_ns
        encode(outbox)
        if threading.current_thread() is reader:
            text_cpu_ns = time.thread_time_ns()

    text = TextThread(model.vocab, inbox, engine.inbox.put, send)
    reader = threading.Thread(target=text.run, daemon=True)
    reader.start()
    for number in range(n_sequences):
        prompt = chr(ord("A") + number) * 3  # no prefix in common: this model has no cells to fork
        submit = Submit(number, RawPrompt(prompt), SamplingParams(temperature=0), 100_000)
        inbox.put(Prepared(submit, list(prompt.encode())))
    while len(engine.running) < n_sequences:
        engine.step()
    host_us = []
    began_cpu_ns = text_cpu_ns
    for _ in range(_N_STEPS):
        before = engine.stats().values["step_host_seconds_total"]
        engine.step()
        host_us.append((engine.stats().values["step_host_seconds_total"] - before) * 1e6)
    return statistics.median(host_us), (text_cpu_ns - began_cpu_ns) / _N_STEPS / 1e3


def main() -> None:
    """Prints the table."""
    import sys

    sys.setswitchinterval(0.0002)  # as in a runner
    print("sequences  layout   engine µs  text µs")
    for n_sequences in (1, 8, 32):
        for layout in ("split", "unified"):
            engine_us, text_us = measure(n_sequences, layout)
            print(f"{n_sequences:9}  {layout:7} {engine_us:10.0f} {text_us:8.0f}")


if __name__ == "__main__":
    main()
