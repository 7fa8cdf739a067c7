"""The table of errors covers both trees, and replies give nothing away."""

import inspect

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


def test_both_dialects():
    error = ours.BadRequest("messages[2].role", "expected `str`")
    assert error_response(error, "native").body == (b'{"error":"messages[2].role: expected `str`"}')
    assert error_response(error, "openai").body == (
        b'{"error":{"message":"messages[2].role: expected `str`","type":"invalid_request_error",'
        b'"param":"messages[2].role","code":null}}'
    )


def test_a_window_that_memory_cannot_hold_says_which_one_it_can():
    response = error_response(ours.WindowTooLarge(131072, 20480), "openai")
    fault = fault_of(ours.WindowTooLarge(131072, 20480))[1]
    assert (response.status_code, fault.path) == (400, "options.num_ctx")
    for part in ("131072", "20480", "num_ctx"):
        assert part in fault.message


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
