"""Requests and replies about models in Ollama's dialect, and how times are written."""

import json
import math
from datetime import UTC, datetime

import pytest

from localrun.errors import BadRequest
from localrun.wire.native_models import (
    Description,
    Details,
    InstalledModel,
    ShowModel,
    decode_copy,
    decode_create,
    decode_delete,
    decode_show,
    encode_description,
    encode_models,
    encode_progress,
    encode_version,
)
from localrun.wire.timestamps import expiry, rfc3339


def body(**fields):
    return json.dumps(fields).encode()


@pytest.mark.parametrize("fields", [{"model": "m"}, {"name": "m"}, {"model": "m", "name": "x"}])
def test_the_old_spelling_of_model_counts(fields):
    assert decode_delete(body(**fields)) == "m"
    assert decode_show(body(**fields)) == ShowModel("m")
    assert decode_create(body(**fields)).model == "m"


@pytest.mark.parametrize("decode", [decode_delete, decode_show, decode_create])
def test_a_model_is_required(decode):
    with pytest.raises(BadRequest, match="model is required"):
        decode(b"{}")


def test_show_and_copy():
    assert decode_show(body(model="m", verbose=True)) == ShowModel("m", True)
    assert decode_copy(body(source="a", destination="b")) == ("a", "b")
    assert decode_copy(b"{}") == ("", "")


def test_create_in_full():
    wanted = decode_create(
        body(
            model="m",
            stream=False,
            files={"a.gguf": "sha256:1"},
            path="/x",
            in_place=True,
            license="L",
            parameters={"top_k": 1},
            messages=[{"role": "User", "content": "hi"}, {"role": "assistant"}],
            **{"from": "base"},
        )
    )
    assert (wanted.from_, wanted.files, wanted.path) == ("base", {"a.gguf": "sha256:1"}, "/x")
    assert (wanted.stream, wanted.in_place, wanted.licenses) == (False, True, ("L",))
    assert wanted.messages == (
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": ""},
    )


def test_create_tells_no_files_from_an_empty_list():
    assert decode_create(body(model="m")).files is None
    assert decode_create(body(model="m", files={})).files == {}
    assert decode_create(body(model="m", license=["a", "b"])).licenses == ("a", "b")


@pytest.mark.parametrize("field", ["quantize", "quantization"])
def test_the_type_to_quantize_to_has_two_spellings(field):
    assert decode_create(body(model="m", **{field: "Q4_0"})).quantize == "Q4_0"


def test_a_draft_model_is_refused():
    with pytest.raises(BadRequest) as caught:
        decode_create(body(model="m", draft_files={"a": "b"}))
    assert caught.value.path == "draft_files"


def test_progress_leaves_out_what_is_not_known():
    assert encode_progress("a", None, None, 0) == b'{"status":"a"}'
    assert json.loads(encode_progress("a", "d", 5, 3)) == {
        "status": "a",
        "digest": "d",
        "total": 5,
        "completed": 3,
    }


def test_a_row_of_tags():
    row = InstalledModel(
        name="m:latest",
        model="m:latest",
        modified_at=datetime(2026, 1, 2, 3, 4, 5, 600, UTC),
        size=1,
        digest="d",
        details=Details(family="llama", context_length=8),
    )
    encoded = json.loads(encode_models([row]))["models"][0]
    assert encoded["modified_at"] == "2026-01-02T03:04:05.000600Z"
    assert encoded["details"] == {
        "parent_model": "",
        "format": "",
        "family": "llama",
        "families": None,
        "parameter_size": "",
        "quantization_level": "",
        "context_length": 8,
    }
    assert "capabilities" not in encoded
    assert encode_models([]) == b'{"models":[]}'


def test_a_description_always_has_model_info():
    described = Description(
        modelfile="",
        template="t",
        details=Details(),
        model_info={},
        capabilities=["completion"],
        modified_at=datetime(2026, 1, 2, tzinfo=UTC),
    )
    encoded = json.loads(encode_description(described))
    assert encoded["model_info"] == {}
    assert not encoded.keys() & {"license", "system", "messages", "tensors", "parameters"}


def test_the_version_has_what_clients_gate_on():
    assert json.loads(encode_version("0.30.0", "1", 7)) == {
        "version": "0.30.0",
        "localrun": "1",
        "pid": 7,
    }


@pytest.mark.parametrize(
    ("unix_ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (1_767_323_045_000_000_001, "2026-01-02T03:04:05.000000001Z"),
    ],
)
def test_times(unix_ns, text):
    assert rfc3339(unix_ns) == text


def test_a_model_that_stays_expires_in_292_years():
    assert expiry(1_767_323_045.9, 0).startswith("2026-01-02T03:04:05.")
    assert expiry(math.inf, 1_767_323_045).startswith("2318-")
    assert expiry(1e300, 1_767_323_045).startswith("2318-")
