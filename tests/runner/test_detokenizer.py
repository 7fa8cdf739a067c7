"""Bytes → text: characters stay whole, stop strings never leak, in whatever slices bytes come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localrun.runner.output.detokenizer import Detokenizer


def play(pieces: list[bytes], stop: tuple[str, ...] = ()) -> list[str]:
    detokenizer = Detokenizer(stop)
    texts = [detokenizer.feed(piece) for piece in pieces]
    return [text for text in (*texts, detokenizer.finish()) if text]


def per_byte(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


FAMILY = "👨‍👩‍👧"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (per_byte("🙂".encode()), "🙂"),
        (["🙂".encode()[:2], "🙂".encode()[2:]], "🙂"),
        (per_byte(FAMILY.encode()), FAMILY),
        (per_byte("漢字".encode()), "漢字"),
        ([b"a", b"\xff", b"b"], "a\ufffdb"),
        ([b"\xf0\x9f", b"ok"], "\ufffdok"),
        ([b"cut ", b"\xf0\x9f\x99"], "cut "),
    ],
    ids=["bytewise", "halves", "joiners", "cjk", "invalid", "broken off", "half at the end"],
)
def test_characters_stay_whole(pieces: list[bytes], expected: str) -> None:
    texts = play(pieces)
    assert "".join(texts) == expected
    for text in texts:
        text.encode()  # a chunk is valid text by itself


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("The quick brown fox jumps", ("own fox",), "The quick br"),
        ("The quick brown fix jumps", ("own fox",), "The quick brown fix jumps"),
        ("one ## two ###END", ("##", "###END"), "one "),
        ("one ###END", ("###END", "END"), "one "),
        ("STOP at once", ("STOP",), ""),
        ("before é after", ("é",), "before "),
        ("almost STO", ("STOP",), "almost STO"),
        ("aaab", ("aab",), "a"),
        ("abc", ("b", "abc"), "a"),
    ],
)
def test_a_stop_string_ends_the_text_in_every_slicing(
    text: str, stop: tuple[str, ...], expected: str
) -> None:
    data = text.encode()
    slicings = [[data], per_byte(data)]
    slicings += [[data[:i], data[i:]] for i in range(1, len(data))]
    for pieces in slicings:
        assert "".join(play(pieces, stop)) == expected


@given(st.text(alphabet="ab🙂"), st.lists(st.text(alphabet="ab🙂", min_size=1), max_size=3))
def test_slicing_never_changes_the_text(text: str, stop: list[str]) -> None:
    whole = play([text.encode()], tuple(stop))
    assert "".join(play(per_byte(text.encode()), tuple(stop))) == "".join(whole)


def test_text_that_cannot_become_a_stop_string_is_not_held_back() -> None:
    detokenizer = Detokenizer(("STOP",))
    assert detokenizer.feed(b"near ST") == "near "
    assert detokenizer.feed(b"A") == "STA"


def test_nothing_follows_the_stop() -> None:
    detokenizer = Detokenizer(("x",))
    assert detokenizer.feed(b"ax") == "a"
    assert detokenizer.is_stopped
    assert detokenizer.feed(b"more") == ""
    assert detokenizer.finish() == ""
