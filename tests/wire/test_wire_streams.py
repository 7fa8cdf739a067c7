"""Framing: whatever way a stream is split, the same documents come out."""

import pytest

from localrun.wire.streams import (
    SSE_DONE,
    LineTooLong,
    NdjsonDecoder,
    SseDecoder,
    ndjson,
    sse,
)

DOCUMENTS = ['{"a":"é😀"}'.encode(), b'{"b":"\\n"}', b"{}"]
LINES = b"".join(map(ndjson, DOCUMENTS))
EVENTS = b"".join(map(sse, DOCUMENTS)) + SSE_DONE


def splits(data):
    """Whole, byte by byte, and cut once at every place."""
    bytewise = [data[i : i + 1] for i in range(len(data))]
    return [[data], bytewise, *([data[:i], data[i:]] for i in range(len(data)))]


@pytest.mark.parametrize("pieces", splits(LINES))
def test_lines_at_any_split(pieces):
    decoder = NdjsonDecoder()
    assert [line for piece in pieces for line in decoder.feed(piece)] == DOCUMENTS
    assert decoder.flush() == []


@pytest.mark.parametrize("pieces", splits(EVENTS))
def test_events_at_any_split(pieces):
    decoder = SseDecoder()
    assert [data for piece in pieces for data in decoder.feed(piece)] == [*DOCUMENTS, b"[DONE]"]


def test_blank_lines_and_carriage_returns_are_passed_over():
    assert NdjsonDecoder().feed(b"\n{}\r\n \n[]\n") == [b"{}", b"[]"]
    assert SseDecoder().feed(b": hello\r\nevent: x\r\ndata: 1\r\ndata:2\r\n\r\n") == [b"1\n2"]


def test_a_last_line_without_a_break_is_flushed_once():
    decoder = NdjsonDecoder()
    assert decoder.feed(b"{}\n[") == [b"{}"]
    assert decoder.flush() == [b"["]
    assert decoder.flush() == []


@pytest.mark.parametrize("decoder", [NdjsonDecoder(8), SseDecoder(8)])
def test_a_line_without_end_is_refused(decoder):
    with pytest.raises(LineTooLong) as caught:
        decoder.feed(b"x" * 9)
    assert "8 bytes" in str(caught.value)
