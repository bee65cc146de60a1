"""Trees of several drafters under fixed quotas: one common score is not needed.

Nodes are ranked by tier, then by score: a node of a higher tier adds a whole number to its score, the best N rows are kept, and the
scores are taken back. Within a tier a child never scores above its parent, so what is kept is closed under ancestors.
"""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from specjax import tree
from specjax.drafters.combine import draft_all, joined
from specjax.types import DETERMINISTIC, EMPTY, FORCED, Array, Context, Draft, Drafter, Plan, piece

KINDS = frozenset((FORCED, DETERMINISTIC))


def best_rows(draft: Draft, count: Array) -> Array:
    """bool[B,R]: the `count` i32[B] best nodes of a deterministic draft by score, ties to the earlier row, and the root."""
    score = jnp.where(draft.kind == EMPTY, -1.0, draft.score).at[:, 0].set(jnp.inf)
    number = jnp.arange(score.shape[1])
    ahead = (score[:, None] > score[:, :, None]) | ((score[:, None] == score[:, :, None]) & (number[None] < number[:, None])[None])
    return (jnp.sum(ahead, axis=2) <= count[:, None]) & (draft.kind != EMPTY)


def by_tier(drafts: list[Draft], tiers: list[Array], rows: int, depth: int) -> Draft:
    """The best rows of several deterministic drafts, higher tiers first.

    Args:
      drafts: each closed under ancestors. tiers: f32[B,1] whole numbers, one a draft, at least 0. rows: kept. depth: of the deepest node.
    """
    top = float(len(drafts) + 1)
    lifted = [d._replace(score=jnp.where(jnp.arange(d.score.shape[1])[None] > 0, jnp.maximum(d.score, 1e-6) + t, top))
              for d, t in zip(drafts, tiers, strict=True)]
    whole = tree.concatenate(lifted)
    merged = tree.merge_prefixes(whole, min(rows, whole.tokens.shape[1]), depth)
    score = jnp.where(merged.kind == EMPTY, 0.0, merged.score - jnp.ceil(merged.score) + 1)
    return merged._replace(score=score.at[:, 0].set(1.0))


@piece
def graft(drafter: Drafter, filler: Drafter, rows: int = 16, stages: tuple[tuple[int, float, int], ...] = ((1, 0.35, 3), (2, 0.25, 6), (4, 0.15, 10))
          ) -> Drafter:
    """Graft: where the drafter's tree is unsure, its best nodes only, and the freed rows to another drafter's nodes below the root.

    At each checkpoint the confidence is the largest score at that depth. The first one below its threshold fixes how many nodes of the
    drafter are kept; none: the whole tree and no filler.

    Args:
      drafter, filler: any, such as a model's tree and `recycling`. rows: of the result. stages: (depth, threshold, nodes kept), by depth.

    Returns:
      A Drafter of deterministic nodes.

    Raises:
      ValueError: no stage, or depths that do not ascend.
    """
    at = [d for d, _, _ in stages]
    if not stages or at != sorted(set(at)) or at[0] < 1 or min(k for *_, k in stages) < 0:
        raise ValueError(f"stages is {stages}: (depth, threshold, nodes kept) with ascending depths from 1 on are needed")

    def draft(ctx: Context, states: tuple[Any, ...], plan: Plan) -> tuple[Draft, tuple[Any, ...]]:
        (main, other), states = draft_all((drafter, filler), ctx, states, plan)
        main, other = tree.as_deterministic(main), tree.as_deterministic(other)
        depth = _depths(main)
        low, keep = jnp.zeros_like(ctx.root, bool), jnp.full_like(ctx.root, rows - 1)
        for d, bar, nodes in stages:
            sure = jnp.max(jnp.where((depth == d) & (main.kind != EMPTY), main.score, 0.0), axis=1)
            keep = jnp.where(~low & (sure < bar), nodes, keep)
            low = low | (sure < bar)
        main = tree.drop(main, ~best_rows(main, keep))
        other = tree.drop(other, jnp.broadcast_to(~low[:, None], other.kind.shape))
        one = jnp.ones((ctx.root.shape[0], 1), jnp.float32)
        return by_tier([main, other], [one, 0 * one], rows, max(drafter.depth, filler.depth)), states

    return joined((drafter, filler), draft, min(rows, drafter.rows + filler.rows - 1), KINDS, "graft")


def _depths(draft: Draft) -> Array:
    return jax.vmap(tree.depths)(draft.parents)


def leaves(draft: Draft) -> Array:
    """i32[B]: nodes without a child, the candidates of a draft."""
    number = jnp.arange(draft.kind.shape[1])
    has_child = jnp.any((draft.parents[:, None] == number[None, :, None]) & ((draft.kind != EMPTY) & (number > 0)[None])[:, None], axis=2)
    return jnp.sum((draft.kind != EMPTY) & (number > 0)[None] & ~has_child, axis=1)


@piece
def hierarchy(*drafters: Drafter, need: int = 7, rows: int = 16) -> Drafter:
    """Hierarchy Drafting (Cho et al. 2025): databases asked in order until enough candidates are found, verified together.

    A level is heard only if the levels before it gave fewer than `need` candidates (leaves); rows go to earlier levels first.

    Args:
      *drafters: two or more, the most local first. need: candidates. rows: of the result.

    Returns:
      A Drafter of deterministic nodes; its statistics count the accepted tokens of each level.
    """
    if need < 1:
        raise ValueError(f"need is {need}: at least one candidate must be wanted")

    def draft(ctx: Context, states: tuple[Any, ...], plan: Plan) -> tuple[Draft, tuple[Any, ...]]:
        made, states = draft_all(drafters, ctx, states, plan)
        found, heard, tiers = jnp.zeros_like(ctx.root), [], []
        for i, d in enumerate(made):
            d = tree.as_deterministic(d)
            heard.append(tree.drop(d, jnp.broadcast_to((found >= need)[:, None], d.kind.shape)))
            found = found + leaves(heard[-1])
            tiers.append(jnp.full((found.shape[0], 1), len(made) - 1 - i, jnp.float32))
        return by_tier(heard, tiers, rows, max(d.depth for d in drafters)), states

    return joined(drafters, draft, min(rows, sum(d.rows - 1 for d in drafters) + 1), KINDS, "hierarchy")


@piece
def pruned_merge(drafter: Drafter, retriever: Drafter, rows: int = 16, least: float = 0.02) -> Drafter:
    """RASD's fusion (Quan et al. 2025): a retrieved tree pruned by the draft model, then merged with the model's own tree by prefix.

    A retrieved branch is kept if the model's first step gives its first token at least `least`; its scores are multiplied by that
    probability, so that both trees are ranked on the model's scale. No further pass of the draft model is needed.

    Args:
      drafter: one whose first level holds its likeliest tokens, scored by probability. retriever: of scored trees. rows: of the result.
      least: probability below which a branch is dropped.

    Returns:
      A Drafter of deterministic nodes.
    """
    if not 0 <= least < 1:
        raise ValueError(f"least is {least}: a probability below 1 is needed")

    def draft(ctx: Context, states: tuple[Any, ...], plan: Plan) -> tuple[Draft, tuple[Any, ...]]:
        (main, found), states = draft_all((drafter, retriever), ctx, states, plan)
        main, found = tree.as_deterministic(main), tree.as_deterministic(found)
        first = (main.parents == 0) & (main.kind != EMPTY) & (jnp.arange(main.kind.shape[1]) > 0)[None]
        same = (found.tokens[:, :, None] == main.tokens[:, None]) & first[:, None]
        q = jnp.max(jnp.where(same, main.score[:, None], 0.0), axis=2)
        top = jnp.broadcast_to(jnp.arange(found.kind.shape[1])[None], found.kind.shape)
        for _ in range(retriever.depth):  # the first-level ancestor of every node
            above = jnp.take_along_axis(found.parents, top, axis=1)
            top = jnp.where(above == 0, top, above)
        q = jnp.take_along_axis(q, top, axis=1).at[:, 0].set(1.0)
        found = tree.drop(found._replace(score=found.score * q), q < least)
        whole = tree.concatenate([main, found])
        return tree.merge_prefixes(whole, min(rows, whole.tokens.shape[1]), max(drafter.depth, retriever.depth)), states

    return joined((drafter, retriever), draft, min(rows, drafter.rows + retriever.rows - 1), KINDS, "pruned_merge")
