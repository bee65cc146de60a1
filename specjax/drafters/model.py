"""`model`: any Target as drafter, with a cache of its own (Leviathan et al.; Chen et al.).

Tokens committed since its last pass wait in a buffer; the next draft begins with ONE pass over them, the root included, whose
last row gives the first level. Its cache therefore holds true tokens only, whoever drafted them, and the drafter is never a
token behind after a fully accepted block.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from specjax import round as rounds
from specjax import tree
from specjax.expand.base import Expansion
from specjax.types import Array, Context, Draft, Drafter, Outcome, Plan, Rows, Target, piece


class ModelState(NamedTuple):
    """The drafter's cache, and the committed tokens it has not read yet: i32[B,K+1], the first `count` i32[B] of them."""

    cache: Any
    waiting: Array
    count: Array


@piece
def model(target: Target, expansion: Expansion, params: str = "draft") -> Drafter:
    """A model that drafts with its own cache.

    Args:
      target: the drafter's model. expansion: how its laws become a tree. params: name of its parameters in the composition.

    Returns:
      A Drafter.
    """
    def init(trees: dict[str, Any], batch: int, capacity: int, depth: int) -> ModelState:
        cache = target.init(trees[params], batch, capacity)
        return ModelState(cache, jnp.zeros((batch, depth + 1), jnp.int32), jnp.zeros(batch, jnp.int32))

    def read(weights: Any, cache: Any, tokens: Array, count: Array, want: tuple[str, ...]) -> tuple[dict[str, Array], Any]:
        """A chain of true tokens through the model, committed at once."""
        batch, width = tokens.shape
        line = tree.chain(tokens[:, 0], tokens[:, 1:], jnp.full(batch, width - 1))
        features, work = target.forward(weights, cache, target.scratch(weights, batch, width), tree.rows(line), want)
        path = jnp.broadcast_to(jnp.arange(width), (batch, width))
        return features, target.commit(cache, target.select(work, path), count)

    def draft(ctx: Context, state: ModelState, plan: Plan) -> tuple[Draft, ModelState]:
        del plan
        weights, batch = ctx.params[params], ctx.root.shape[0]
        # Before the first round of a one-token prompt nothing waits yet: the root is all there is.
        first_time = (state.count == 0) & (ctx.index < 0)
        tokens = state.waiting.at[:, 0].set(jnp.where(first_time, ctx.root, state.waiting[:, 0]))
        count = jnp.where(first_time, 1, state.count)
        features, cache = read(weights, state.cache, tokens, count, ("final",))
        last = jnp.take_along_axis(features["final"], jnp.maximum(count - 1, 0)[:, None, None], axis=1)
        first = target.readout(weights, last.transpose(2, 0, 1))[:, 0]

        def step(scratch: Any, rows: Rows) -> tuple[Array, Any]:
            # The root is committed in this cache: slot 0 is not in use, and depth counts from the root's child.
            rows = rows._replace(depth=rows.depth - 1, mask=rows.mask & (jnp.arange(expansion.slots) > 0)[None, None])
            features, scratch = target.forward(weights, cache, scratch, rows, ("logits",))
            return features["logits"], scratch

        made, _ = expansion.expand(ctx, step, first, target.scratch(weights, batch, expansion.slots))
        return made, ModelState(cache, jnp.zeros_like(state.waiting), jnp.zeros_like(count))

    def observe(ctx: Context, state: ModelState, outcome: Outcome) -> ModelState:
        count = outcome.verdict.count
        if outcome.prefill:
            cache = read(ctx.params[params], state.cache, outcome.draft.tokens, count, ())[1]
            waiting = jnp.zeros_like(state.waiting).at[:, 0].set(outcome.verdict.next_token)
            moved = count > 0
            return ModelState(cache, jnp.where(moved[:, None], waiting, state.waiting), jnp.where(moved, 1, state.count))
        return state._replace(waiting=jnp.maximum(rounds.emitted(outcome.draft, outcome.verdict)[0], 0), count=count)

    return Drafter(init, draft, observe, expansion.rows, expansion.depth, expansion.kinds, name=f"model[{expansion.name}]",
                   params=(params,), vocab=target.vocab, sources=("model",))
