"""`python -m bench.structured`: what it costs that an answer has to match a JSON Schema.

One server at a time gets the same requests with a schema and without one, in turns; the ratio of
the times per output token is taken within a round. Beside it: what the vocabulary and ten schemas
cost before the first token.
"""

import asyncio
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from bench import rig, servers
from bench.prompts import prompts
from bench.rig import Watch, cpu_s, in_turn, model_path, running, say
from bench.servers import Localrun, Server, Setup
from cli.bench.answers import Answer, Endpoint, Outcome, Request
from cli.bench.load import closed_loop

_WINDOW = 2048
_N_TOKENS = 96
_GOAL = 1.1

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "role": {"enum": ["traveller", "merchant", "guide", "other"]},
        "email": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 3},
    },
    "required": ["name", "age", "role", "email", "words"],
    "additionalProperties": False,
}
# Longer than what is measured.
SCHEMA = {
    "type": "object",
    "properties": {
        "summary": {"type": "string", "minLength": 20, "maxLength": 120},
        "people": {"type": "array", "items": _PERSON, "minItems": 20},
    },
    "required": ["summary", "people"],
    "additionalProperties": False,
}


def main() -> None:
    """Measures and prints."""
    parser = rig.parser("structured", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--no-llama-server", action="store_true", help="without the peer")
    arguments = parser.parse_args()
    setup = Setup(model_path(arguments.model), arguments.threads, _WINDOW)
    contestants: list[Server] = [Localrun(setup)]
    if not arguments.no_llama_server:
        contestants.append(servers.llama_server(setup, servers.build_llama_server()))
    ratios: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for index in range(arguments.rounds):
        for server in in_turn(contestants, index):
            for n_streams in (1, 8):
                with running(server, n_streams) as endpoint:
                    for way, ratio in _ratios(endpoint, server, n_streams, index):
                        ratios[server.name, n_streams, way].append(ratio)
    print(f"{setup.model.name}, {setup.n_threads} threads, {arguments.rounds} rounds")
    for (name, n_streams, way), found in ratios.items():
        print(
            f"  {name}, {n_streams} streams, {way}: time per token with a schema "
            f"{statistics.median(found):.2f} of that without ({min(found):.2f} to {max(found):.2f})"
            + (f"; goal: at most {_GOAL}" if name == "localrun" else "")
        )
    _print_preparation(setup.model)


def _ratios(
    endpoint: Endpoint, server: Server, n_streams: int, index: int
) -> Sequence[tuple[str, float]]:
    form = {"type": "json_schema", "json_schema": {"name": "story", "schema": SCHEMA}}
    found = []
    for way, options in (("greedy", {"temperature": 0}), ("drawn", {"temperature": 1, "seed": 1})):
        tpots_s = {}
        kinds = [("free", {}), ("schema", {"response_format": form})]
        for kind, extra in kinds if index % 2 else kinds[::-1]:
            asked = replace(endpoint, extra={**endpoint.extra, **options, **extra})
            # Not the same twice: what is in a prefix cache delays no stream by its prompt.
            first, *texts = prompts(1 + max(4, n_streams), f"{index} {way} {kind}")
            _tpot_s(asked, [first], 1)
            watch, before_s = Watch(), sum(map(cpu_s, server.processes().values()))
            tpots_s[kind] = _tpot_s(asked, texts, n_streams)
            spent_s = sum(map(cpu_s, server.processes().values())) - before_s
            say(
                f"  {server.name}, {n_streams} streams, {way}, {kind}: "
                f"{tpots_s[kind] * 1e3:.1f} ms per token; others' CPU "
                f"{watch.foreign_share(spent_s):.1%}"
            )
        found.append((way, tpots_s["schema"] / tpots_s["free"]))
    return found


def _tpot_s(endpoint: Endpoint, texts: Sequence[str], n_clients: int) -> float:
    """The median over answers that are long enough: a base model may end free text at once."""
    outcomes: list[Outcome] = []
    requests = [Request(text, _N_TOKENS) for text in texts]
    asyncio.run(closed_loop(endpoint, requests, n_clients, outcomes.append))
    answers = [one for one in outcomes if isinstance(one, Answer) and one.n_tokens > _N_TOKENS / 2]
    return statistics.median([tpot_s for one in answers if (tpot_s := one.tpot_s) is not None])


# ---- before the first token


def _schemas() -> dict[str, Any]:
    """Ten that people write."""
    address = {"type": "object", "properties": {k: {"type": "string"} for k in ("street", "city")}}
    wide = {f"field_{i}": {"type": "string", "description": "text"} for i in range(60)}
    node = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
        },
        "required": ["name", "children"],
    }
    events = [
        {
            "type": "object",
            "properties": {
                "kind": {"const": kind},
                "at": {"type": "string", "format": "date-time"},
            },
            "required": ["kind", "at"],
        }
        for kind in ("opened", "closed", "moved")
    ]
    return {
        "any object": {"type": "object"},
        "a label": {"enum": ["positive", "negative", "neutral"]},
        "a person": _PERSON,
        "people": SCHEMA,
        "an address or none": {"anyOf": [address, {"type": "null"}]},
        "events": {"type": "array", "items": {"oneOf": events}, "maxItems": 50},
        "a tree": {"$defs": {"node": node}, "$ref": "#/$defs/node"},
        "60 keys": {"type": "object", "properties": wide, "required": list(wide)},
        "60 optional keys": {"type": "object", "properties": wide},
        "500 words": {"type": "array", "items": {"enum": [f"word{i}" for i in range(500)]}},
    }


def _print_preparation(model: Path) -> None:
    from localrun.runner.ggml.binding import lib
    from localrun.runner.ggml.vocab import LlamaVocab

    params = lib.llama_model_default_params()
    params.vocab_only = True
    vocab = LlamaVocab(lib.llama_model_load_from_file(str(model).encode(), params))
    me = psutil.Process()
    began = time.perf_counter()
    from localrun.runner.structured.compiler import Compiler
    from localrun.runner.structured.constraint import Constraint, json_grammar

    import_s, before = time.perf_counter() - began, me.memory_info().rss
    began = time.perf_counter()
    compiler = Compiler(vocab)
    vocabulary_s, n_bytes = time.perf_counter() - began, me.memory_info().rss - before
    print(
        f"  import {import_s * 1e3:.0f} ms; vocabulary of {vocab.n_tokens} tokens "
        f"{vocabulary_s * 1e3:.0f} ms, {n_bytes / 1e6:.0f} MB"
    )
    for name, schema in _schemas().items():
        text, times = json.dumps(schema), []
        for _ in range(5):
            began = time.perf_counter()
            compiler.matcher(Constraint(json_grammar(text)))
            times.append(time.perf_counter() - began)
        print(f"  {name}: {statistics.median(times) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
