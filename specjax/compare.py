"""A method beside plain decoding in one run: the same prompts, the same loop, repetitions in alternation, medians of the decode time.

Prefill is timed apart. Both sides are compiled before the first timed repetition.
"""
from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import api, decode
from specjax import round as rounds
from specjax.model import Model
from specjax.statistics import Summary, summarize
from specjax.types import Method


class Side(NamedTuple):
    """A composition with its parameters."""

    method: Method
    params: dict[str, Any]


class Settings(NamedTuple):
    """What both sides are asked for: tokens a prompt (one number, or one a prompt), temperature, seed, timed repetitions of each side, and
    whether the model's stop ids end a text."""

    max_new_tokens: int | list[int]
    temperature: float = 0.0
    seed: int = 0
    repeats: int = 3
    stop: bool = True


class Timed(NamedTuple):
    """One side on one batch.

    Attributes:
      result: what it made. statistics: the counts behind it, on the host. passes: rows -> target passes of that size.
      prefill_s, decode_s: medians.
    """

    result: api.Result
    statistics: rounds.Statistics
    passes: dict[int, int]
    prefill_s: float
    decode_s: float

    @property
    def tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(len(t) for t in self.result.tokens)


def begin(model: Model, side: Side, ids: list[list[int]], requests: Sequence[int], settings: Settings) -> rounds.State:
    """The prefilled state of a batch on one side."""
    return jax.block_until_ready(decode.begin(
        side.method, side.params, ids, max_new_tokens=settings.max_new_tokens, temperature=settings.temperature, seed=settings.seed,
        request_ids=list(requests), stop_ids=model.eos if settings.stop else ()))


def advance(side: Side, state: rounds.State, budget: int) -> rounds.State:
    """The state after at most `budget` rounds."""
    return jax.block_until_ready(decode.run(side.method, side.params, state, jnp.int32(budget)))


def compare(model: Model, sides: Sequence[Side], ids: list[list[int]], requests: Sequence[int], settings: Settings) -> tuple[Timed, ...]:
    """Times every side on one batch, in alternation.

    Args:
      model: the model of all sides. sides: compositions. ids: prompts. requests: request ids, one a prompt. settings: of the run.

    Returns:
      One Timed a side.
    """
    seconds: list[list[tuple[float, float]]] = [[] for _ in sides]
    made: list[Any] = [None] * len(sides)
    for side in sides:
        advance(side, begin(model, side, ids, requests, settings), 1)
    for _ in range(settings.repeats):
        for i, side in enumerate(sides):
            first = time.perf_counter()
            state = begin(model, side, ids, requests, settings)
            second = time.perf_counter()
            state = advance(side, state, 2**31 - 1)
            seconds[i].append((second - first, time.perf_counter() - second))
            counts = jax.tree.map(np.array, state.statistics)
            passes = dict(zip(side.method.buckets, counts.shared.tolist(), strict=True))
            made[i] = (api.collect(model, side.method, state), counts, passes)
    return tuple(Timed(*what, *(statistics.median(s) for s in zip(*times, strict=True))) for what, times in zip(made, seconds, strict=True))


def total(sides: Sequence[Timed], sources: tuple[str, ...]) -> Summary:
    """The statistics of one method over all its batches.

    Args:
      sides: the method on each batch. sources: names of its drafters.
    """
    together = [np.concatenate(leaves) for leaves in zip(*(s.statistics[:-1] for s in sides), strict=True)]
    return summarize(rounds.Statistics(*together, np.sum([s.statistics.shared for s in sides], axis=0)), sources)


def middle(model: Model, side: Side, ids: list[list[int]], requests: Sequence[int], settings: Settings, passes: int) -> rounds.State:
    """A state half-way through a generation of `passes` rounds."""
    return advance(side, begin(model, side, ids, requests, settings), max(1, passes // 2))
