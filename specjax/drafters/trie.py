"""Weighted rows of tokens as one scored tree, without heap or pointers.

``eq[m,m',d]`` says that rows m and m' agree on their first d + 1 tokens. Node (m, d) stands for the rows that agree with m so far; it
exists for the first such row, and weighs ``w(m, d) = kappa^d sum_m' weight[m'] eq[m,m',d]``. Weights never grow with depth, so the N
heaviest nodes, ties to the shallower, are closed under ancestors. With counts as weights and kappa = 1 they are what best-first
expansion by conditional count ratios finds, because the ratios telescope: ``prod C(child) / C(parent) = C(node) / C(root)``.
"""
from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import DETERMINISTIC, EMPTY, FORCED, Array, Draft


def agreement(rows: Array, ok: Array) -> Array:
    """bool[B,M,M,D]: which rows i32[B,M,D] agree up to which depth; `ok` bool[B,M,D] tokens in use (a prefix of each row)."""
    same = (rows[:, :, None] == rows[:, None]) & ok[:, :, None] & ok[:, None]
    out = [same[..., 0]]
    for d in range(1, rows.shape[2]):
        out.append(out[-1] & same[..., d])
    return jnp.stack(out, axis=-1)


def node_weights(eq: Array, weight: Array, kappa: float = 1.0) -> tuple[Array, Array]:
    """Weights and first rows of the nodes.

    Args:
      eq: of `agreement`. weight: f32[B,...,M], at least 0; further axes are further weightings. kappa: discount a level, in (0, 1].

    Returns:
      (w f32[B,...,M,D], 0 where there is no node; first i32[B,M,D] the row that stands for each node).
    """
    depth, number = eq.shape[-1], jnp.arange(eq.shape[1])
    first = jnp.argmax(eq, axis=2).astype(jnp.int32)
    own = jnp.any(eq, axis=2) & (first == number[None, :, None])
    w = jnp.einsum("bmnd,b...n->b...md", eq.astype(jnp.float32), weight)
    own = own.reshape(own.shape[0], *(1,) * (weight.ndim - 2), *own.shape[1:])
    discount = np.float32(kappa) ** np.arange(depth, dtype=np.float32)
    return jnp.where(own, w, 0.0) * discount.reshape((1,) * (w.ndim - 1) + (-1,)), first


def best_nodes(root: Array, rows: Array, w: Array, first: Array, count: int, norm: Array | None = None, source: int = 0) -> Draft:
    """The tree of the heaviest nodes, in the order of their weight, so that a cut by row number keeps the best.

    Args:
      root: i32[B]. rows: i32[B,M,D]. w, first: of `node_weights`, w f32[B,M,D]. count: rows of the tree, the root included (static).
      norm: f32[B] weight that counts as certain, default 1. source: of the nodes.

    Returns:
      A deterministic Draft; scores are ``w / norm``, at most 1.
    """
    batch, m, depth = rows.shape
    flat = lambda x: jnp.swapaxes(x, 1, 2).reshape(batch, -1)  # noqa: E731  depth first: ties go to the shallower node
    above = jnp.concatenate([jnp.full((batch, m, 1), -1), jnp.arange(depth - 1)[None, None] * m + first[:, :, :-1]], axis=2)
    picked = min(count - 1, m * depth)
    value, node = jax.lax.top_k(flat(w), picked)
    take = lambda x: jnp.take_along_axis(flat(x), node, axis=1)  # noqa: E731
    live, parent = value > 0, take(above)
    place = jnp.argmax(node[:, None, :] == parent[:, :, None], axis=2) + 1
    score = jnp.minimum(value / (1.0 if norm is None else norm[:, None]), 1.0)
    fields = ((root, take(rows), 0), (jnp.zeros_like(root), jnp.where(parent < 0, 0, place), 0),
              (jnp.full_like(root, FORCED), jnp.full_like(node, DETERMINISTIC), EMPTY), (jnp.ones(batch, jnp.float32), score, 0.0),
              (jnp.zeros_like(root), jnp.full_like(node, source), 0))
    return Draft(*(jnp.pad(jnp.concatenate([head[:, None], jnp.where(live, body, fill).astype(head.dtype)], axis=1),
                           ((0, 0), (0, count - 1 - picked))) for head, body, fill in fields))


def trie_from_rows(root: Array, rows: Array, ok: Array, weight: Array, count: int, kappa: float = 1.0, norm: Array | None = None,
                   source: int = 0) -> Draft:
    """Merges weighted rows into a tree and keeps the heaviest nodes.

    Args:
      root: i32[B]. rows: i32[B,M,D]. ok: bool[B,M,D], a prefix of each row. weight: f32[B,M], rows of weight 0 do not count.
      count: rows of the tree, the root included (static). kappa, norm, source: as in `node_weights` and `best_nodes`.

    Returns:
      A deterministic Draft in the order of the nodes' weight.

    >>> rows = jnp.asarray([[[1, 2], [1, 3], [4, 4]]])
    >>> d = trie_from_rows(jnp.asarray([9]), rows, rows > 0, jnp.asarray([[1.0, 2.0, 0.5]]), 5, norm=jnp.asarray([3.5]))
    >>> d.tokens.tolist(), d.parents.tolist()
    ([[9, 1, 3, 2, 4]], [[0, 0, 1, 1, 0]])
    """
    eq = agreement(rows, ok & (weight > 0)[..., None])
    return best_nodes(root, rows, *node_weights(eq, weight, kappa), count, norm, source)
