"""Continuous batching: requests come and go while others decode, through the same round as everything else.

Slots are batch rows. A step prefills one chunk of the request that is next, puts it into a free slot when its prompt is done, and runs a few
rounds of all slots. The state has one of a few widths (1, 2, 4, ...): it grows when requests come and shrinks when they go, so that a lonely
request pays for one row; all programs are compiled by `warm_up`, none afterwards. A request's text does not depend on its slot, the width or its
neighbours (under `match`), because its coins are keyed by its own seed and id.

The engine is driven by one thread (`step`, or `specjax.serving.worker`); `submit` and `Ticket.cancel` may be called from any.
"""
from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode, requests
from specjax import round as rounds
from specjax.model import Model
from specjax.serving import slots
from specjax.serving.prefixes import Prefixes
from specjax.serving.tickets import Busy, Event, Limits, Ticket, check_grammar, check_limits
from specjax.settings import Settings
from specjax.statistics import Summary, summarize
from specjax.text_stream import TextStream
from specjax.types import Method


class _Preparing(NamedTuple):
    """A request whose prompt is being read: a state of one row."""

    ticket: Ticket
    row: rounds.State
    prompt: jax.Array
    length: int
    position: int


class Engine:
    """Decodes many requests together.

    Args:
      model, method, params: what to run; `params` as from `specjax.api.bind`. limits: sizes.

    Raises:
      ValueError: limits that contradict each other or the model.
    """

    def __init__(self, model: Model, method: Method, params: dict[str, Any], limits: Limits | None = None):
        limits = limits or Limits()
        check_limits(limits, method)
        self.model, self.params, self.limits = model, params, limits
        self.method = requests.fully_equipped(method, limits.logprobs)
        self.widths = tuple(sorted({*(2**i for i in range(limits.slots.bit_length())), limits.slots}))
        self._chunks = tuple(sorted({min(16, limits.chunk), limits.chunk}))
        self._waiting: collections.deque[Ticket] = collections.deque()
        self._lock = threading.Lock()
        self._preparing: _Preparing | None = None
        self._held: list[Ticket | None] = [None]
        self._state = self._blank(1)
        self._idle_steps = 0
        self._prefixes = Prefixes(limits.kept)
        self.counts = collections.Counter()

    # ---- what callers use

    def submit(self, prompt: Sequence[int], settings: Settings | None = None, listener: Callable[[Event], None] | None = None) -> Ticket:
        """Queues a request.

        Args:
          prompt: token ids. settings: of this request alone. listener: called with every Event, in the thread that drives the engine.

        Returns:
          Its Ticket.

        Raises:
          ValueError: a request that can never be served; the value and the limit are named. Busy: the queue is full.
        """
        settings = settings or Settings()
        requests.check(self.method, [list(prompt)], [settings])
        check_grammar(settings, self.limits.grammar)
        if settings.max_new_tokens > self.limits.new_tokens:
            raise ValueError(f"max_new_tokens is {settings.max_new_tokens}: this engine gives at most {self.limits.new_tokens}")
        need = len(prompt) + settings.max_new_tokens + self._slack
        if need > self.limits.capacity:
            raise ValueError(f"{len(prompt)} prompt tokens + {settings.max_new_tokens} new tokens + {self._slack} rows of a pass exceed the capacity "
                             f"of {self.limits.capacity}")
        if settings.n != 1:
            raise ValueError(f"n is {settings.n}: submit one request for each sample, with request ids of their own")
        ticket = Ticket(prompt, settings, listener, TextStream(self.model, settings.stop))
        with self._lock:
            if len(self._waiting) >= self.limits.queue:
                raise Busy(f"{len(self._waiting)} requests are waiting, which is the limit")
            self._waiting.append(ticket)
        return ticket

    def room_for(self, prompt: int) -> int:
        """Most new tokens that a prompt of `prompt` tokens leaves room for; may be negative."""
        return min(self.limits.new_tokens, self.limits.capacity - self._slack - prompt)

    @property
    def active(self) -> int:
        """Requests in slots."""
        return sum(t is not None for t in self._held)

    @property
    def pending(self) -> int:
        """Requests not yet in a slot."""
        return len(self._waiting) + (self._preparing is not None)

    def step(self) -> bool:
        """One turn of the engine: a prefill chunk, a few rounds, news to the listeners.

        Returns:
          Whether there was anything to do.
        """
        self._drop_cancelled()
        self._prepare()
        if self.active:
            self._state = decode.run(self.method, self.params, self._state, jnp.int32(self.limits.rounds))
            self._deliver()
            self.counts["steps"] += 1
            self._fit_width()
        return bool(self.active or self.pending)

    def run(self) -> None:
        """Steps until nothing is left to do."""
        while self.step():
            pass

    def cancel_all(self) -> None:
        """Asks every request to end."""
        with self._lock:
            tickets = list(self._waiting)
        for ticket in [*tickets, *self._held, *([self._preparing.ticket] if self._preparing else [])]:
            if ticket is not None:
                ticket.cancel()

    def abandon(self) -> None:
        """Tells every request that the engine has failed; nothing on the device is touched."""
        with self._lock:
            tickets, self._waiting = list(self._waiting), collections.deque()
        for ticket in [*tickets, *self._held, *([self._preparing.ticket] if self._preparing else [])]:
            if ticket is not None:
                self._finish(ticket, "error")
        self._held, self._preparing = [None] * len(self._held), None

    def warm_up(self) -> None:
        """Compiles every program that traffic can need, by running each once on rows that are finished."""
        row = self._fresh([1], Settings(max_new_tokens=1, stop_ids=()))[0]
        prompt = jnp.zeros((1, self.limits.capacity), jnp.int32)
        for chunk in self._chunks:
            row = decode.prefill_chunk(self.method, self.params, row, prompt, jnp.ones(1, jnp.int32), chunk)
        state = self._state
        for old, new in zip(self.widths, self.widths[1:], strict=False):
            state = slots.arrange(state, jnp.asarray([*range(old), *[-1] * (new - old)], jnp.int32))
        for new in reversed(self.widths):
            if state.root.shape[0] != new:
                state = slots.arrange(state, jnp.arange(new, dtype=jnp.int32))
            state = slots.put(state, row._replace(reason=jnp.full(1, rounds.STOPPED, jnp.int32)), jnp.int32(0))
            state = slots.halt(state, jnp.zeros(new, bool))
            state = decode.run(self.method, self.params, state, jnp.int32(1))
            slots.take(state, jnp.int32(0))
            jax.tree.map(np.array, self._news(state))
        self._state = jax.block_until_ready(state)

    # ---- the parts of a step

    @property
    def _slack(self) -> int:
        return max(self.method.rows, self.limits.chunk)

    def _blank(self, width: int) -> rounds.State:
        row = self._fresh([1], Settings(max_new_tokens=1))[0]
        return slots.arrange(row, jnp.full(width, -1, jnp.int32))

    def _fresh(self, prompt: Sequence[int], settings: Settings) -> tuple[rounds.State, jax.Array]:
        """(A state of one row at position 0, the padded prompt)."""
        padded = np.zeros((1, self.limits.capacity), np.int32)
        padded[0, :len(prompt)] = prompt
        row = decode.fresh(self.method, self.params, [list(prompt)], [settings], capacity=self.limits.capacity, room=self.limits.new_tokens,
                           grammar=self.limits.grammar)
        return row, jnp.asarray(padded)

    def _drop_cancelled(self) -> None:
        with self._lock:
            gone = [t for t in self._waiting if t.cancelled]
            self._waiting = collections.deque(t for t in self._waiting if not t.cancelled)
        if self._preparing is not None and self._preparing.ticket.cancelled:
            gone.append(self._preparing.ticket)
            self._state = slots.with_shared(self._state, self._preparing.row)
            self._preparing = None
        held = np.asarray([t is not None and t.cancelled for t in self._held])
        if held.any():
            self._state = slots.halt(self._state, jnp.asarray(held))
            for slot in np.flatnonzero(held):
                gone.append(self._held[slot])
                self._held[slot] = None
        for ticket in gone:
            self._finish(ticket, "cancelled")

    def _prepare(self) -> None:
        """Reads prompts: one chunk while others decode, whole prompts while nothing does."""
        while True:
            if self._preparing is None and not self._next():
                return
            p = self._preparing
            if p.position < p.length - 1:
                left = p.length - 1 - p.position
                chunk = next((c for c in self._chunks if c >= left), self._chunks[-1])
                row = slots.with_shared(p.row, self._state)
                row = decode.prefill_chunk(self.method, self.params, row, p.prompt, jnp.asarray([p.length], jnp.int32), chunk)
                self._state = slots.with_shared(self._state, row)
                self._preparing = p = p._replace(row=row, position=min(p.position + chunk, p.length - 1))
                self.counts["prefill_chunks"] += 1
            if p.position >= p.length - 1:
                self._place(p)
                self._preparing = None
            if self.active:
                return

    def _next(self) -> bool:
        if self.active >= self.limits.slots:
            return False
        with self._lock:
            if not self._waiting:
                return False
            ticket = self._waiting.popleft()
        ticket.started = time.perf_counter()
        row, prompt = self._fresh(ticket.prompt, ticket.settings)
        found = self._prefixes.longest(ticket.prompt)
        if found is not None:
            row, ticket.reused = slots.continued(found.row, row), found.length
        self._preparing = _Preparing(ticket, row, prompt, len(ticket.prompt), ticket.reused)
        return True

    def _place(self, p: _Preparing) -> None:
        if None not in self._held:
            self._resize(next(w for w in self.widths if w > len(self._held)), list(range(len(self._held))))
        slot = self._held.index(None)
        self._held[slot] = p.ticket
        self._state = slots.put(self._state, p.row, jnp.int32(slot))
        self.counts["admitted"] += 1

    def _resize(self, width: int, keep: list[int]) -> None:
        self._state = slots.arrange(self._state, jnp.asarray([*keep, *[-1] * (width - len(keep))], jnp.int32))
        self._held = [*(self._held[i] for i in keep), *[None] * (width - len(keep))]

    def _fit_width(self) -> None:
        """Shrinks by one width after some steps that would have fitted; growing happens when a request is placed."""
        smaller = [w for w in self.widths if w < len(self._held)]
        fits = bool(smaller) and 0 < self.active <= smaller[-1] and not self.pending
        self._idle_steps = self._idle_steps + 1 if fits else 0
        if self._idle_steps >= 4:
            self._idle_steps = 0
            keep = [i for i, t in enumerate(self._held) if t is not None]
            self._resize(smaller[-1], keep + [i for i in range(len(self._held)) if i not in keep][:smaller[-1] - len(keep)])

    @staticmethod
    def _news(state: rounds.State) -> tuple[Any, ...]:
        return state.index, state.reason, state.tokens, state.logprobs

    def _deliver(self) -> None:
        index, reason, tokens, logprobs = jax.tree.map(np.array, self._news(self._state))
        now, ended = time.perf_counter(), []
        for slot, ticket in enumerate(self._held):
            if ticket is None:
                continue
            new = tokens[slot, len(ticket.tokens):index[slot] + 1].tolist()
            before = ticket._stream.count
            text = ticket._stream.push(new)
            new = new[:ticket._stream.count - before]
            if new and ticket.first is None:
                ticket.first = now
            why = "stop" if ticket._stream.stopped else {rounds.STOPPED: "stop", rounds.FULL: "length"}.get(int(reason[slot]))
            if why is not None:
                text += ticket._stream.finish()
                why = "stop" if ticket._stream.stopped else why
                ended.append(slot)
            some = None if ticket.settings.logprobs is None else requests.logprobs_of(logprobs, slot, len(ticket.tokens), len(new), ticket.settings)
            ticket.tokens += new
            ticket.text += text
            if some is not None:
                ticket.logprobs = (ticket.logprobs or []) + some
            if why is None and (new or text):
                self._tell(ticket, Event(text, new, None, some))
            elif why is not None:
                self._finish(ticket, why, slot, Event(text, new, why, some))
        if ended:
            running = np.asarray([s in ended for s in range(len(self._held))])
            self._state = slots.halt(self._state, jnp.asarray(running))
            for slot in ended:
                self._held[slot] = None

    def _finish(self, ticket: Ticket, reason: str, slot: int | None = None, event: Event | None = None) -> None:
        ticket.reason, ticket.finished = reason, time.perf_counter()
        if slot is not None:
            counts = jax.tree.map(np.array, self._state.statistics)
            ticket.statistics = _count_delivered(summarize(counts, self.method.drafter.sources, slice(slot, slot + 1)), len(ticket.tokens))
            if self.limits.kept:
                made = np.array(self._state.tokens[slot])[:int(self._state.index[slot]) + 1].tolist()
                self._prefixes.keep(ticket.prompt + made, lambda: slots.take(self._state, jnp.int32(slot)), int(self._state.position[slot]))
        self.counts[reason] += 1
        self._tell(ticket, event or Event("", [], reason))
        ticket._done.set()

    def _tell(self, ticket: Ticket, event: Event) -> None:
        if ticket.listener is None:
            return
        try:
            ticket.listener(event)
        except Exception:  # a listener's fault is that request's alone
            self.counts["listener_errors"] += 1
            ticket.cancelled = True


def _count_delivered(summary: Summary, tokens: int) -> Summary:
    """Usage is what was delivered: tokens behind a stop string were made, and are not charged."""
    return dataclasses.replace(summary, tokens=tokens)
