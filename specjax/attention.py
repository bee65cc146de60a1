"""Attention of a pass, in two parts that are merged: the committed prefix, of which every row sees all, and the rows of the
pass, seen through the tree mask. No mask over the prefix but its length.

Each part gives (o, m, l): the sum of values weighted by ``exp(score - m)``, the largest score m, and the sum of weights l.
Two parts merge as ``o = o1 e^(m1-m) + o2 e^(m2-m)``, the same for l, with m = max(m1, m2); the output is o / l.

The cost follows the used length: a `switch` over a few static prefix sizes, so that a short text in a large cache reads
little and a long one is one product.
"""
from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.types import Array

_SIZES = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)


class Part(NamedTuple):
    """Unnormalised attention over some keys: `o` f[B,G,d,M], `m` f[B,G,1,M], `l` f[B,G,1,M]; M = T x H/G query columns."""

    o: Array
    m: Array
    l: Array  # noqa: E741  the literature's letter


def over(k: Array, v: Array, q: Array, visible: Array) -> Part:
    """Attention of scaled queries over given keys.

    Args:
      k: f[B,G,S,d]. v: f[B,G,d,S]. q: f[B,G,d,M], already scaled. visible: bool, broadcastable to [B,G,S,M].

    Returns:
      The Part; a column that sees nothing has l = 0 and o = 0.
    """
    scores = jnp.where(visible, k @ q, -jnp.inf)
    m = jnp.maximum(jnp.max(scores, axis=2, keepdims=True), -1e30)
    p = jnp.exp(scores - m)
    return Part(v @ p, m, jnp.sum(p, axis=2, keepdims=True))


def merge(a: Part, b: Part) -> Array:
    """The normalised output f[B,G,d,M] of two parts."""
    m = jnp.maximum(a.m, b.m)
    wa, wb = jnp.exp(a.m - m), jnp.exp(b.m - m)
    return (a.o * wa + b.o * wb) / (a.l * wa + b.l * wb)


def prefix_sizes(capacity: int) -> tuple[int, ...]:
    """Static prefix lengths a pass may read in a cache of `capacity` slots, ascending, the last one all of it.

    >>> prefix_sizes(600)
    (128, 256, 512, 600)
    """
    return (*(s for s in _SIZES if s < capacity), capacity)


def over_prefix(k: Array, v: Array, length: Array, q: Array) -> Part:
    """Attention over the first `length` i32[B] slots of a cache layer; reads the smallest static size that holds them all."""
    sizes = prefix_sizes(k.shape[2])

    def branch(size: int):
        def run(k: Array, v: Array, q: Array) -> Part:
            visible = jnp.arange(size)[:, None] < length[:, None, None, None]
            return over(k[:, :, :size], v[:, :, :, :size], q, visible)
        return run

    if len(sizes) == 1:
        return branch(sizes[0])(k, v, q)
    which = jnp.sum(jnp.max(length) > jnp.asarray(sizes[:-1])).astype(jnp.int32)
    return jax.lax.switch(which, [branch(s) for s in sizes], k, v, q)


def attend(q: Array, k: Array, v: Array, length: Array, scratch_k: Array, scratch_v: Array, mask: Array) -> Array:
    """Attention of T query rows over a committed prefix and R scratch rows.

    Args:
      q: f[H,d,B,T] rotated queries, not yet scaled. k: f[B,G,S,d] and v: f[B,G,d,S] one layer of the cache.
      length: i32[B]. scratch_k: f[B,G,R,d]. scratch_v: f[B,G,d,R]. mask: bool[B,T,R] scratch slots each query sees.

    Returns:
      f[H,d,B,T].
    """
    heads, d, batch, t = q.shape
    groups = k.shape[1]
    share = heads // groups
    columns = q.reshape(groups, share, d, batch, t).transpose(3, 0, 2, 1, 4).reshape(batch, groups, d, share * t)
    columns = columns * (1.0 / math.sqrt(d))
    seen = jnp.broadcast_to(mask.transpose(0, 2, 1)[:, None, :, None, :], (batch, 1, mask.shape[2], share, t))
    here = over(scratch_k, scratch_v, columns, seen.reshape(batch, 1, mask.shape[2], share * t))
    out = merge(over_prefix(k, v, length, columns), here)
    return out.reshape(batch, groups, d, share, t).transpose(1, 3, 2, 0, 4).reshape(heads, d, batch, t)
