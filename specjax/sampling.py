"""Laws and draws: sampling settings as one piece (a warp), the exponential race, and argmax without a sort.

Temperature alone: logits -> divide by temperature -> log-softmax; `specjax.warp` has the order of all settings. Temperature 0 is the point
mass at the largest logit, lowest id on ties; never a tiny temperature. Target and drafter share the function, so both speak of one law.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import noise as coins
from specjax.types import Array, Context, Warp, piece

_BLOCK = 512


def argmax(x: Array) -> Array:
    """Index of the largest element of the last axis, lowest index on ties, by blocks.

    The maximum of each block of 512 is a reduction that vectorises; only the winning block is then searched. On a CPU this is
    several times faster than `jnp.argmax` over a vocabulary.

    Args:
      x: f[..., V], without NaN.

    Returns:
      i32[...].

    >>> int(argmax(jnp.asarray([1.0, 3.0, 3.0])))
    1
    """
    size = x.shape[-1]
    if size < 4 * _BLOCK:
        return jnp.argmax(x, axis=-1).astype(jnp.int32)
    if size % _BLOCK:
        pad = [(0, 0)] * (x.ndim - 1) + [(0, -size % _BLOCK)]
        x = jnp.pad(x, pad, constant_values=-jnp.inf)
    blocks = x.reshape(*x.shape[:-1], -1, _BLOCK)
    best = jnp.argmax(jnp.max(blocks, axis=-1), axis=-1)
    block = jnp.take_along_axis(blocks, best[..., None, None], axis=-2)[..., 0, :]
    return (best * _BLOCK + jnp.argmax(block, axis=-1)).astype(jnp.int32)


def top_ids(x: Array, count: int) -> Array:
    """Indices of the `count` largest elements of the last axis, the largest first, lowest index on ties.

    Only the `count` blocks of 512 with the largest maxima are searched: they hold the largest elements.

    Args:
      x: f[..., V], without NaN. count: at most V (static).

    Returns:
      i32[..., count].

    >>> top_ids(jnp.asarray([1.0, 3.0, 3.0, 0.0]), 3).tolist()
    [1, 2, 0]
    """
    size = x.shape[-1]
    if size < 4 * _BLOCK or size <= count * _BLOCK:
        return jax.lax.top_k(x, count)[1]
    blocks = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -size % _BLOCK)], constant_values=-jnp.inf)
    blocks = blocks.reshape(*x.shape[:-1], -1, _BLOCK)
    best = jnp.sort(jax.lax.top_k(jnp.max(blocks, axis=-1), count)[1], axis=-1)  # ascending, so that ties go to the lowest index
    found = jnp.take_along_axis(blocks, best[..., None], axis=-2).reshape(*x.shape[:-1], -1)
    at = jax.lax.top_k(found, count)[1]
    return jnp.take_along_axis(best, at // _BLOCK, axis=-1) * _BLOCK + at % _BLOCK


def race(log_p: Array, times: Array) -> Array:
    """The winner of the exponential race: a sample of ``exp(log_p)`` when `times` are rate-1 exponentials.

    Args:
      log_p: f[..., V], normalised or not. times: f[..., V].

    Returns:
      i32[...] argmax of p / times.
    """
    return argmax(race_values(log_p, times))


def race_values(log_p: Array, times: Array) -> Array:
    """The race's finishing values f[..., V], larger is earlier; the k largest are k draws without replacement, in order."""
    top = jnp.max(log_p, axis=-1, keepdims=True)
    return jnp.exp(log_p - top) / times.astype(log_p.dtype)


def log_normalize(log_w: Array) -> Array:
    """Log-probabilities from log-weights over the last axis."""
    return log_w - jax.scipy.special.logsumexp(log_w, axis=-1, keepdims=True)


def point_mass(token: Array, size: int, dtype: np.dtype) -> Array:
    """Log-probabilities f[..., size] of the law that always gives `token` i32[...]."""
    ids = jnp.arange(size).reshape((1,) * token.ndim + (size,))
    return jnp.where(ids == token[..., None], 0.0, -jnp.inf).astype(dtype)


class TemperatureState(NamedTuple):
    """Temperature of each row: f32[B]."""

    temperature: Array


@piece
def temperature() -> Warp:
    """The warp of temperature alone, for requests that ask for nothing else (see `specjax.warp` for all settings).

    Returns:
      A Warp whose state is `TemperatureState`.

    >>> warp = temperature()
    >>> law = warp.law(TemperatureState(jnp.zeros(1)), jnp.asarray([[[1.0, 2.0, 2.0]]]), None, None)
    >>> [float(p) for p in jnp.exp(law)[0, 0]]
    [0.0, 1.0, 0.0]
    """

    def wishes(settings: Sequence[Any], vocab: int) -> np.ndarray:
        del vocab
        return np.asarray([s.temperature for s in settings], np.float32)

    def init(wanted: Array, prompt: Array, length: Array, vocab: int) -> TemperatureState:
        del prompt, length, vocab
        return TemperatureState(wanted)

    def adjust(w: TemperatureState, logits: Array, path: Array, depth: Array) -> Array:
        del w, path, depth
        return logits

    def law(w: TemperatureState, logits: Array, path: Array, depth: Array) -> Array:
        del path, depth
        cold = (w.temperature <= 0)[:, None, None]
        # A division by a reciprocal would round differently for t = 1: divide.
        soft = log_normalize(logits / jnp.where(cold, 1.0, w.temperature[:, None, None]).astype(logits.dtype))
        hard = lambda: jnp.where(cold, point_mass(argmax(logits), logits.shape[-1], logits.dtype), soft)  # noqa: E731
        return jax.lax.cond(jnp.any(cold), hard, lambda: soft)

    def observe(w: TemperatureState, tokens: Array, count: Array) -> TemperatureState:
        del tokens, count
        return w

    def greedy(w: TemperatureState) -> Array:
        return w.temperature <= 0

    return Warp(init, adjust, law, observe, greedy, wishes)


def check_temperature(value: float) -> float:
    """Returns `value` if it is a usable temperature.

    Raises:
      ValueError: negative, NaN or infinite.
    """
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"temperature is {value}: it must be a finite number, 0 (greedy) or more")
    return float(value)


def laws(ctx: Context, logits: Array, path: Array, depth: Array) -> Array:
    """The warp of each request on T rows of logits.

    Args:
      ctx: the round. logits: f[B,T,V]. path: i32[B,T,K] tokens from the root's child to the row, -1 padded. depth: i32[B,T] of each row.

    Returns:
      f[B,T,V] log-probabilities.
    """
    return ctx.warp.law(ctx.warp_state, logits, path, depth)


def adjusted(ctx: Context, logits: Array, path: Array, depth: Array) -> Array:
    """The logits f[B,T,V] with everything that settings change before temperature; arguments as for `laws`."""
    return ctx.warp.adjust(ctx.warp_state, logits, path, depth)


def text_times(ctx: Context, depth: Array, ids: Array) -> Array:
    """The text's own noise for the token at `depth` below the root: f[B,U], or f[B,T,U] when `depth` is i32[B,T]."""
    if ctx.noise.table is not None:
        return coins.race_times(ctx.noise, coins.TEXT, ctx.index, depth, ids)
    index = ctx.index.reshape(ctx.index.shape + (1,) * (depth.ndim - 1))
    return coins.race_times(ctx.noise, coins.TEXT, index + depth, 0, ids)


def draw_times(ctx: Context, depth: Array, row: Array, ids: Array) -> Array:
    """The noise of a drafter's draws below row `row`.

    Coupled compositions draw with the text's own noise, so that drafter and target agree as often as a shared race can:
    at least (1 - TV) / (1 + TV). Others use coins of their own, keyed by stream, root's output index and row.

    Args:
      ctx: the round. depth: i32[B,T] depth of the drawn tokens. row: i32[B,T] row below which they hang. ids: i32[U].

    Returns:
      f[B,T,U].
    """
    own = lambda: coins.race_times(ctx.noise, coins.DRAW, ctx.index[:, None], row, ids)  # noqa: E731
    if isinstance(ctx.noise.coupled, bool):
        return text_times(ctx, depth, ids) if ctx.noise.coupled else own()
    return jnp.where(ctx.noise.coupled[:, None, None], text_times(ctx, depth, ids), own())
