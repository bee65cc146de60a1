"""Truncated laws without sorting the vocabulary: top-k, top-p, min-p and typical-p as thresholds.

A truncation keeps every token whose value reaches a threshold, so tied tokens stay together and the result depends on values alone,
never on an order of ids:

    top-k     the largest t with  #{x >= t} >= k
    top-p     the largest t with  sum of p over {x >= t} >= P   (of what top-k left): the likeliest tokens until their mass reaches P
    min-p     t = max + log(m)
    typical   the largest t with  sum of p over {-d >= t} >= P,  d = |-log p - entropy|

Thresholds come from the 64 largest values where those decide, else from bisecting the bits of the numbers, which is exact. A row decides by
itself, so that its law does not depend on its neighbours.
"""
from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.types import Array

SHORT = 64
"""Largest values that are looked at before the bits are bisected."""


def _keys(x: Array) -> Array:
    """Unsigned integers in the order of the numbers f[...]."""
    size = jnp.finfo(x.dtype).bits
    kind = jnp.dtype(f"uint{size}")
    bits = jax.lax.bitcast_convert_type(x + 0.0, kind)  # -0 counts as 0
    sign = jnp.asarray(1, kind) << (size - 1)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def _numbers(keys: Array, dtype: jnp.dtype) -> Array:
    """What `_keys` was made from."""
    sign = jnp.asarray(1, keys.dtype) << (jnp.finfo(dtype).bits - 1)
    return jax.lax.bitcast_convert_type(jnp.where(keys >= sign, keys ^ sign, ~keys), dtype)


def threshold(x: Array, weight: Array, enough: Array) -> Array:
    """The largest t with ``sum of weight over {x >= t} >= enough``, bit by bit from the highest.

    Args:
      x: f[...,V], without NaN. weight: f[...,V], not negative. enough: f[...,1], at most the sum of the weights.

    Returns:
      f[...,1], an element of x.

    >>> threshold(jnp.asarray([0.5, -1.0, 2.0, 2.0]), jnp.ones(4), jnp.asarray([3.0])).tolist()
    [0.5]
    """
    keys, bits = _keys(x), jnp.finfo(x.dtype).bits

    def body(i: Array, t: Array) -> Array:
        higher = t | (jnp.asarray(1, keys.dtype) << (bits - 1 - i).astype(keys.dtype))
        reached = jnp.sum(jnp.where(keys >= higher, weight, 0), axis=-1, keepdims=True) >= enough
        return jnp.where(reached, higher, t)

    found = jax.lax.fori_loop(0, bits, body, jnp.zeros((*x.shape[:-1], 1), keys.dtype))
    return _numbers(jnp.maximum(found, jnp.min(keys, axis=-1, keepdims=True)), x.dtype)


def cut(x: Array, top_k: Array, top_p: Array, min_p: Array) -> Array:
    """Top-k, then top-p, then min-p.

    Args:
      x: f[...,V] log-weights, normalised or not. top_k: i32[...,1], 0 = all. top_p: f[...,1], 1 = all. min_p: f[...,1], 0 = all.

    Returns:
      f[...,V]: x, or -inf where a token is cut off; not renormalised.

    >>> cut(jnp.log(jnp.asarray([0.5, 0.3, 0.1, 0.1])), jnp.asarray([0]), jnp.asarray([0.7]), jnp.asarray([0.0])).tolist()[2:]
    [-inf, -inf]
    """
    vocab, lowest = x.shape[-1], jnp.asarray(-jnp.inf, x.dtype)
    size = min(SHORT, vocab)
    short = jax.lax.top_k(x, size)[0]
    top = short[..., :1]
    k = jnp.where((top_k > 0) & (top_k < vocab), top_k, vocab)
    by_k = jnp.take_along_axis(short, jnp.minimum(k, size) - 1, axis=-1)
    wide = (k > size) & (k < vocab)
    by_k = jax.lax.cond(jnp.any(wide), lambda: jnp.where(wide, threshold(x, jnp.ones_like(x), k.astype(x.dtype)), by_k), lambda: by_k)
    by_k = jnp.where(k < vocab, by_k, lowest)

    weight = jnp.where(x >= by_k, jnp.exp(x - top), 0.0)
    enough = top_p.astype(x.dtype) * jnp.sum(weight, axis=-1, keepdims=True)
    few = jnp.where(short >= by_k, jnp.exp(short - top), 0.0)
    kept = jnp.sum(jnp.cumsum(few, axis=-1) - few < enough, axis=-1, keepdims=True)
    by_p = jnp.take_along_axis(short, jnp.maximum(kept, 1) - 1, axis=-1)
    all_of_it = top_p >= 1
    unsure = (kept >= size) & ~all_of_it & (size < vocab)
    by_p = jax.lax.cond(jnp.any(unsure), lambda: jnp.where(unsure, threshold(x, weight, enough), by_p), lambda: by_p)
    by_p = jnp.where(all_of_it, lowest, by_p)

    by_m = jnp.where(min_p > 0, top + jnp.log(min_p.astype(x.dtype)), lowest)
    return jnp.where(x >= jnp.maximum(jnp.maximum(by_k, by_p), by_m), x, lowest)


def typical(x: Array, p: Array) -> Array:
    """Locally typical sampling (Meister et al. 2022): the tokens whose surprise is nearest to the entropy, until their mass reaches p.

    Args:
      x: f[...,V] log-weights. p: f[...,1], 1 = all.

    Returns:
      f[...,V]: x, or -inf where a token is cut off.

    >>> law = jnp.log(jnp.asarray([0.8, 0.1, 0.05, 0.05]))
    >>> jnp.isfinite(typical(law, jnp.asarray([0.85]))).tolist()
    [True, True, False, False]
    """
    log_p = x - jax.scipy.special.logsumexp(x, axis=-1, keepdims=True)
    weight = jnp.exp(log_p)
    entropy = -jnp.sum(jnp.where(weight > 0, weight * log_p, 0.0), axis=-1, keepdims=True)
    near = jnp.where(weight > 0, -jnp.abs(-log_p - entropy), -jnp.inf)
    enough = p.astype(x.dtype) * jnp.sum(weight, axis=-1, keepdims=True)
    return jnp.where((near >= threshold(near, weight, enough)) | (p >= 1), x, -jnp.inf)
