"""The key/value cache of a transformer: read by a pass, written only by `commit`.

A pass puts its rows into *scratch*; the accepted path is *selected* from scratch and *committed* behind the used length.
What is not committed was never written, so there is no rollback.

Layout: keys ``[B, G, S, d]`` and values TRANSPOSED ``[B, G, d, S]``. Both products of attention then have the cache as their
left operand with rows contiguous, which a CPU reads once and unpacked. One array a layer: a forward can read one layer
without touching the others, and `commit` updates each in place.
"""
from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.types import Array


class KeyValues(NamedTuple):
    """Rows of every layer: `k` L x f[B,G,n,d], `v` L x f[B,G,d,n]; a scratch (n = R) or a selection (n = K + 1)."""

    k: tuple[Array, ...]
    v: tuple[Array, ...]


class Cache(NamedTuple):
    """Committed rows.

    Attributes:
      k: L x f[B,G,S,d]. v: L x f[B,G,d,S].
      length: i32[B] slots in use. position: i32[B] position in the text of the next row; equal to `length` unless the
        cache holds only part of the text.
    """

    k: tuple[Array, ...]
    v: tuple[Array, ...]
    length: Array
    position: Array


def rows(layers: int, batch: int, heads: int, head_dim: int, count: int, dtype: jnp.dtype) -> KeyValues:
    """Zero-filled rows: an empty scratch."""
    return KeyValues(tuple(jnp.zeros((batch, heads, count, head_dim), dtype) for _ in range(layers)),
                     tuple(jnp.zeros((batch, heads, head_dim, count), dtype) for _ in range(layers)))


def init(layers: int, batch: int, heads: int, head_dim: int, capacity: int, dtype: jnp.dtype) -> Cache:
    """An empty cache of `capacity` slots.

    >>> init(2, 1, 3, 4, 16, jnp.float32).v[0].shape
    (1, 3, 4, 16)
    """
    empty = rows(layers, batch, heads, head_dim, capacity, dtype)
    return Cache(empty.k, empty.v, jnp.zeros(batch, jnp.int32), jnp.zeros(batch, jnp.int32))


def write_rows(scratch_k: Array, scratch_v: Array, k: Array, v: Array, at: Array | int) -> tuple[Array, Array]:
    """Puts T rows of one layer into scratch at slot `at`; a write of all slots replaces the scratch.

    Args:
      scratch_k: f[B,G,R,d]. scratch_v: f[B,G,d,R]. k: f[B,G,T,d]. v: f[B,G,d,T]. at: i32[].

    Returns:
      The new (scratch_k, scratch_v).
    """
    if k.shape == scratch_k.shape:
        return k, v
    zero = jnp.int32(0)
    at = jnp.asarray(at, jnp.int32)
    return (jax.lax.dynamic_update_slice(scratch_k, k, (zero, zero, at, zero)),
            jax.lax.dynamic_update_slice(scratch_v, v, (zero, zero, zero, at)))


def select(scratch: KeyValues, path: Array) -> KeyValues:
    """The rows of `path` i32[B,K+1] from scratch, -1 read as row 0 (never committed)."""
    at = jnp.maximum(path, 0)
    if scratch.k[0].shape[2] == 1 and path.shape[1] == 1:
        return scratch
    return KeyValues(tuple(jnp.take_along_axis(k, at[:, None, :, None], axis=2) for k in scratch.k),
                     tuple(jnp.take_along_axis(v, at[:, None, None, :], axis=3) for v in scratch.v))


def commit(cache: Cache, taken: KeyValues, count: Array) -> Cache:
    """Appends the first `count` of the taken rows of each batch row.

    All taken rows are written behind the used length, and only `count` of them become part of it: the rest is overwritten by
    the next commit and read by nobody. Capacity must leave that slack (`dynamic_update_slice` clamps: an overflowing write
    would land on earlier cells), see `specjax.decode.capacity_for`.

    Args:
      cache: the cache. taken: n rows a layer. count: i32[B], 0 keeps a row as it is.

    Returns:
      The cache with lengths and positions advanced.
    """
    zero = jnp.int32(0)

    def write(b: Array, kv: tuple[tuple[Array, ...], tuple[Array, ...]]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        at, b = cache.length[b], jnp.asarray(b, jnp.int32)
        one = lambda x: jax.lax.dynamic_slice_in_dim(x, b, 1, axis=0)  # noqa: E731
        k = tuple(jax.lax.dynamic_update_slice(c, one(t), (b, zero, at, zero)) for c, t in zip(kv[0], taken.k, strict=True))
        v = tuple(jax.lax.dynamic_update_slice(c, one(t), (b, zero, zero, at)) for c, t in zip(kv[1], taken.v, strict=True))
        return k, v

    batch = cache.length.shape[0]
    if batch == 1:
        k, v = write(0, (cache.k, cache.v))
    else:
        k, v = jax.lax.fori_loop(0, batch, write, (cache.k, cache.v))
    return Cache(k, v, cache.length + count, cache.position + count)
