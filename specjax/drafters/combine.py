"""Drafters made of drafters: `limit`, `merge` (best nodes of several trees), `beside` (all nodes of several trees).

`merge` chooses nodes by value, so every sampled node is redeclared deterministic first; `beside` keeps every node and its law.
"""
from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from specjax import noise as coins
from specjax import tree
from specjax.types import DETERMINISTIC, EMPTY, FORCED, Context, Draft, Drafter, Outcome, Plan, piece


@piece
def limit(drafter: Drafter, depth: int) -> Drafter:
    """The drafter with paths of at most `depth` tokens; the cut does not look at values, so every law stays exact.

    Args:
      drafter: any. depth: at least 0.

    Returns:
      A Drafter of the same rows and state.
    """
    if depth < 0:
        raise ValueError(f"depth is {depth}: it must be 0 or more")

    def draft(ctx: Context, state: Any, plan: Plan) -> tuple[Draft, Any]:
        made, state = drafter.draft(ctx, state, plan)
        rows = made.tokens.shape[1]
        batch = jnp.full(ctx.root.shape, rows)
        return tree.clip(made, batch, jnp.full_like(batch, depth)), state

    return drafter._replace(draft=draft, depth=min(depth, drafter.depth), name=f"limit({drafter.name}, {depth})")


def init_all(drafters: tuple[Drafter, ...]) -> Any:
    """The `init` of several drafters."""
    def init(params: dict[str, Any], batch: int, capacity: int, depth: int) -> tuple[Any, ...]:
        return tuple(d.init(params, batch, capacity, depth) for d in drafters)
    return init


def draft_all(drafters: tuple[Drafter, ...], ctx: Context, states: tuple[Any, ...], plan: Plan) -> tuple[list[Draft], tuple[Any, ...]]:
    """The drafts of all, each with coins of its own and sources numbered on, and their states."""
    made, kept, offset = [], [], 0
    for i, (d, s) in enumerate(zip(drafters, states, strict=True)):
        draft, s = d.draft(ctx._replace(noise=coins.child(ctx.noise, i)), s, plan)
        made.append(draft._replace(source=draft.source + offset))
        kept.append(s)
        offset += len(d.sources)
    return made, tuple(kept)


def observe_all(drafters: tuple[Drafter, ...]) -> Any:
    """The `observe` of several drafters."""
    def observe(ctx: Context, states: tuple[Any, ...], outcome: Outcome) -> tuple[Any, ...]:
        return tuple(d.observe(ctx._replace(noise=coins.child(ctx.noise, i)), s, outcome)
                     for i, (d, s) in enumerate(zip(drafters, states, strict=True)))
    return observe


def joined(drafters: tuple[Drafter, ...], draft: Any, rows: int, kinds: frozenset[int], name: str) -> Drafter:
    """A Drafter of drafters: their states side by side, every outcome shown to all.

    Raises:
      ValueError: fewer than two, or rows that arrive with computed layers.
    """
    if len(drafters) < 2:
        raise ValueError(f"{name} needs at least two drafters")
    if any(d.computes for d in drafters):
        raise ValueError(f"{name} cannot join drafters whose rows arrive with computed layers: {[d.name for d in drafters if d.computes]}")
    return Drafter(init_all(drafters), draft, observe_all(drafters), rows, max(d.depth for d in drafters), kinds,
                   name=f"{name}({', '.join(d.name for d in drafters)})", needs=tuple(sorted({n for d in drafters for n in d.needs})),
                   params=tuple(dict.fromkeys(p for d in drafters for p in d.params)),
                   vocab=next((d.vocab for d in drafters if d.vocab is not None), None),
                   sources=tuple(s for d in drafters for s in d.sources))


@piece
def merge(*drafters: Drafter, rows: int = 16, how: str = "max") -> Drafter:
    """One tree of the best nodes of several drafters: equal prefixes are merged, the `rows` - 1 best scores kept, the best first.

    Args:
      *drafters: two or more. rows: of the result, the root included. how: scores of nodes that several made (`tree.MERGES`).

    Returns:
      A Drafter of deterministic nodes.

    Raises:
      ValueError: an unknown `how`.
    """
    if how not in tree.MERGES:
        raise ValueError(f"how is {how!r}: one of {', '.join(tree.MERGES)}")

    def draft(ctx: Context, states: tuple[Any, ...], plan: Plan) -> tuple[Draft, tuple[Any, ...]]:
        made, states = draft_all(drafters, ctx, states, plan)
        whole = tree.concatenate([tree.as_deterministic(d) for d in made])
        return tree.merge_prefixes(whole, min(rows, whole.tokens.shape[1]), max(d.depth for d in drafters), how), states

    total = sum(d.rows - 1 for d in drafters) + 1
    return joined(drafters, draft, min(rows, total), frozenset((FORCED, DETERMINISTIC)), "merge")


@piece
def beside(*drafters: Drafter) -> Drafter:
    """All nodes of several drafters below one root, nothing chosen, every law kept: SpecInfer's candidates of several models.

    Args:
      *drafters: two or more, tested in this order.

    Returns:
      A Drafter whose nodes are of all their kinds.
    """
    def draft(ctx: Context, states: tuple[Any, ...], plan: Plan) -> tuple[Draft, tuple[Any, ...]]:
        made, states = draft_all(drafters, ctx, states, plan)
        return tree.concatenate(made), states

    kinds = frozenset().union(*(d.kinds for d in drafters)) - {EMPTY}
    return joined(drafters, draft, sum(d.rows - 1 for d in drafters) + 1, kinds, "beside")
