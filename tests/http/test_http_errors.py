"""The table of errors covers both trees, and replies give nothing away."""

import inspect
import json
import re

import pytest

from localrun import errors as ours
from localrun.http import refusals
from localrun.http.errors import TABLE, as_sent, error_response, fault_of, row_of
from modelstore import errors as store

ROOTS = (ours.LocalrunError, store.StoreError, refusals.TransportError)
ALL = [
    cls
    for module in (ours, store, refusals)
    for _, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, ROOTS) and cls not in ROOTS
]


def leaf(cls: type[Exception]) -> bool:
    return not cls.__subclasses__()


@pytest.mark.parametrize("cls", [cls for cls in ALL if leaf(cls)], ids=lambda cls: cls.__name__)
def test_every_leaf_has_a_row(cls):
    assert row_of(cls.__new__(cls)) is not None


def test_no_row_is_a_root_so_that_a_new_error_cannot_slip_through():
    assert not set(ROOTS) & TABLE.keys()
    assert TABLE.keys() <= set(ALL)


def test_the_most_specific_class_counts():
    assert row_of(store.IncompleteGGUF(1, 2)) is TABLE[store.InvalidGGUF]


def test_an_error_without_a_row_says_nothing_and_is_logged(caplog):
    response = error_response(ValueError("/home/somebody/secret"), "native")
    assert (response.status_code, response.body) == (500, b'{"error":"internal error"}')
    assert "secret" in caplog.text
    assert "ValueError" in caplog.text


def test_each_dialect_has_its_own_form():
    error = ours.BadRequest("messages[2].role", "expected `str`")
    assert error_response(error, "native").body == (b'{"error":"messages[2].role: expected `str`"}')
    assert error_response(error, "openai").body == (
        b'{"error":{"message":"messages[2].role: expected `str`","type":"invalid_request_error",'
        b'"param":"messages[2].role","code":null}}'
    )
    reply = error_response(error, "anthropic")
    request_id = reply.headers["request-id"]
    assert re.fullmatch("req_[0-9a-f]{24}", request_id)
    assert json.loads(reply.body) == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "messages[2].role: expected `str`",
        },
        "request_id": request_id,
    }


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (refusals.KeyMissing(), 401, "authentication_error"),
        (refusals.OriginRefused("https://x.example"), 403, "permission_error"),
        (store.ModelNotFound("m"), 404, "not_found_error"),
        (refusals.WrongMethod("GET", "/v1/messages", "POST"), 405, "invalid_request_error"),
        (refusals.BodyTooLarge(1 << 20), 413, "request_too_large"),
        (refusals.KeyBusy(1, 2, 1), 429, "rate_limit_error"),
        (ours.EngineFailed(1), 500, "api_error"),
        (ours.QueueFull(5, 3), 503, "overloaded_error"),
    ],
)
def test_anthropics_type_follows_from_the_status(error, status, kind):
    reply = error_response(error, "anthropic")
    assert (reply.status_code, json.loads(reply.body)["error"]["type"]) == (status, kind)
    if status in (429, 503):
        assert reply.headers["retry-after"] in ("1", "3")


def test_a_window_that_memory_cannot_hold_says_which_one_it_can():
    response = error_response(ours.WindowTooLarge(131072, 20480), "openai")
    fault = fault_of(ours.WindowTooLarge(131072, 20480))[1]
    assert (response.status_code, fault.path) == (400, "options.num_ctx")
    for part in ("131072", "20480", "num_ctx"):
        assert part in fault.message


@pytest.mark.parametrize("dialect", ["native", "openai", "anthropic"])
@pytest.mark.parametrize(
    "error",
    [
        ours.ContextOverflow(9, 8),
        ours.WindowTooLarge(131072, 20480),
        ours.NotEnoughMemory({"CPU": 9}, {"CPU": 8}),
    ],
)
def test_only_a_dialect_that_has_num_ctx_advises_on_it(error, dialect):
    fault = fault_of(error, dialect)[1]
    assert ("num_ctx" in fault.message + fault.path) == (dialect == "native")
    assert "LOCALRUN_CONTEXT_LENGTH" in fault.message or dialect == "native"


def test_a_full_queue_says_when_to_come_back():
    response = error_response(ours.QueueFull(5, 3), "openai")
    assert (response.status_code, response.headers["retry-after"]) == (503, "3")
    assert "connection" not in response.headers


@pytest.mark.parametrize(
    ("problem", "shown"),
    [
        ("cannot open '/home/a b/x/blob': gone", "cannot open 'blob': gone"),
        ("cannot open /root/m/blob-1: gone", "cannot open blob-1: gone"),
        ("path=/srv/x.gguf", "path=x.gguf"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("3/4 layers and/or a/b/c", "3/4 layers and/or a/b/c"),
    ],
)
def test_folders_in_the_words_of_the_engine_stay_here(problem, shown):
    assert fault_of(ours.LoadFailed(problem))[1].message.endswith(f"loaded: {shown}")


def test_the_user_of_a_read_only_store_stays_here():
    fault = fault_of(store.StoreNotWritable("models", "somebody", "denied"))[1]
    assert "somebody" not in fault.message


def test_an_unknown_model_gets_the_name_that_was_sent():
    with pytest.raises(store.ModelNotFound, match=r"model 'Tiny' not found"), as_sent("Tiny"):
        raise store.ModelNotFound("Tiny:latest")
