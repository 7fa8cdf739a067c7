"""Which tokens a text consists of: their bytes are its bytes, and nothing comes before its text."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localrun.core import TokenLogprob
from localrun.runner.output.alignment import Alignment
from localrun.runner.output.detokenizer import Detokenizer


def play(pieces: list[bytes], stop: tuple[str, ...] = ()) -> list[tuple[str, list[bytes]]]:
    """What leaves at each piece, and at the end: text, and the tokens that come with it."""
    detokenizer, alignment = Detokenizer(stop), Alignment()
    out = []
    for piece in pieces:
        if detokenizer.is_stopped:
            break
        text = detokenizer.feed(piece)
        alignment.add(TokenLogprob(piece, -1.0))
        out.append((text, [entry.data for entry in alignment.sent(len(text))]))
    text = detokenizer.finish()
    rest = alignment.sent(len(text)) + alignment.finish()
    return [*out, (text, [entry.data for entry in rest])]


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [
        # Whoever reads the text has its tokens.
        ([b"a", b"b"], (), [("a", [b"a"]), ("b", [b"b"]), ("", [])]),
        # The parts of a character wait for its end.
        ([b"\xf0\x9f", b"\x99\x82"], (), [("", []), ("🙂", [b"\xf0\x9f", b"\x99\x82"]), ("", [])]),
        ([b"a\xf0", b"\x9f\x99\x82b"], (),
         [("a", []), ("🙂b", [b"a\xf0", b"\x9f\x99\x82b"]), ("", [])]),
        # A character that stays half is no text; what stood before it in its token is.
        ([b"cut ", b"\xf0\x9f"], (), [("cut ", [b"cut "]), ("", []), ("", [])]),
        ([b"cut \xf0", b"\x9f"], (), [("cut ", []), ("", []), ("", [b"cut "])]),
        # Invalid bytes stay what they are.
        ([b"a", b"\xff", b"b"], (),
         [("a", [b"a"]), ("\ufffd", [b"\xff"]), ("b", [b"b"]), ("", [])]),
        ([b"\xf0\x9f", b"ok"], (), [("", []), ("\ufffdok", [b"\xf0\x9f", b"ok"]), ("", [])]),
        ([b"\xe2", b"\xf0", b"x"], (),
         [("", []), ("\ufffd", [b"\xe2"]), ("\ufffdx", [b"\xf0", b"x"]), ("", [])]),
        # Held back, and let go on a miss.
        ([b"a", b"#", b"b"], ("##",), [("a", [b"a"]), ("", []), ("#b", [b"#", b"b"]), ("", [])]),
        ([b"a", b"#"], ("##",), [("a", [b"a"]), ("", []), ("#", [b"#"])]),
        # Nothing of a stop string, in whatever token it begins.
        ([b"a", b"#", b"#"], ("##",), [("a", [b"a"]), ("", []), ("", []), ("", [])]),
        ([b"a #", b"#"], ("##",), [("a ", []), ("", []), ("", [b"a "])]),
        ([b"one STOP two"], ("STOP",), [("one ", []), ("", [b"one "])]),
        ([b"STOP"], ("STOP",), [("", []), ("", [])]),
        # A token without text is no token of the text.
        ([b"", b"a", b""], (), [("", []), ("a", [b"a"]), ("", []), ("", [])]),
    ],
)  # fmt: skip
def test_tokens_come_with_their_text(
    pieces: list[bytes], stop: tuple[str, ...], expected: list[tuple[str, list[bytes]]]
) -> None:
    assert play(pieces, stop) == expected


TEXT = st.lists(st.sampled_from([*"ab# ", "é", "漢", "🙂", "##", "#b"]), max_size=12).map("".join)


@given(TEXT, st.data(), st.lists(st.sampled_from(["##", "#b", "é", "漢a"]), max_size=2))
def test_the_bytes_of_all_tokens_are_the_text(
    text: str, draw: st.DataObject, stop: list[str]
) -> None:
    data = text.encode()
    cuts = sorted(draw.draw(st.sets(st.integers(0, len(data)), max_size=8)) | {0, len(data)})
    pieces = [data[a:b] for a, b in itertools.pairwise(cuts)]
    sent_bytes = sent_text = b""
    for piece, entries in play(pieces, tuple(stop)):
        sent_bytes += b"".join(entries)
        sent_text += piece.encode()
        assert sent_text.startswith(sent_bytes), "a token came before its text"
    assert sent_bytes == sent_text


@given(st.lists(st.binary(min_size=1, max_size=4), max_size=8))
def test_invalid_bytes_stay_as_they_are(pieces: list[bytes]) -> None:
    out = play(pieces)
    text = "".join(piece for piece, _ in out)
    assert (
        b"".join(data for _, entries in out for data in entries).decode("utf-8", "replace") == text
    )
