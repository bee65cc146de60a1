"""One counter-based generator for every coin, usable inside kernels: no key chains, so that a kernel, a vocabulary shard, a
padded batch and the reference draw the same coins.

A coin is a function of its coordinates: ``bits = mix(mix(id * odd ^ a) ^ b)`` where the two words a and b hash
(seed, request, stream, purpose, index, row). An exponential of rate 1 is ``E = -log1p(-v)``, ``v = (bits + 1/2) / 2^32``, and
the winner of the race ``argmax_x p(x) / E_x`` is a sample of p (Gumbel's trick in linear form: the fine end of float32 lies
at E = 0, where winners are).

Two keyings. *Coupled* coins depend on (request, output index, token id) only: `match` verification and the drafters coupled
to it. Everything tested by coins uses (request, stream, root's output index, row, token id): keyed by position alone,
rejection rules are biased.
"""
from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax.types import Array

TEXT, DRAW, ACCEPT, EXTRA = range(4)
"""Purposes: the text's own noise; a drafter's draw; a verifier's accept test; the token after the path."""

_GOLDEN = np.uint32(0x9E3779B9)
_M1 = np.uint32(0x7FEB352D)
_M2 = np.uint32(0x846CA68B)


class Noise(NamedTuple):
    """Where a request's coins come from.

    Attributes:
      seed: u32[] or u32[B]. request: i32[B] explicit request ids, never batch row or slot.
      coupled: drafters may draw with the text's own noise; static, or bool[B] where each row of a batch says so.
      stream: static id of the drafter in the composition.
      table: None, or `given_key` -> f[B,rows,...] given coins (enumeration of exact laws runs the same code on given coins).
    """

    seed: Array
    request: Array
    coupled: bool | Array = False
    stream: int = 0
    table: dict | None = None


def child(noise: Noise, number: int) -> Noise:
    """The noise of drafter `number` inside a combinator: another stream, the same request.

    >>> n = Noise(jnp.uint32(0), jnp.zeros(1, jnp.int32))
    >>> [child(n, 0).stream, child(child(n, 1), 0).stream]
    [1, 17]
    """
    return noise._replace(stream=noise.stream * 8 + number + 1)


def given_key(purpose: int, stream: int = 0) -> int:
    """Where `Noise.table` holds the coins of a purpose and stream; the text's own noise has no stream.

    >>> given_key(DRAW), given_key(DRAW, 2), given_key(TEXT, 2)
    (1, 9, 0)
    """
    return purpose if purpose == TEXT else purpose + 4 * stream


def mix(x: Array) -> Array:
    """A 32-bit bijection whose output bits each depend on all input bits (two multiplications; Wellons' constants)."""
    x = x ^ (x >> 16)
    x = x * _M1
    x = x ^ (x >> 15)
    x = x * _M2
    return x ^ (x >> 16)


def _u32(x: Array | int) -> Array:
    return jnp.asarray(x).astype(jnp.uint32)


def words(noise: Noise, purpose: int, index: Array, row: Array | int) -> tuple[Array, Array]:
    """Hashes the coordinates of a coin into two 32-bit words.

    Args:
      noise: the source. purpose: TEXT, DRAW, ACCEPT or EXTRA (static).
      index: i32[B,...] output index. row: i32, same rank or a scalar.

    Returns:
      (a, b): u32, the broadcast shape of the arguments.
    """
    index, row = _u32(index), _u32(row)
    wide = lambda x: _u32(x).reshape(x.shape + (1,) * (index.ndim - x.ndim))  # noqa: E731
    request, seed = wide(noise.request), wide(jnp.asarray(noise.seed))
    label = np.uint32((purpose * 0x01000193 + (0 if purpose == TEXT else noise.stream) * 0x5BD1E995) & 0xFFFFFFFF)
    row = jnp.broadcast_to(row, index.shape) if row.ndim < 2 else row
    index = jnp.broadcast_to(index, jnp.broadcast_shapes(index.shape, row.shape))
    a = jnp.broadcast_to(mix(seed ^ _GOLDEN), index.shape)
    a = mix(a + request * np.uint32(0xC2B2AE35))
    a = mix(a ^ (index * np.uint32(0x27D4EB2F) + label))
    a = mix(a + row * np.uint32(0x165667B1))
    return a, mix(a ^ np.uint32(0x85EBCA6B)) + index * _GOLDEN


def bits(a: Array, b: Array, ids: Array) -> Array:
    """32 random bits for each token id under the words (a, b); shapes broadcast."""
    x = _u32(ids) * _GOLDEN + a
    x = x ^ (x >> 16)
    x = x * _M1
    x = x ^ b
    x = x ^ (x >> 15)
    x = x * _M2
    return x ^ (x >> 16)


def uniform_from(word: Array) -> Array:
    """f32 in (0, 1), never 0 or 1, from 32 bits (23 are kept: with 24 the largest would round to 1).

    >>> bool(uniform_from(jnp.uint32(0xFFFFFFFF)) < 1), bool(uniform_from(jnp.uint32(0)) > 0)
    (True, True)
    """
    return ((word >> 9).astype(jnp.float32) + 0.5) * np.float32(2.0**-23)


def exponential_from(word: Array) -> Array:
    """f32 exponential of rate 1 from 32 bits; resolution 2^-32 near 0, where winners of a race are.

    v is kept as ``m 2^-32`` with m rounded to 24 significant bits, so small v are exact and v = 1 cannot occur.
    """
    v = (word.astype(jnp.float32) + 0.5) * np.float32(2.0**-32)
    return -jnp.log1p(-jnp.minimum(v, np.float32(1 - 2.0**-24)))


def uniform(noise: Noise, purpose: int, index: Array, row: Array | int) -> Array:
    """One uniform for each (index, row) coordinate.

    Args:
      noise, purpose, index, row: as in `words`.

    Returns:
      f[broadcast shape]; from `noise.table` when coins are given.
    """
    if noise.table is not None:
        return _lookup(noise.table[given_key(purpose, noise.stream)], row)
    return uniform_from(words(noise, purpose, index, row)[0])


def race_times(noise: Noise, purpose: int, index: Array, row: Array | int, ids: Array) -> Array:
    """One exponential for each (index, row) coordinate and token id.

    Args:
      noise, purpose, index, row: as in `words`. ids: i32[U] token ids.

    Returns:
      f[broadcast shape, U].
    """
    if noise.table is not None:
        return _lookup(noise.table[given_key(purpose, noise.stream)], row)
    a, b = words(noise, purpose, index, row)
    return exponential_from(bits(a[..., None], b[..., None], ids.reshape((1,) * a.ndim + ids.shape)))


def _lookup(table: Array, row: Array | int) -> Array:
    """Given coins f[B,rows,...] at `row` (a scalar, or i32[B,T])."""
    row = jnp.asarray(row)
    if row.ndim == 0:
        return table[:, row]
    if row.ndim == 1:
        return table[jnp.arange(table.shape[0]), row]
    return table[jnp.arange(table.shape[0])[:, None], row]
