"""The routes about models, on a real store in a temporary folder."""

import asyncio
import json
import math
from datetime import datetime

import pytest
from http_fakes import Exchange, ScriptedService, app_of
from http_store import ask

from localrun.errors import BadRequest
from localrun.memory import Need
from localrun.spec import Resident, RunnerInfo, RunnerStats
from localrun.wire.anthropic_models import encode_models
from modelstore.store import Store


def test_an_empty_store_lists_nothing(tmp_path):
    assert ask(tmp_path / "new", "GET", "/api/tags") == (200, {"models": []})
    assert ask(tmp_path / "new", "GET", "/v1/models") == (200, {"object": "list", "data": []})


def test_tags(root):
    status, reply = ask(root, "GET", "/api/tags")
    (row,) = reply["models"]
    assert status == 200
    assert (row["name"], row["model"]) == ("tiny:latest", "tiny:latest")
    assert len(row["digest"]) == 64
    assert row["size"] > 0
    assert row["details"]["family"] == "llama"
    assert row["details"]["context_length"] == 2048
    assert row["capabilities"] == ["completion", "tools"]


def test_show(root):
    status, reply = ask(root, "POST", "/api/show", {"model": "TINY"})
    assert status == 200
    assert reply["model_info"]["general.architecture"] == "llama"
    assert reply["model_info"]["tokenizer.ggml.tokens"] is None
    assert reply["template"] == "{{ .Prompt }} {{ .Tools }}"
    assert reply["capabilities"] == ["completion", "tools"]
    assert (reply["system"], reply["license"]) == ("Be brief.", "MIT")
    assert "FROM tiny:latest" in reply["modelfile"]
    assert "context_length" not in reply["details"]
    assert "tensors" not in reply


def test_show_verbose(root):
    _, reply = ask(root, "POST", "/api/show", {"name": "tiny", "verbose": True})
    assert reply["model_info"]["tokenizer.ggml.tokens"][2] == "hello"
    assert reply["tensors"][0] == {"name": "token_embd.weight", "type": "F32", "shape": [32, 4]}


def test_show_survives_weights_that_cannot_be_read(root):
    Store(root).resolve("tiny").model_path.write_bytes(b"damaged")
    status, reply = ask(root, "POST", "/api/show", {"model": "tiny"})
    assert (status, reply["model_info"]) == (200, {})


def test_copilot_gets_a_title(root):
    agent = {"User-Agent": "GitHubCopilotChat/1"}
    _, reply = ask(root, "POST", "/api/show", {"model": "tiny"}, headers=agent)
    assert reply["model_info"]["general.basename"] == "tiny"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "/api/show", {"model": "nope"}, 404, "model 'nope:latest' not found"),
        ("POST", "/api/show", {"model": "no pe"}, 400, "invalid model name"),
        ("DELETE", "/api/delete", {"name": "nope"}, 404, "model 'nope' not found"),
        ("DELETE", "/api/delete", {}, 400, "model is required"),
        ("DELETE", "/api/delete", {"name": "../x"}, 400, 'name "../x" is invalid'),
        ("POST", "/api/copy", {"source": "", "destination": "b"}, 400, 'source "" is invalid'),
        (
            "POST",
            "/api/copy",
            {"source": "tiny", "destination": "b/"},
            400,
            'destination "b/" is invalid',
        ),
        ("POST", "/api/copy", {"source": "no", "destination": "b"}, 404, "model 'no' not found"),
    ],
)
def test_errors_in_ollamas_words(root, method, path, body, status, text):
    got, reply = ask(root, method, path, body)
    assert got == status
    assert text in reply["error"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/api/delete", {"model": "tiny"}),
        ("POST", "/api/copy", {"source": "tiny", "destination": "two"}),
        ("POST", "/api/create", {"model": "two", "from": "tiny"}),
        ("POST", "/api/create", {"model": "two", "from": "tiny", "stream": False}),
    ],
)
def test_after_a_change_models_without_a_name_are_unloaded(root, method, path, body):
    service = ScriptedService()
    status, _ = ask(root, method, path, body, service=service)
    assert (status, service.n_looks) == (200, 1)


def test_copy_and_delete(root):
    copied = ask(root, "POST", "/api/copy", {"source": "tiny", "destination": "u/two:x"})
    assert copied == (200, b"")
    assert ask(root, "DELETE", "/api/delete", {"model": "tiny"}) == (200, b"")
    assert [str(listing.name) for listing in Store(root).list()] == ["u/two:x"]


def test_openai_models(root):
    _, reply = ask(root, "GET", "/v1/models")
    (entry,) = reply["data"]
    assert (entry["id"], entry["object"], entry["owned_by"]) == ("tiny:latest", "model", "library")
    assert isinstance(entry["created"], int)
    assert ask(root, "GET", "/v1/models/tiny")[1] == entry | {"id": "tiny"}
    ask(root, "POST", "/api/copy", {"source": "tiny", "destination": "hf.co/u/r:Q4"})
    assert ask(root, "GET", "/v1/models/hf.co/u/r:Q4")[1]["owned_by"] == "u"
    status, reply = ask(root, "GET", "/v1/models/nope")
    assert (status, reply["error"]["code"]) == (404, "model_not_found")


CLAUDE = {"anthropic-version": "2023-06-01"}


def test_models_for_clients_of_anthropic(root):
    _, reply = ask(root, "GET", "/v1/models", headers=CLAUDE)
    (entry,) = reply.pop("data")
    assert reply == {"has_more": False, "first_id": "tiny:latest", "last_id": "tiny:latest"}
    created_at = datetime.fromisoformat(entry.pop("created_at"))
    assert entry == {"type": "model", "id": "tiny:latest", "display_name": "tiny:latest"}
    assert created_at.tzinfo is not None
    _, one = ask(root, "GET", "/v1/models/tiny", headers=CLAUDE)
    assert (one["type"], one["id"], one["display_name"]) == ("model", "tiny", "tiny")
    status, reply = ask(root, "GET", "/v1/models/nope", headers=CLAUDE)
    assert (status, reply["type"], reply["error"]["type"]) == (404, "error", "not_found_error")
    exchange = Exchange(app_of(ScriptedService(), root), "GET", "/v1/models", headers=CLAUDE)
    exchange.scope["query_string"] = b"after_id=nope"
    status, _, data = asyncio.run(exchange.run())
    assert (status, json.loads(data)["error"]["type"]) == (400, "invalid_request_error")
    empty = ask(root / "new", "GET", "/v1/models", headers=CLAUDE)[1]
    assert empty == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize(
    ("query", "names", "has_more"),
    [
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "c"}, "de", False),
        ({"after_id": "e"}, "", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"limit": "3", "before_id": "d"}, "abc", False),
        ({"after_id": "a", "before_id": "d"}, "bc", False),
    ],
)
def test_pages_of_models(query, names, has_more):
    page = json.loads(encode_models([(name, 0) for name in "abcde"], query))
    assert ("".join(one["id"] for one in page["data"]), page["has_more"]) == (names, has_more)
    assert (page["first_id"], page["last_id"]) == ((names[0], names[-1]) if names else (None, None))


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "1.5", "", "x", "9" * 5000])
def test_a_limit_of_a_page_is_a_whole_number(limit):
    with pytest.raises(BadRequest) as error:
        encode_models([], {"limit": limit})
    assert error.value.path == "limit"


def test_ps(root):
    service = ScriptedService()
    info = RunnerInfo(n_ctx=512, n_slots=4, needs={"CPU": Need(6), "CUDA0": Need(3)})
    service.residents = (
        Resident("k1", "gone:latest", "loading", 1_767_323_045.0, n_queued=2),
        Resident("k2", "tiny:latest", "ready", math.inf, n_busy=1, info=info),
    )
    _, reply = ask(root, "GET", "/api/ps", service=service)
    stays, loading = reply["models"]
    assert (
        stays.items()
        >= {
            "name": "tiny:latest",
            "size": 9,
            "size_vram": 3,
            "context_length": 512,
            "slots": {"total": 4, "busy": 1},
            "queued": 0,
            "state": "ready",
            "digest": Store(root).resolve("tiny").digest,
        }.items()
    )
    assert (stays["layout"], stays["kv"]) == (
        "split",
        {"cells": 0, "used": 0, "retained": 0, "free": 0, "used_max": 0},
    )
    assert stays["expires_at"] > "2300"
    assert "kv" not in loading
    assert "layout" not in loading
    assert (loading["state"], loading["queued"], loading["digest"]) == ("loading", 2, "")
    assert loading["expires_at"].startswith("2026-01-02T03:04:05")


STATS = RunnerStats(
    {
        "kv_cells": 2048,
        "kv_cells_used": 500,
        "kv_cells_retained": 100,
        "kv_cells_free": 1548,
        "kv_cells_used_max": 900,
    }
)


@pytest.mark.parametrize(
    ("stats", "kv"),
    [
        (STATS, {"cells": 2048, "used": 500, "retained": 100, "free": 1548, "used_max": 900}),
        (None, {"cells": 2048, "used": 0, "retained": 0, "free": 2048, "used_max": 0}),
    ],
)
def test_ps_shows_the_cells_of_the_kv_cache(root, stats, kv):
    service = ScriptedService()
    info = RunnerInfo(n_ctx=512, n_slots=4, n_cells=2048, layout="unified")
    service.residents = (Resident("k", "tiny:latest", "ready", math.inf, info=info, stats=stats),)
    (row,) = ask(root, "GET", "/api/ps", service=service)[1]["models"]
    assert (row["layout"], row["kv"]) == ("unified", kv)


def test_ps_shows_what_lies_where(root):
    service = ScriptedService()
    needs = {"CUDA0": Need(2, 2, 1), "CPU": Need(3), "RPC0": Need(4)}
    info = RunnerInfo(512, 4, needs=needs)
    service.residents = (
        Resident("a", "tiny:latest", "ready", math.inf, info=info),
        Resident("b", "soon:latest", "loading", 0.0),
    )
    ready, loading = ask(root, "GET", "/api/ps", service=service)[1]["models"]
    assert (ready["size"], ready["size_vram"]) == (12, 9)
    assert ready["devices"] == [
        {"name": "CPU", "size": 3, "weights": 3, "kv": 0, "compute": 0},
        {"name": "CUDA0", "size": 5, "weights": 2, "kv": 2, "compute": 1},
        {"name": "RPC0", "size": 4, "weights": 4, "kv": 0, "compute": 0},
    ]
    assert "devices" not in loading


def test_metrics(root):
    service = ScriptedService()
    service.residents = (Resident("k", "tiny:latest", "ready", math.inf, stats=STATS),)
    exchange = Exchange(app_of(service, root), "GET", "/metrics")
    status, headers, body = asyncio.run(exchange.run())
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b'localrun_kv_cells_used{model="tiny:latest"} 500\n' in body


def test_a_model_without_its_weights_is_shown_as_such(root, gguf):
    def looks():
        (row,) = ask(root, "GET", "/api/tags")[1]["models"]
        shown = ask(root, "POST", "/api/show", {"model": "tiny"})
        return row.get("incomplete"), shown[0], shown[1].get("problem")

    assert looks() == (None, 200, None)
    store = Store(root)
    store.blobs.delete(store.resolve("tiny").weight_digests[0])
    is_incomplete, status, problem = looks()
    assert (is_incomplete, status) == (True, 200)
    assert "`localrun verify --repair tiny:latest`" in problem
