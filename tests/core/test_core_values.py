"""Units, options, load specs, errors and frames."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from localrun import errors
from localrun.core import SamplingParams
from localrun.ipc.framing import MAX_FRAME_BYTES, FrameDecoder, FrameTooLarge, encode_frame
from localrun.loopback import is_loopback
from localrun.options import OPTIONS, check_option, check_options, merge
from localrun.placement.fit import Defaults, place
from localrun.spec import LoadOptions, LoadSpec
from localrun.units import FOREVER, parse_duration_s, parse_size_bytes

# ---- units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("300ms", 0.3),
        ("1.5h", 5400),
        ("0", 0),
        ("300", 300),
        ("-1", FOREVER),
        ("-1m", FOREVER),
        (" 10s ", 10),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "5mm", "nan", "inf", "1e9", "--1"])
def test_other_durations_are_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("20GiB", 20 << 30), ("512 MB", 512_000_000), ("1048576", 1 << 20), ("1.5KiB", 1536)],
)
def test_sizes(text: str, n_bytes: int) -> None:
    assert parse_size_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 XB", "1e3"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size_bytes(text)


# ---- options


def test_a_number_out_of_range_is_shown_with_all_its_digits() -> None:
    with pytest.raises(errors.BadRequest, match="from 0 to 2147483647, not 1099511627776"):
        check_options({"num_ctx": 2**40})


def test_every_option_is_a_field_with_a_default() -> None:
    fields = {*LoadOptions.__struct_fields__, *SamplingParams.__struct_fields__}
    # Not an option: what a request wants to be told changes nothing that a model says.
    assert set(OPTIONS) == fields - {"top_logprobs"}


@pytest.mark.parametrize(
    ("raw", "known"),
    [
        ({"num_ctx": 4096.9}, {"num_ctx": 4096}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"seed": None}, {}),
        ({"tensor_split": [3, "1.5"]}, {"tensor_split": (3.0, 1.5)}),
        ({"tensor_split": "3,1"}, {"tensor_split": (3.0, 1.0)}),
        ({"logit_bias": {"5": 1, 6: -101}}, {"logit_bias": {"5": 1.0, "6": -100.0}}),
        ({"logit_bias": '{"05": 1e9}'}, {"logit_bias": {"5": 100.0}}),
        ({"tensor_split": 1}, {"tensor_split": (1.0,)}),
        ({"use_mmap": True}, {"use_mmap": True}),
        ({"deterministic": False}, {"deterministic": False}),
        ({"admission": "static"}, {"admission": "static"}),
        ({"stop": ""}, {"stop": ()}),
        ({"stop": ["a", ""]}, {"stop": ("a",)}),
    ],
)
def test_options_take_their_type(raw: dict[str, Any], known: dict[str, Any]) -> None:
    assert check_options(raw) == (known, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("temperature", math.nan),
        ("temperature", True),
        ("num_ctx", -1),
        ("num_ctx", [1]),
        ("num_predict", -3),
        ("top_p", 1.1),
        ("stop", [1]),
        ("use_mmap", "yes"),
        ("admission", "eager"),
        ("admission", ["static"]),
        ("deterministic", 1),
        ("num_ctx", 2**40),
        ("seed", 10**400),
    ],
)
def test_a_wrong_option_is_named_with_its_path(name: str, value: Any) -> None:
    with pytest.raises(errors.BadRequest) as error:
        check_options({name: value})
    assert error.value.path == f"options.{name}"
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", 1e308, "must be from 0 to 1e+18, not 1e+308"),
        ("temperature", "1e308", "must be from 0 to 1e+18, not 1e+308"),
        ("presence_penalty", -1e20, "must be from -1e+18 to 1e+18, not -1e+20"),
        ("seed", 2**64, f"must be from {-(2**63)} to {2**64 - 1}, not {2**64}"),
        ("seed", 10**400, "not a number of more than 40 digits"),
        ("num_ctx", "1e999", "must be from 0 to 2147483647, not inf"),
        ("num_ctx", "9" * 30, f"not {'9' * 30}"),
        ("seed", math.nan, "must be of type integer"),
        ("seed", "1.5", "must be a whole number, not 1.5"),
        ("top_k", "0.5", "must be a whole number, not 0.5"),
    ],
)
def test_what_is_wrong_with_a_number_is_said_once(name: str, value: Any, words: str) -> None:
    with pytest.raises(errors.BadRequest) as error:
        check_options({name: value})
    assert error.value.problem.endswith(words)
    assert str(error.value).count(name) == 1
    with pytest.raises(errors.BadRequest) as error:
        check_option(name, value, path="")
    assert str(error.value).endswith(words)
    assert str(error.value).startswith(f'option "{name}" must be ')


def test_quoted_numbers_may_have_an_exponent() -> None:
    raw = {"temperature": "5e-1", "top_k": "4e1", "seed": " -7 "}
    assert check_options(raw) == ({"temperature": 0.5, "top_k": 40, "seed": -7}, [])


def test_unknown_options_are_told_apart() -> None:
    assert check_options({"mirostat": 1, "seed": 3}) == ({"seed": 3}, ["mirostat"])


def test_later_layers_win_and_scopes_are_told_apart() -> None:
    load, sampling = merge([{"num_ctx": 1, "seed": 1}, {"seed": 2}])
    assert (load.num_ctx, sampling.seed) == (1, 2)
    assert sampling.top_k == 40


def test_a_window_of_0_counts_as_not_given() -> None:
    assert merge([{"num_ctx": 0}])[0].num_ctx is None
    assert merge([{"num_ctx": 7}, {"num_ctx": 0}])[0].num_ctx == 7


@pytest.mark.parametrize(
    ("params", "is_greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0, "repeat_penalty": 1.1}, False),
        ({"temperature": 0, "repeat_penalty": 1.1, "repeat_last_n": 0}, True),
        ({}, False),
    ],
)
def test_greedy_means_that_nothing_moves_the_logits(
    params: dict[str, Any], is_greedy: bool
) -> None:
    assert SamplingParams(**params).is_greedy == is_greedy


# ---- placement and load specs


@pytest.mark.parametrize(
    ("wanted", "setting", "trained", "expected"),
    [
        (None, None, 8192, 4096),
        (None, None, 2048, 2048),
        (None, 6000, 8192, 6000),
        (1000, 6000, 8192, 1000),
        (10**6, None, 8192, 8192),
        (10**5, None, 0, 10**5),
    ],
)
def test_the_window_is_the_wanted_one_up_to_the_trained_one(
    wanted: int | None, setting: int | None, trained: int, expected: int
) -> None:
    defaults = Defaults(setting, n_threads=2, n_threads_max=4)
    assert place(LoadOptions(num_ctx=wanted), defaults, n_ctx_train=trained).n_ctx == expected


@pytest.mark.parametrize(("wanted", "expected"), [(None, 2), (0, 2), (3, 3), (1000, 4)])
def test_nobody_gets_more_threads_than_there_are_cpus(wanted: int | None, expected: int) -> None:
    defaults = Defaults(None, n_threads=2, n_threads_max=4)
    assert place(LoadOptions(num_thread=wanted), defaults, n_ctx_train=0).n_threads == expected


@pytest.mark.parametrize(
    ("asked", "changes", "is_covered"),
    [
        ({}, {}, True),
        ({"num_ctx": 50}, {"n_ctx": 50}, True),
        ({"num_ctx": 101}, {"n_ctx": 101}, True),
        ({}, {"n_batch": 7, "n_gpu_layers": 3, "n_threads": 3, "use_mmap": False}, True),
        ({"num_batch": 512}, {}, True),
        ({"num_batch": 7}, {"n_batch": 7}, False),
        ({"num_gpu": 3}, {"n_gpu_layers": 3}, False),
        ({"main_gpu": 1}, {"main_gpu": 1}, False),
        ({"tensor_split": (3.0, 1.0)}, {"tensor_split": (3.0, 1.0)}, False),
        ({"use_mmap": False}, {"use_mmap": False}, False),
        ({"num_thread": 0}, {}, True),
        ({"num_thread": 9}, {}, True),
        ({"num_thread": 1}, {"n_threads": 1}, False),
        ({"admission": "continuous"}, {}, True),
        ({"admission": "static"}, {"admission": "static"}, False),
        ({}, {"weights_digest": "other"}, False),
    ],
)
def test_only_what_is_asked_for_and_no_window_needs_another_load(
    asked: dict[str, Any], changes: dict[str, Any], is_covered: bool
) -> None:
    loaded = LoadSpec("/w", "d", n_ctx=100, n_parallel=1, n_threads=2)
    wanted = replace(loaded, asked=LoadOptions(**asked), **changes)
    assert loaded.covers(wanted) is is_covered


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("LOCALHOST", True),
        ("127.evil.example", False),
        ("0.0.0.0", False),
        ("192.168.1.1", False),
        ("", False),
    ],
)
def test_loopback_is_an_address_not_a_prefix(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_names_with_other_adapters_do_not_share_a_runner() -> None:
    plain = LoadSpec("/w", "d", n_ctx=1, n_parallel=1, n_threads=1)
    adapted = LoadSpec("/w", "d", n_ctx=1, n_parallel=1, n_threads=1, adapter_paths=("/a",))
    assert plain.key != adapted.key
    assert not plain.covers(adapted)


# ---- errors


SAMPLES = [
    errors.BadRequest("messages[0].role", "is missing"),
    errors.Unsupported("m", "chat"),
    errors.NotRemembered("thread"),
    errors.ContextOverflow(5000, 4096),
    errors.WindowTooLarge(131072, 20480),
    errors.TemplateFailed("no"),
    errors.TemplateTimeout(10.0),
    errors.QueueFull(512, 3),
    errors.ShuttingDown(),
    errors.LoadFailed("no", ("line",)),
    errors.NotEnoughMemory({"CPU": 2 << 30}, {"CPU": 1 << 30}),
    errors.EngineFailed(-1),
    errors.FormatFailed("its grammar has become too complex here"),
    errors.ModelStopped("m", 30.0),
    errors.RunnerLost("prefill", "it was ended by SIGKILL"),
]


def test_every_error_crosses_the_process_border_unchanged() -> None:
    assert {type(error).__name__ for error in SAMPLES} == set(errors.leaves())
    for error in SAMPLES:
        back = errors.from_fields(*errors.to_fields(error))
        assert (type(back), str(back)) == (type(error), str(error))


def test_an_unknown_error_of_a_runner_is_a_lost_runner() -> None:
    assert isinstance(errors.from_fields("Strange", {}), errors.RunnerLost)


# ---- frames


@given(st.lists(st.binary(max_size=50)), st.integers(1, 7))
def test_frames_come_out_whole_in_any_slicing(payloads: list[bytes], size: int) -> None:
    data = b"".join(encode_frame(payload) for payload in payloads)
    decoder = FrameDecoder()
    out: list[bytes] = []
    for start in range(0, len(data), size):
        out += decoder.feed(data[start : start + size])
    assert out == payloads


def test_a_frame_above_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameTooLarge):
        FrameDecoder().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
