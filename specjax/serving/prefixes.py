"""Finished conversations whose caches wait to be continued: a chat's next turn starts where the last one ended.

A kept row is a state of one row with its cache and its drafter's state; a new prompt may continue it when the row's whole text is a prefix of
the prompt. Nothing is cut back, so recurrent targets are served as well as attention. The least recently used row goes first.
"""
from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Kept(NamedTuple):
    """A text with its state: `tokens` of the text, the root last; `length` of them are in the cache; `row` is the state of one row."""

    tokens: tuple[int, ...]
    length: int
    row: Any


class Prefixes:
    """At most `size` kept rows.

    >>> kept = Prefixes(2)
    >>> kept.keep([1, 2, 3], lambda: "row", 2)
    >>> kept.longest([1, 2, 3, 4]).length, kept.longest([1, 2, 4]), kept.longest([1, 2, 3])
    (2, None, None)
    """

    def __init__(self, size: int):
        self._size, self._rows = size, collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, tokens: Sequence[int], row: Callable[[], Any], length: int) -> None:
        """Keeps a text; `row` is called only if there is room for any. A kept text that this one continues is replaced."""
        if not self._size or length < 1:
            return
        tokens = tuple(tokens)
        for old in [t for t in self._rows if tokens[:len(t)] == t]:
            del self._rows[old]
        while len(self._rows) >= self._size:
            self._rows.popitem(last=False)
        self._rows[tokens] = Kept(tokens, length, row())

    def longest(self, prompt: Sequence[int]) -> Kept | None:
        """The longest kept text that is a proper prefix of `prompt`, or None."""
        fitting = [t for t in self._rows if len(t) < len(prompt) and tuple(prompt[:len(t)]) == t]
        if not fitting:
            return None
        best = max(fitting, key=len)
        self._rows.move_to_end(best)
        return self._rows[best]
