"""Text from tokens as they come: never half a character, never a lost one, and cut before the first stop string.

What is given out piece by piece, joined, is the text of all tokens up to the stop. Held back are bytes that may still become a
character, and text that may still become a stop string: with longest stop L, at most L - 1 characters.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_BROKEN = "\ufffd"


class Decoder(Protocol):
    """Anything that turns ids into text, such as a `specjax.model.Model`."""

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids."""
        ...


class Pieces:
    """Turns tokens into text one by one, never half a character.

    A character of several bytes may be spread over tokens, and a token's text may depend on the one before it (a space at the start
    of a text is dropped by some tokenizers). So the text of a token is the growth of the text of a short window.

    >>> class Bytes:
    ...     def decode(self, tokens): return bytes(tokens).decode("utf-8", "replace")
    >>> pieces = Pieces(Bytes())
    >>> [pieces.push(t) for t in "aé".encode()], pieces.rest()
    (['a', '', 'é'], '')
    """

    def __init__(self, decoder: Decoder):
        self._decoder = decoder
        self._window: list[int] = []
        self._shown = 0  # tokens of the window whose text was given out

    def push(self, token: int) -> str:
        """The text that a token completes, "" while a character is incomplete."""
        self._window.append(token)
        before, after = self._texts()
        if len(after) <= len(before) or after.endswith(_BROKEN):
            return ""
        self._window, self._shown = self._window[self._shown:], len(self._window) - self._shown
        return after[len(before):]

    def rest(self) -> str:
        """What was held back, at the end of the text: bytes that never became a character come out as U+FFFD."""
        before, after = self._texts()
        self._shown = len(self._window)
        return after[len(before):]

    def _texts(self) -> tuple[str, str]:
        return self._decoder.decode(self._window[:self._shown]), self._decoder.decode(self._window)


class TextStream:
    """The text of one generation, with stop strings.

    Args:
      decoder: ids to text. stops: strings before which the text ends; each at least one character.

    Attributes:
      stopped: a stop string was completed. count: tokens that belong to the answer; the one that completed the stop is the last.

    >>> class Bytes:
    ...     def decode(self, tokens): return bytes(tokens).decode("utf-8", "replace")
    >>> stream = TextStream(Bytes(), ["END"])
    >>> stream.push(list(b"an E")), stream.push(list(b"ND of")), stream.stopped, stream.count
    ('an ', '', True, 6)
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str] = ()):
        if any(not s for s in stops):
            raise ValueError("a stop string is empty: it would end every text at once")
        self._pieces, self._stops, self._held = Pieces(decoder), tuple(stops), ""
        self.stopped, self.count = False, 0

    def push(self, tokens: Sequence[int]) -> str:
        """Takes further tokens and gives the text that is certain to belong to the answer; tokens after a stop are ignored."""
        given = []
        for token in tokens:
            if self.stopped:
                break
            self.count += 1
            given.append(self._take(self._pieces.push(int(token))))
        return "".join(given)

    def finish(self) -> str:
        """The text still held back, when no more tokens come."""
        if self.stopped:
            return ""
        text = self._take(self._pieces.rest())
        held, self._held = self._held, ""
        return text if self.stopped else text + held

    def _take(self, new: str) -> str:
        if not new:
            return ""
        text = self._held + new
        found = [at for at in (text.find(s) for s in self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[:min(found)]
        keep = max((n for s in self._stops for n in range(min(len(s) - 1, len(text)), 0, -1) if text.endswith(s[:n])), default=0)
        self._held = text[len(text) - keep:]
        return text[:len(text) - keep]
