"""Weighted rows of tokens -> the draft tree of their heaviest prefixes, without pointers or a heap.

Row m carries a weight ``w[m,d]`` at each depth, never growing with d. Rows that agree on their first d + 1 tokens share the node
(m, d), m the first of them; its weight is the sum over the rows that share it. Weights then never grow with depth, so the heaviest
nodes, ties to the shallower, are closed under ancestors: a sort in place of a search. (With counts as weights this is the best-first
growth by conditional count ratios of SuffixDecoding and REST, since those ratios telescope.)
"""
from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.types import DETERMINISTIC, EMPTY, FORCED, Array, Draft


class Prefixes(NamedTuple):
    """The distinct prefixes of some rows, depth by depth: node i = d M + m is the first d + 1 tokens of row m.

    Attributes:
      weight: f32[B,D M], 0 where there is no node. parent: i32[B,D M] node numbers, -1 = the root.
    """

    weight: Array
    parent: Array


def prefixes(rows: Array, ok: Array, weight: Array) -> Prefixes:
    """Merges rows that agree.

    Args:
      rows: i32[B,M,D] tokens. ok: bool[B,M,D] which are there; a row ends at its first gap. weight: f32[B,M,D], at least 0; cut to
        never grow along a row.

    Returns:
      The Prefixes.
    """
    def one(rows: Array, ok: Array, weight: Array) -> tuple[Array, Array]:
        m, depth = rows.shape
        ok = jnp.cumprod(ok.astype(jnp.int32), axis=1) > 0
        weight = jnp.where(ok, jax.lax.cummin(weight, axis=1), 0.0)
        same = (rows[:, None] == rows[None]) & ok[:, None] & ok[None]
        same = jnp.cumprod(same.astype(jnp.int32), axis=2) > 0
        first = jnp.argmax(same, axis=1).astype(jnp.int32)
        total = jax.lax.cummin(jnp.sum(jnp.where(same, weight[None], 0.0), axis=1), axis=1)
        node = ok & (first == jnp.arange(m, dtype=jnp.int32)[:, None])
        above = (jnp.arange(depth, dtype=jnp.int32) - 1)[None] * m + jnp.pad(first, ((0, 0), (1, 0)))[:, :depth]
        parent = jnp.where(jnp.arange(depth)[None] == 0, -1, above)
        return jnp.where(node, total, 0.0).T.reshape(-1), parent.T.reshape(-1)

    return Prefixes(*jax.vmap(one)(rows, ok, weight.astype(jnp.float32)))


def heaviest(p: Prefixes, count: int) -> tuple[Array, Array]:
    """The `count` heaviest nodes in falling order, ties to the shallower: (weights f32[B,count], node numbers i32[B,count])."""
    return jax.lax.top_k(p.weight, min(count, p.weight.shape[1]))


def grow(root: Array, rows: Array, p: Prefixes, best: tuple[Array, Array], nodes: Array, sources: tuple[int, ...] = ()) -> Draft:
    """The tree of the first `nodes` i32[B] of the heaviest prefixes.

    Args:
      root: i32[B]. rows: i32[B,M,D], those of `p`. best: from `heaviest`. nodes: how many of them to keep. sources: one a
        row, of the nodes it brings first; default 0.

    Returns:
      A deterministic Draft of count + 1 rows, ordered by depth; score is the weight.
    """
    m = rows.shape[1]
    origin = jnp.asarray(sources or (0,) * m, jnp.int32)

    def one(root: Array, rows: Array, parent: Array, weight: Array, number: Array, nodes: Array) -> tuple[Array, ...]:
        count, nowhere = number.shape[0], jnp.int32(parent.shape[0])
        kept = (jnp.arange(count) < nodes) & (weight > 0)
        order = jnp.argsort(jnp.where(kept, number, nowhere))
        here, weight = jnp.where(kept, number, nowhere)[order].astype(jnp.int32), weight[order]
        live = here < nowhere
        at = jnp.where(live, here, 0)
        above = jnp.where(live, parent[at], -1)
        up = jnp.searchsorted(here, above).astype(jnp.int32) + 1
        token = rows[at % m, at // m]
        head = lambda first, rest: jnp.concatenate([jnp.asarray(first)[None], rest])  # noqa: E731
        return (head(root, jnp.where(live, token, 0)), head(jnp.int32(0), jnp.where(live & (above >= 0), up, 0)),
                head(jnp.int32(FORCED), jnp.where(live, DETERMINISTIC, EMPTY).astype(jnp.int32)),
                head(jnp.float32(1.0), jnp.where(live, weight, 0.0)),
                head(jnp.int32(0), jnp.where(live, origin[at % m], 0)))

    return Draft(*jax.vmap(one)(root, rows, p.parent, *best, nodes))


def trie_from_rows(root: Array, rows: Array, ok: Array, weight: Array, count: int) -> Draft:
    """The `count` - 1 heaviest prefixes of weighted rows below a root.

    Args:
      root: i32[B]. rows: i32[B,M,D]. ok: bool[B,M,D]. weight: f32[B,M,D] (see `prefixes`). count: rows of the result, the root
        included (static).

    Returns:
      A deterministic Draft of `count` rows ordered by depth; score is the weight.

    >>> rows = jnp.asarray([[[5, 6], [5, 7], [8, 9]]])
    >>> d = trie_from_rows(jnp.asarray([1]), rows, rows > 0, jnp.asarray([[[2.0, 2], [1, 1], [1, 1]]]), 4)
    >>> d.tokens.tolist(), d.parents.tolist(), d.score.tolist()
    ([[1, 5, 8, 6]], [[0, 0, 0, 1]], [[1.0, 3.0, 1.0, 2.0]])
    """
    from specjax import tree
    p = prefixes(rows, ok, weight)
    best = heaviest(p, count - 1)
    return tree.pad(grow(root, rows, p, best, jnp.full(root.shape, count - 1, jnp.int32)), count)
