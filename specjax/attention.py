"""Attention of a pass, in two parts that are merged: the committed prefix, of which every row sees all, and the rows of the
pass, seen through the tree mask. No mask over the prefix but its length.

Each part gives (o, m, l): the sum of values weighted by ``exp(score - m)``, the largest score m, and the sum of weights l.
Two parts merge as ``o = o1 e^(m1-m) + o2 e^(m2-m)``, the same for l, with m = max(m1, m2); the output is o / l.

The cost follows the used length: a loop over blocks of the cache whose trip count is data, each block merged into the running
(o, m, l). One loop body is compiled, whatever the capacity.
"""
from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array

_BLOCK = 128
"""Slots of a block: small enough to waste little on short texts, large enough for an efficient product."""


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


def join(a: Part, b: Part) -> Part:
    """Attention over the keys of both parts."""
    m = jnp.maximum(a.m, b.m)
    wa, wb = jnp.exp(a.m - m), jnp.exp(b.m - m)
    return Part(a.o * wa + b.o * wb, m, a.l * wa + b.l * wb)


def block_size(capacity: int) -> int:
    """The largest power of two up to 128 that divides the capacity.

    >>> block_size(512), block_size(40)
    (128, 8)
    """
    return math.gcd(capacity, _BLOCK)


def over_prefix(k: Array, v: Array, length: Array, q: Array) -> Part:
    """Attention over the first `length` i32[B] slots of a cache layer (shapes as in `over`), reading only blocks in use."""
    size = block_size(k.shape[2])

    def body(i: Array, part: Part) -> Part:
        keys = jax.lax.dynamic_slice_in_dim(k, i * size, size, axis=2)
        values = jax.lax.dynamic_slice_in_dim(v, i * size, size, axis=3)
        visible = (i * size + jnp.arange(size))[None, None, :, None] < length[:, None, None, None]
        return join(part, over(keys, values, q, visible))

    nothing = Part(jnp.zeros_like(q), jnp.full_like(q[:, :, :1], -1e30), jnp.zeros_like(q[:, :, :1]))
    return jax.lax.fori_loop(0, (jnp.max(length) + size - 1) // size, body, nothing)


def attend(q: Array, k: Array, v: Array, length: Array, scratch_k: Array, scratch_v: Array, mask: Array) -> Array:
    """Attention of T query rows over a committed prefix and R scratch rows.

    Args:
      q: f[G,d,H/G,B,T] rotated queries, not yet scaled: all query heads that share a key head side by side.
      k: f[B,G,S,d] and v: f[B,G,d,S], one layer of the cache. length: i32[B].
      scratch_k: f[B,G,R,d]. scratch_v: f[B,G,d,R]. mask: bool[B,T,R] scratch slots each query sees.

    Returns:
      f[G,d,H/G,B,T].
    """
    groups, d, share, batch, t = q.shape
    rows = mask.shape[2]
    columns = q.transpose(3, 0, 1, 2, 4).reshape(batch, groups, d, share * t) * np.asarray(1.0 / math.sqrt(d), q.dtype)
    seen = jnp.broadcast_to(mask.transpose(0, 2, 1)[:, None, :, None, :], (batch, 1, rows, share, t)).reshape(batch, 1, rows, share * t)
    here = over(scratch_k, scratch_v, columns, seen)
    whole = join(over_prefix(k, v, length, columns), here)
    return (whole.o / whole.l).reshape(batch, groups, d, share, t).transpose(1, 2, 3, 0, 4)
