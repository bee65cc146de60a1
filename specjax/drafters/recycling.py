"""Token Recycling (Luo et al. 2024): for every token the ids that the target thought likeliest after it, unrolled into a fixed tree.

Table ``next[V,k]``; node with rank r below a node of token t carries ``next[t, r]``: one gather a level. Every row of every pass, accepted
or not, overwrites its token's entry. Where a pass holds a token twice, the row on the accepted path wins, then the shallower, then the
earlier: the published scatter lets an arbitrary one win.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import tree
from specjax.types import DETERMINISTIC, EMPTY, FORCED, Array, Context, Draft, Drafter, Outcome, Plan, piece

# Paths of ranks, the likelier first; a cut to the first n paths is a tree. The published template has 80 nodes in 6 levels.
_CHILDREN = (
    ("", 8), ("0", 8), ("1", 4), ("2", 3), ("3", 2), ("4", 1), ("5", 1), ("6", 1), ("7", 1),
    ("00", 8), ("01", 3), ("02", 2), ("03", 1), ("04", 1), ("05", 1), ("06", 1), ("07", 1), ("10", 2), ("11", 1), ("20", 1), ("30", 1),
    ("40", 1), ("50", 1), ("000", 5), ("001", 2), ("002", 1), ("003", 1), ("004", 1), ("010", 1), ("020", 1), ("100", 1), ("200", 1), ("300", 1),
    ("0000", 3), ("0001", 1), ("0002", 1), ("0010", 1), ("0100", 1), ("1000", 1), ("00000", 2), ("00010", 1))
CHANCE = (0.45, 0.12, 0.06, 0.035, 0.022, 0.015, 0.011, 0.008)
"""How often the token of each rank follows (measured on the default target's answers, entries of the same request): ranks 0 to 7."""


class Template(NamedTuple):
    """A rank tree: `parent`, `rank`, `depth` i64[n] of the rows, the root at row 0; `score` f32[n] the product of `CHANCE`."""

    parent: np.ndarray
    rank: np.ndarray
    depth: np.ndarray
    score: np.ndarray


def template(rows: int) -> Template:
    """The likeliest `rows` - 1 paths of the published tree, the likelier first.

    >>> template(5).parent.tolist(), template(5).rank.tolist()
    ([0, 0, 1, 0, 2], [0, 0, 0, 1, 0])
    """
    paths = [head + str(r) for head, n in _CHILDREN for r in range(n)]
    score = {p: float(np.prod([CHANCE[int(c)] for c in p])) for p in paths}
    if not 2 <= rows <= len(paths) + 1:
        raise ValueError(f"rows is {rows}: the template has 2 to {len(paths) + 1}")
    kept = sorted(paths, key=lambda p: (-score[p], len(p), p))[:rows - 1]
    place = {"": 0, **{p: i + 1 for i, p in enumerate(kept)}}
    return Template(np.asarray([0] + [place[p[:-1]] for p in kept]), np.asarray([0] + [int(p[-1]) for p in kept]),
                    np.asarray([0] + [len(p) for p in kept]), np.asarray([1.0] + [score[p] for p in kept], np.float32))


class RecyclingState(NamedTuple):
    """`shared`: i32[V,8] likely successors of every token, -1 = not seen yet; it outlives requests where the caller carries it."""

    shared: Array


def unroll(root: Array, table: Array, t: Template, source: int = 0) -> Draft:
    """The template filled from the table below each root i32[B]; what has no entry, and all below it, is left out."""
    batch, rows = root.shape[0], len(t.parent)
    tokens = jnp.full((batch, rows), -1, jnp.int32).at[:, 0].set(root)
    for level in range(1, int(t.depth.max()) + 1):
        here = np.flatnonzero(t.depth == level)
        above = tokens[:, t.parent[here]]
        found = table[jnp.maximum(above, 0), jnp.asarray(t.rank[here], jnp.int32)[None]]
        tokens = tokens.at[:, here].set(jnp.where(above >= 0, found, -1))
    live = tokens >= 0
    wide = lambda x: jnp.broadcast_to(jnp.asarray(x)[None], (batch, rows))  # noqa: E731
    kind = wide(np.asarray([FORCED] + [DETERMINISTIC] * (rows - 1), np.int32))
    draft = Draft(tokens, wide(t.parent.astype(np.int32)), kind, wide(t.score),
                  wide(np.asarray([0] + [source] * (rows - 1), np.int32)))
    return tree.keep(tree.drop(draft, ~live), live, rows)


def learn(table: Array, ctx: Context, outcome: Outcome) -> Array:
    """The table after an outcome that has the feature "top8"."""
    draft, top = outcome.draft, outcome.features["top8"]
    batch, rows = top.shape[:2]
    wide = min(rows, draft.tokens.shape[1])
    top, tokens, kind = top[:, :wide], draft.tokens[:, :wide], draft.kind[:, :wide]
    on_path = jnp.any(outcome.verdict.path[:, :, None] == jnp.arange(wide)[None, None], axis=1)
    depth = jax.vmap(tree.depths)(draft.parents)[:, :wide]
    fresh = (kind != EMPTY) & (tokens >= 0) & (top[..., 0] >= 0) & (outcome.verdict.count > 0)[:, None]
    total = batch * wide
    rank = (on_path.astype(jnp.int32) * 1024 + 1023 - jnp.minimum(depth, 1023)) * total + total - 1 - jnp.arange(total).reshape(batch, wide)
    flat, rank = jnp.where(fresh, tokens, table.shape[0]).reshape(-1), rank.reshape(-1)
    best = jnp.full(table.shape[0], -1, jnp.int32).at[flat].max(rank, mode="drop")
    wins = fresh.reshape(-1) & (best[jnp.minimum(flat, table.shape[0] - 1)] == rank)
    return table.at[jnp.where(wins, flat, table.shape[0])].set(top.reshape(total, -1), mode="drop")


@piece
def recycling(vocab: int, rows: int = 16) -> Drafter:
    """The target's own runners-up, recycled.

    Args:
      vocab: V of the target: the table has ``8 V`` entries, whatever is generated. rows: of the tree, the root included, at most 81.

    Returns:
      A Drafter that reads the feature "top8" of every row.
    """
    t = template(rows)

    def init(params: dict[str, Any], batch: int, capacity: int, depth: int) -> RecyclingState:
        del params, batch, capacity, depth
        return RecyclingState(jnp.full((vocab, 8), -1, jnp.int32))

    def draft(ctx: Context, state: RecyclingState, plan: Plan) -> tuple[Draft, RecyclingState]:
        del plan
        return unroll(ctx.root, state.shared, t), state

    def observe(ctx: Context, state: RecyclingState, outcome: Outcome) -> RecyclingState:
        return RecyclingState(learn(state.shared, ctx, outcome))

    return Drafter(init, draft, observe, rows, int(t.depth.max()), frozenset((FORCED, DETERMINISTIC)), f"recycling({rows})", needs=("top8",),
                   vocab=vocab, sources=("recycling",))
