"""Streams: whole characters, no lost text, stop strings across tokens. The decoder is bytes, so that every split can be tried."""
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from specjax.text_stream import TextStream


class Bytes:
    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")


def streamed(data: bytes, cuts: list[int], stops: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    """The pieces of a text whose tokens come in blocks that end at `cuts`."""
    stream, pieces, at = TextStream(Bytes(), stops), [], 0
    for cut in [*sorted(cuts), len(data)]:
        pieces.append(stream.push(list(data[at:cut])))
        at = max(at, cut)
    return [*pieces, stream.finish()], stream


def test_O04_a_character_split_over_blocks_comes_whole():
    for cut in range(1, 4):
        pieces, _ = streamed("🙂".encode(), [cut])
        assert "".join(pieces) == "🙂" and pieces[0] == ""


def test_O05_a_length_limit_inside_a_character_is_flushed_not_raised():
    pieces, stream = streamed("a🙂".encode()[:3], [2])
    assert "".join(pieces) == Bytes().decode(list("a🙂".encode()[:3])) and stream.count == 3


@settings(max_examples=300, deadline=None)
@given(some.lists(some.integers(0, 255), max_size=40), some.lists(some.integers(0, 40), max_size=5))
def test_O04_streamed_text_is_the_unstreamed_for_any_bytes(data, cuts):
    pieces, _ = streamed(bytes(data), [min(c, len(data)) for c in cuts])
    assert "".join(pieces) == Bytes().decode(data)


@settings(max_examples=300, deadline=None)
@given(some.text("abc🙂", max_size=30), some.lists(some.text("abc🙂", min_size=1, max_size=4), min_size=1, max_size=3),
       some.lists(some.integers(0, 60), max_size=5))
def test_E05_text_ends_before_the_first_stop_however_it_is_cut(text, stops, cuts):
    data = text.encode()
    pieces, stream = streamed(data, [min(c, len(data)) for c in cuts], tuple(stops))
    ends = [at + len(s) for s in stops if (at := text.find(s)) >= 0]
    if not ends:
        assert "".join(pieces) == text and not stream.stopped and stream.count == len(data)
        return
    # Tokens are read one by one, so the stop that is completed first wins; of two completed by one token, the earlier start.
    end = min(ends)
    start = min(at for s in stops if (at := text[:end].find(s)) >= 0)
    assert "".join(pieces) == text[:start] and stream.stopped
    assert stream.count == len(text[:end].encode())


def test_E05_a_stop_in_the_first_token_of_a_block_of_eight():
    stream = TextStream(Bytes(), ["b"])
    assert stream.push(list(b"aabcdefgh")) == "aa" and stream.count == 3 and stream.push(list(b"x")) == "" and stream.finish() == ""


def test_text_that_might_be_a_stop_is_held_and_given_back():
    stream = TextStream(Bytes(), ["END"])
    assert stream.push(list(b"xEN")) == "x"
    assert stream.push(list(b"EN")) == "EN"
    assert stream.finish() == "EN"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        TextStream(Bytes(), ["a", ""])
