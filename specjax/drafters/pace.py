"""`paced`: draft only as many rows as pay, over the whole batch.

A pass of R rows costs c(R) times a pass of one row, a measured fact of a machine and a batch size. A draft's node at distance d is reached with
probability r = prod of the chances a of the steps that lead to it. Keep the R that maximises

    sum over the batch of (1 + sum of r over the first R - 1 nodes)  /  c(R),

one row (plain decoding) included. A drafter states the chance of a step as score(node) / score(parent); here it is calibrated by what really
happened: steps are sorted by their stated chance into bins, and a = (hits + w m) / (tries + w), with m the middle of the bin. Hits and tries
fade, so that a bin that failed for a while is tried again.

The rule looks at values, so every sampled node is redeclared deterministic (`specjax.tree.as_deterministic`).
"""
from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import tree
from specjax.types import DETERMINISTIC, EMPTY, FORCED, Array, Context, Draft, Drafter, Outcome, Plan, piece

COSTS = (
    (1, ((1, 1.0), (4, 1.48), (16, 2.08), (32, 3.05), (64, 5.1))),
    (4, ((1, 1.0), (4, 1.5), (16, 2.86), (32, 4.9), (64, 9.1))),
    (8, ((1, 1.0), (4, 1.7), (16, 3.5), (32, 6.4), (64, 12.2))),
)
"""Cost of a pass by batch and rows, relative to one row of the same batch: `python -m experiments.speed`, two cores with AVX-512, 2026-12-01.
Between batches the next larger one counts; beyond the last, rows cost what they cost there."""

BINS = 12


class PaceState(NamedTuple):
    """`inner`: the drafter's state. `hits`, `tries`: f32[B,BINS] fading counts of steps by stated chance."""

    inner: Any
    hits: Array
    tries: Array


def costs_for(batch: int, costs: tuple[Any, ...]) -> tuple[tuple[int, float], ...]:
    """The (rows, cost) pairs of a batch size.

    >>> costs_for(3, COSTS)[1]
    (4, 1.5)
    """
    return next((pairs for size, pairs in costs if size >= batch), costs[-1][1])


def bin_of(score: Array, parents: Array) -> Array:
    """The bin of each node's step, finer towards certainty: bin i holds chances in 1 - 2^(-i/2) .. 1 - 2^(-(i+1)/2).

    Args:
      score: f32[B,R]. parents: i32[B,R].

    Returns:
      i32[B,R] in 0..BINS-1.
    """
    chance = score / jnp.maximum(jnp.take_along_axis(score, parents, axis=1), 1e-6)
    return jnp.clip(jnp.floor(-2.0 * jnp.log2(jnp.maximum(1.0 - chance, 1e-6)) + 1e-4), 0, BINS - 1).astype(jnp.int32)


_MIDDLE = 1.0 - 2.0 ** (-(np.arange(BINS) + 0.5) / 2)


def reach(draft: Draft, chances: Array) -> Array:
    """Probability that each node is reached: the product of the chances f32[B,R] along its path, 0 for EMPTY rows and the root."""
    def one(parents: Array, chance: Array) -> Array:
        p, x = parents, chance
        for _ in range(max(1, (parents.shape[0] - 1).bit_length())):
            x, p = x * jnp.where(p == 0, 1.0, x[p]), p[p]
        return x

    live = (draft.kind != EMPTY) & (jnp.arange(draft.kind.shape[1]) > 0)[None]
    return jnp.where(live, jax.vmap(one)(draft.parents, chances), 0.0)


@piece
def paced(drafter: Drafter, costs: tuple[Any, ...] = COSTS, weight: float = 3.0, fade: float = 0.99) -> Drafter:
    """The drafter, cut to the number of rows that pays most.

    Args:
      drafter: any; its scores are its own estimate of reaching a node. costs: (batch, ((rows, cost), ...)) ascending, rows 1 first.
      weight: w, steps that the stated chance counts for. fade: of the counts, at each round.

    Returns:
      A Drafter of deterministic nodes.

    Raises:
      ValueError: costs that do not begin with one row, or do not ascend; a drafter whose rows arrive with computed layers.
    """
    for batch, pairs in costs:
        rows = [r for r, _ in pairs]
        if not pairs or rows[0] != 1 or rows != sorted(set(rows)):
            raise ValueError(f"costs of batch {batch} are {pairs}: rows must begin with 1 and ascend")
    if drafter.computes:
        raise ValueError(f"{drafter.name} cannot be cut by value: its rows arrive with computed layers")

    def init(params: dict[str, Any], batch: int, capacity: int, depth: int) -> PaceState:
        return PaceState(drafter.init(params, batch, capacity, depth), jnp.zeros((batch, BINS), jnp.float32), jnp.zeros((batch, BINS), jnp.float32))

    def draft(ctx: Context, state: PaceState, plan: Plan) -> tuple[Draft, PaceState]:
        made, inner = drafter.draft(ctx, state.inner, plan)
        made = tree.clip(tree.as_deterministic(made), plan.rows, plan.depth)
        middle = jnp.asarray(_MIDDLE, jnp.float32)[None]
        learned = (state.hits + weight * middle) / (state.tries + weight)
        gain = jnp.cumsum(reach(made, jnp.take_along_axis(learned, bin_of(made.score, made.parents), axis=1)), axis=1)
        total, batch = made.tokens.shape[1], ctx.root.shape[0]
        pairs = [(min(r, total), c) for r, c in costs_for(batch, costs)]
        pairs = pairs[:1 + next((i for i, (r, _) in enumerate(pairs) if r >= total), len(pairs) - 1)]
        worth = jnp.stack([jnp.sum(jnp.where(plan.rows > 1, 1.0, 0.0) * (1.0 + gain[:, r - 1])) / c for r, c in pairs])
        kept = jnp.asarray([r for r, _ in pairs], jnp.int32)[jnp.argmax(worth)]
        return tree.clip(made, jnp.broadcast_to(kept, (batch,)), jnp.full(batch, total)), PaceState(inner, state.hits, state.tries)

    def observe(ctx: Context, state: PaceState, outcome: Outcome) -> PaceState:
        inner = drafter.observe(ctx, state.inner, outcome)
        if outcome.prefill:
            return PaceState(inner, state.hits, state.tries)
        x, path = outcome.draft, outcome.verdict.path
        number = jnp.arange(x.kind.shape[1])[None]
        accepted = jnp.any(path[:, :, None] == number[:, None], axis=1) & (outcome.verdict.count > 0)[:, None]
        tried = jnp.take_along_axis(accepted, x.parents, axis=1) & (x.kind != EMPTY) & (number > 0)
        which = bin_of(x.score, x.parents)[:, :, None] == jnp.arange(BINS)[None, None]
        add = lambda chosen: jnp.sum(which & chosen[:, :, None], axis=1).astype(jnp.float32)  # noqa: E731
        ran = (outcome.verdict.count > 0)[:, None]
        fresh = lambda old, chosen: jnp.where(ran, fade * old + add(chosen), old)  # noqa: E731
        return PaceState(inner, fresh(state.hits, tried & accepted), fresh(state.tries, tried))

    return drafter._replace(init=init, draft=draft, observe=observe, kinds=frozenset((FORCED, DETERMINISTIC)), name=f"paced({drafter.name})")
