"""Measures that keep a ratio honest: which tokens lie in repeat loops, how long each part of a round takes, plain against a method.

A *loop* is a stretch of tokens that repeats with some period p <= 64, at least three times and over at least 24 tokens: the longest
stretch ``t[a:b]`` with ``t[j] == t[j - p]`` for all j in a+p .. b-1 and ``b - a >= max(3 p, 24)``. Small models fall into loops when
greedy, and loops flatter every drafter.
"""
from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import api, decode, pass_cost
from specjax import round as rounds
from specjax.model import Model
from specjax.types import Array, Method

LONGEST_PERIOD, LEAST_TOKENS, LEAST_REPEATS = 64, 24, 3


def in_loop(tokens: Sequence[int]) -> np.ndarray:
    """Which tokens lie in a repeat loop: bool[len(tokens)].

    >>> in_loop([1, 2, 3] + [7, 8] * 12 + [9]).sum(), in_loop([7, 8] * 11).sum()
    (np.int64(24), np.int64(0))
    """
    t = np.asarray(tokens)
    inside = np.zeros(len(t), bool)
    for period in range(1, min(LONGEST_PERIOD, len(t) // LEAST_REPEATS) + 1):
        same = np.concatenate([[False], t[period:] == t[:-period], [False]]).astype(np.int8)
        edges = np.diff(same)
        for start, end in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
            if end - start + period >= max(LEAST_REPEATS * period, LEAST_TOKENS):
                inside[start:end + period] = True
    return inside


def loop_share(tokens: Sequence[int]) -> float:
    """Share of tokens that lie in repeat loops, 0 for no tokens."""
    return float(in_loop(tokens).mean()) if len(tokens) else 0.0


def first_loop(tokens: Sequence[int]) -> int:
    """Number of tokens before the first loop; all of them when there is none.

    >>> first_loop([1, 2, 3] + [7, 8] * 12), first_loop([1, 2, 3])
    (3, 3)
    """
    inside = in_loop(tokens)
    return int(np.argmax(inside)) if inside.any() else len(tokens)


class Comparison(NamedTuple):
    """Plain decoding against a method on one batch, alternating in one run.

    Attributes:
      plain, made: results. plain_s, method_s: median decode seconds. prefill_s: median prefill seconds of the method.
      buckets: passes of each row count, of one run of the method.
    """

    plain: api.Result
    made: api.Result
    plain_s: float
    method_s: float
    prefill_s: float
    buckets: dict[int, int]

    @property
    def same(self) -> bool:
        """Whether the two texts are equal, token for token."""
        return self.plain.tokens == self.made.tokens


def side_by_side(model: Model, plain: tuple[Method, Any], method: tuple[Method, Any], ids: list[list[int]], *, repeats: int,
                 limits: int | list[int], temperature: float = 0.0, seed: int = 0, stop: bool = True) -> Comparison:
    """Runs both on the same batch in alternation, after one run of each that is not counted.

    Args:
      model: for its stop ids and tokenizer. plain, method: (Method, parameters). ids: prompts. repeats: counted runs of each.
      limits: most new tokens, one for all or one a prompt. temperature, seed: of both. stop: end at the stop ids.

    Returns:
      A Comparison.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    filling: list[float] = []
    last: list[Any] = [None, None]
    for counted in range(repeats + 1):
        for side, (m, params) in enumerate((plain, method)):
            start = time.perf_counter()
            state = jax.block_until_ready(decode.begin(m, params, ids, max_new_tokens=limits, temperature=temperature, seed=seed,
                                                       stop_ids=model.eos if stop else ()))
            filled = time.perf_counter()
            last[side] = state = jax.block_until_ready(decode.finish(m, params, state))
            if counted:
                seconds[side].append(time.perf_counter() - filled)
                if side:
                    filling.append(filled - start)
    buckets = dict(zip(method[0].buckets, np.asarray(last[1].statistics.shared).tolist(), strict=True))
    return Comparison(api.collect(model, plain[0], last[0]), api.collect(model, method[0], last[1]), statistics.median(seconds[0]),
                      statistics.median(seconds[1]), statistics.median(filling), buckets)


@functools.partial(jax.jit, static_argnames=("m", "steps"), compiler_options=decode.OPTIONS)
def _drafts(m: Method, params: Any, s: rounds.State, steps: int) -> Array:
    def body(_: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        ctx = rounds.context(m, params, s._replace(root=carry[0]))
        draft, drafter = m.drafter.draft(ctx, carry[1], m.controller.plan(ctx, s.controller)[0])
        # The next step must wait for every drafted token, and start from the same root.
        return jnp.where(jnp.min(draft.tokens, axis=1) < -1, 0, s.root), drafter

    return jax.lax.fori_loop(0, steps, body, (s.root, s.drafter))[0]


def cost_split(method: tuple[Method, Any], ids: list[list[int]], new_tokens: int, buckets: dict[int, int], seconds: float,
               repeats: int = 3) -> dict[str, float]:
    """Where the seconds of a run went: drafting, target passes, and the rest (verification, commit, bookkeeping).

    Drafting and passes are timed alone, on the same capacity and half of the new tokens in use, and multiplied by their counts;
    the rest is what remains of `seconds`, and may come out slightly negative.

    Returns:
      Seconds by name: draft, target_pass, rest.
    """
    m, params = method
    rows, used = len(ids), max(map(len, ids)) + new_tokens // 2
    state = decode.begin(m, params, ids, max_new_tokens=new_tokens)
    capacity = decode.capacity_for(max(map(len, ids)), new_tokens, m.rows)
    passes = sum(n * pass_cost.pass_cost(m.target, params["target"], r, rows, used, repeats=repeats, capacity=capacity).median_ms
                 for r, n in buckets.items() if n) / 1e3
    draft = pass_cost.timed(lambda: _drafts(m, params, state, 16), 16, repeats).median_ms * sum(buckets.values()) / 1e3
    draft = draft if m.depth else 0.0
    return {"draft": draft, "target_pass": passes, "rest": seconds - draft - passes}
