"""What an engine takes and gives: its limits, tickets of requests, news of them."""
from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specjax.settings import Settings
from specjax.text_stream import TextStream
from specjax.types import Method


class Busy(RuntimeError):
    """The queue is full: the request was not taken, and may be tried again later."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What an engine may hold; everything is allocated for these sizes and never grows beyond them.

    Attributes:
      slots: most requests decoded together. capacity: cache slots of one request: its prompt, its new tokens and the rows of one pass.
      new_tokens: most tokens of one answer. queue: most requests waiting. rounds: rounds between two looks from the host.
      chunk: prompt tokens prefilled in one step while others decode. kept: finished conversations whose caches wait to be continued.
      logprobs: most alternatives beside a token's log-probability. grammar: (states, classes of tokens) of the largest grammar, (0, 0) = none.
    """

    slots: int = 8
    capacity: int = 2048
    new_tokens: int = 1024
    queue: int = 64
    rounds: int = 4
    chunk: int = 64
    kept: int = 0
    logprobs: int = 5
    grammar: tuple[int, int] = (0, 0)


class Event(NamedTuple):
    """News of a request.

    Attributes:
      text: new text, certain to belong to the answer. tokens: new token ids. reason: None while it runs, then "stop", "length" or "cancelled".
      logprobs: of the new tokens, when they were asked for.
    """

    text: str
    tokens: list[int]
    reason: str | None = None
    logprobs: Any = None


class Ticket:
    """A submitted request and, later, its answer.

    Attributes:
      prompt, settings: as submitted. tokens, text, reason, logprobs: the answer so far. statistics: its counts, once it is finished.
      reused: prompt tokens whose cache was taken over from an earlier request. arrived, started, first, finished: seconds of `time.perf_counter`.
    """

    def __init__(self, prompt: Sequence[int], settings: Settings, listener: Callable[[Event], None] | None, stream: TextStream):
        self.prompt, self.settings, self.listener, self._stream = list(prompt), settings, listener, stream
        self.tokens: list[int] = []
        self.text, self.reason, self.logprobs, self.statistics, self.reused = "", None, None, None, 0
        self.arrived, self.started, self.first, self.finished = time.perf_counter(), None, None, None
        self.cancelled, self._done = False, threading.Event()

    def cancel(self) -> None:
        """Asks the engine to end the request; its slot is free after the next step."""
        self.cancelled = True

    def wait(self, timeout: float | None = None) -> bool:
        """Until the request is finished; False if `timeout` seconds passed first."""
        return self._done.wait(timeout)


def check_grammar(s: Settings, most: tuple[int, int]) -> None:
    """Refuses a grammar whose tables are larger than `most` (states, classes).

    Raises:
      ValueError: with both sizes.
    """
    if s.grammar is not None and any(have > room for have, room in zip(s.grammar.following.shape, most, strict=True)):
        states, classes = s.grammar.following.shape
        raise ValueError(f"the grammar {s.grammar.source!r} has {states} states and {classes} classes of tokens: this engine has room for {most[0]} "
                         f"and {most[1]}")


def check_limits(limits: Limits, method: Method) -> None:
    """Refuses limits that contradict each other or the method's target.

    Raises:
      ValueError: the limit and the rule are named.
    """
    for name, value, least in (("slots", limits.slots, 1), ("new_tokens", limits.new_tokens, 1), ("queue", limits.queue, 1),
                               ("rounds", limits.rounds, 1), ("chunk", limits.chunk, 1), ("kept", limits.kept, 0), ("logprobs", limits.logprobs, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}: it must be at least {least}")
    slack = max(method.rows, limits.chunk)
    if limits.capacity < 2 + slack:
        raise ValueError(f"capacity is {limits.capacity}: a pass alone takes {slack} slots")
    if limits.capacity > method.target.context + slack:
        raise ValueError(f"capacity is {limits.capacity}: the target's context holds {method.target.context} tokens")
