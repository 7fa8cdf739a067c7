"""What of a prompt stays: the arithmetic behind cut and shifted windows."""

from collections.abc import Sequence

import pytest

from localrun.core import Message, SamplingParams
from localrun.errors import ContextOverflow
from localrun.runner.engine.sequence import MAX_WINDOWS
from localrun.runner.engine.sequence import Sequence as TokenSequence
from localrun.runner.prompt.fit import (
    answer_room,
    cut,
    cut_around,
    cut_last_turn,
    fit,
    n_kept,
    shortened,
    whole,
)


@pytest.mark.parametrize(
    ("num_keep", "n_tokens", "n_ctx", "has_bos", "expected"),
    [
        (4, 100, 512, False, 4),
        (4, 100, 512, True, 5),
        (0, 100, 512, True, 1),
        (200, 100, 512, False, 100),
        (-1, 100, 512, True, 100),
        (-1, 510, 512, False, 384),  # a quarter has to move
        (100_000, 600, 512, False, 384),
        (4, 3, 4, False, 3),
        (4, 1, 2, False, 1),
        (4, 1, 1, False, 0),
    ],
)
def test_what_stays_at_the_front(
    num_keep: int, n_tokens: int, n_ctx: int, has_bos: bool, expected: int
) -> None:
    assert n_kept(num_keep, n_tokens, n_ctx, has_bos=has_bos) == expected


@pytest.mark.parametrize("n_ctx", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("num_predict", [-1, 0, 1, 30, 10_000])
def test_a_cut_prompt_is_shorter_than_the_window_whatever_is_asked(
    n_ctx: int, num_predict: int
) -> None:
    for num_keep in (-1, 0, 4, 5000):
        tokens = list(range(1000))
        n_keep = n_kept(num_keep, 1000, n_ctx, has_bos=False)
        fitted = cut(tokens, n_ctx, n_keep=n_keep, num_predict=num_predict)
        assert len(fitted.tokens) < n_ctx
        assert len(fitted.tokens) + fitted.n_dropped == 1000
        assert fitted.tokens[:n_keep] == tokens[:n_keep]
        assert fitted.tokens == sorted(fitted.tokens)
        if len(fitted.tokens) > n_keep:
            assert fitted.tokens[-1] == 999


def test_an_answer_of_known_length_leaves_the_rest_to_the_prompt() -> None:
    tokens = list(range(1000))
    assert len(cut(tokens, 100, n_keep=4, num_predict=10).tokens) == 90
    assert len(cut(tokens, 100, n_keep=4).tokens) == 52


@pytest.mark.parametrize(
    ("n_prefix", "n_suffix", "expected"),
    [
        (1000, 1000, (38, 12)),
        (1000, 5, (45, 5)),
        (10, 1000, (10, 40)),
        (0, 1000, (0, 50)),
        (3, 4, (3, 4)),
    ],
)
def test_what_is_nearest_to_a_gap_stays(
    n_prefix: int, n_suffix: int, expected: tuple[int, int]
) -> None:
    before, after = list(range(n_prefix)), list(range(n_suffix))
    prefix, suffix = cut_around(before, after, 100)
    assert (len(prefix), len(suffix)) == expected
    assert prefix == before[len(before) - len(prefix) :]
    assert suffix == after[: len(suffix)]


def test_a_text_beyond_all_windows_loses_its_middle_before_anybody_tokenizes_it() -> None:
    text = "a" * 10_000 + "b" * 1_000_000 + "c" * 10_000
    short, n_left_out = shortened(text, 10, 4)
    assert short == "a" * 1024 + "c" * 2560
    assert n_left_out == (len(text) - len(short)) // 4
    assert shortened(text, 10_000, 4) == (text, 0)


def by_size(messages: Sequence[Message]) -> list[int]:
    return [0] * sum(len(message.content) for message in messages)


def test_turns_that_go_make_room_for_an_answer() -> None:
    talk = [Message("user", "x" * 10) for _ in range(10)]
    assert len(fit(talk, 101, by_size, n_answer=12).tokens) == 100  # as it is
    fitted = fit(talk, 100, by_size, n_answer=12)
    assert (len(fitted.tokens), fitted.n_dropped) == (80, 20)
    # The last turn needs no such room.
    assert len(fit([*talk, Message("user", "y" * 99)], 100, by_size, n_answer=12).tokens) == 99


def test_a_conversation_that_must_stay_whole_is_counted_and_refused() -> None:
    talk = [Message("user", "x" * 10) for _ in range(10)]
    assert len(whole(talk, 101, by_size).tokens) == 100
    with pytest.raises(ContextOverflow) as caught:
        whole(talk, 100, by_size)
    assert (caught.value.n_tokens, caught.value.is_at_least) == (100, False)


@pytest.mark.parametrize(("num_predict", "room"), [(-1, 12), (5, 5), (0, 1), (10_000, 12)])
def test_the_room_for_an_answer(num_predict: int, room: int) -> None:
    assert answer_room(100, num_predict) == room


# ---- the shift


@pytest.mark.parametrize("n_ctx", [2, 3, 8, 100])
@pytest.mark.parametrize("n_keep", [0, 1, 4, 75, 99, 1000])
def test_a_full_window_loses_half_behind_its_head_and_never_its_end(
    n_ctx: int, n_keep: int
) -> None:
    sequence = TokenSequence(1, [0], SamplingParams(), n_ctx, shifts=True, n_keep=n_keep)
    for token in range(1, 3 * n_ctx):
        sequence.take(token, is_end=False, now_ns=token)
        if sequence.is_window_full:
            before = sequence.tokens
            n_kept_now = sequence.drop_middle()
            assert 0 <= n_kept_now < len(sequence.tokens) < n_ctx
            assert sequence.tokens[:n_kept_now] == before[:n_kept_now]
            assert sequence.tokens[-1] == token
            n_behind = len(before) - n_kept_now
            assert len(sequence.tokens) - n_kept_now == n_behind - n_behind // 2
        assert sequence.n_completion == token


@pytest.mark.parametrize(
    ("num_predict", "expected"), [(-1, 100 * MAX_WINDOWS), (30, 30), (10**6, 100 * MAX_WINDOWS)]
)
def test_a_shifting_answer_has_a_bound(num_predict: int, expected: int) -> None:
    sampling = SamplingParams(num_predict=num_predict)
    assert TokenSequence(1, [1] * 50, sampling, 100, shifts=True).n_predict == expected
    assert TokenSequence(1, [1] * 50, sampling, 100).n_predict == min(expected, 50)


def spelled(messages: Sequence[Message]) -> list[int]:
    """A template: -1 and the role's first letter, the content, -2; then the answer's header."""
    tokens: list[int] = []
    for message in messages:
        tokens += [-1, ord(message.role[0]), *map(ord, message.content), -2]
    return [*tokens, -1, ord("a")]


@pytest.mark.parametrize("n_system", [0, 10, 30, 50])
def test_a_cut_turn_stays_a_turn(n_system: int) -> None:
    messages = [Message("system", "s" * n_system), Message("user", "u" * 200)]
    fitted = cut_last_turn(messages, 80, spelled, keep=lambda _: 4, num_predict=-1)
    head = [-1, ord("s"), *[ord("s")] * n_system, -2, -1, ord("u")]
    assert fitted.tokens[: len(head)] == head
    assert fitted.tokens[-3:] == [-2, -1, ord("a")]
    assert set(fitted.tokens[len(head) : -3]) == {ord("u")}
    assert len(fitted.tokens) < 80


@pytest.mark.parametrize("n_system", [70, 74, 100, 1000])
def test_a_window_that_holds_no_more_than_the_frame_is_refused(n_system: int) -> None:
    messages = [Message("system", "s" * n_system), Message("user", "u" * 200)]
    with pytest.raises(ContextOverflow):
        cut_last_turn(messages, 80, spelled, keep=lambda _: 4, num_predict=-1)
