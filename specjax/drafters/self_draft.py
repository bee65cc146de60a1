"""The target drafts for itself, through the context: some of its layers skipped (`layer_skip`), or only the first ones run
(`early_exit`, whose layers the pass does not run again).

Both read the target's cache and keep their rows in a scratch of their own: nothing is written that must be rolled back.
(Draft & Verify, Zhang et al. 2023; LayerSkip, Elhoushi et al. 2024.)
"""
from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import tree
from specjax.expand.base import Expansion
from specjax.types import Array, Computed, Context, Draft, Drafter, Outcome, Plan, Rows, piece


class Gates(NamedTuple):
    """Which sub-layers run, data that a controller may change: `attention` bool[L], `mlp` bool[L], shared by the batch."""

    attention: Array
    mlp: Array


class GatedState(NamedTuple):
    """`shared`: the Gates."""

    shared: Gates


def _root_row(ctx: Context, slots: int) -> Rows:
    """The root as the query row of slot 0."""
    batch = ctx.root.shape[0]
    seen = jnp.broadcast_to(jnp.arange(slots) == 0, (batch, 1, slots))
    return Rows(ctx.root[:, None], jnp.zeros((batch, 1), jnp.int32), seen, 0)


@piece
def layer_skip(expansion: Expansion, attention: tuple[bool, ...], mlp: tuple[bool, ...]) -> Drafter:
    """The target with some attention and MLP sub-layers skipped.

    Args:
      expansion: how its laws become a tree. attention, mlp: one flag a layer, True = run it.

    Returns:
      A Drafter; the flags live in its state as data.

    Raises:
      ValueError: lists of different lengths.
    """
    if len(attention) != len(mlp):
        raise ValueError(f"{len(attention)} attention gates and {len(mlp)} mlp gates: one of each a layer")

    def init(params: dict[str, Any], batch: int, capacity: int, depth: int) -> GatedState:
        del params, batch, capacity, depth
        return GatedState(Gates(jnp.asarray(attention), jnp.asarray(mlp)))

    def draft(ctx: Context, state: GatedState, plan: Plan) -> tuple[Draft, GatedState]:
        del plan
        t, weights = ctx.target, ctx.params["target"]

        def step(scratch: Any, rows: Rows) -> tuple[Array, Any]:
            x = t.embed(weights, rows.tokens)
            x, scratch, _ = t.run_layers(weights, ctx.cache, scratch, x, rows, 0, t.layers, state.shared)
            return t.readout(weights, x), scratch

        first, scratch = step(t.scratch(weights, ctx.root.shape[0], expansion.slots), _root_row(ctx, expansion.slots))
        return expansion.expand(ctx, step, first[:, 0], scratch)[0], state

    def observe(ctx: Context, state: GatedState, outcome: Outcome) -> GatedState:
        del ctx, outcome
        return state

    return Drafter(init, draft, observe, expansion.rows, expansion.depth, expansion.kinds, name=f"layer_skip[{expansion.name}]",
                   sources=("layer_skip",))


@piece
def early_exit(expansion: Expansion, layers: int) -> Drafter:
    """The first `layers` blocks and the target's head draft; the pass resumes after them on the same rows.

    Args:
      expansion: a static tree (slot n is row n). layers: E, blocks that are run to draft.

    Returns:
      A Drafter whose drafts carry `computed` rows.

    Raises:
      ValueError: an expansion whose slots are not its rows, or no layer.
    """
    if not expansion.levels:
        raise ValueError(f"early_exit needs an expansion whose scratch slots are its rows; {expansion.name!r} is not")
    if layers < 1:
        raise ValueError(f"layers is {layers}: at least one block must run")

    def init(params: dict[str, Any], batch: int, capacity: int, depth: int) -> tuple[()]:
        del params, batch, capacity, depth
        return ()

    def draft(ctx: Context, state: Any, plan: Plan) -> tuple[Draft, Any]:
        del plan
        t, weights, batch = ctx.target, ctx.params["target"], ctx.root.shape[0]

        def prefix(carry: tuple[Any, Array], rows: Rows) -> tuple[Array, tuple[Any, Array]]:
            scratch, hidden = carry
            x, scratch, _ = t.run_layers(weights, ctx.cache, scratch, t.embed(weights, rows.tokens), rows, 0, layers)
            at = jnp.asarray(rows.at) + jnp.arange(rows.tokens.shape[1])
            return x, (scratch, hidden.at[:, :, at].set(x))

        def step(carry: tuple[Any, Array], rows: Rows) -> tuple[Array, tuple[Any, Array]]:
            x, carry = prefix(carry, rows)
            return t.readout(weights, x), carry

        x = t.embed(weights, ctx.root[:, None])
        carry = (t.scratch(weights, batch, expansion.slots), jnp.zeros((x.shape[0], batch, expansion.slots), x.dtype))
        first, carry = step(carry, _root_row(ctx, expansion.slots))
        made, carry = expansion.expand(ctx, step, first[:, 0], carry)
        # The last level was drawn but not run: the pass resumes on its rows too.
        leaves = expansion.rows - expansion.levels[-1]
        seen = _leaf_mask(made, leaves, expansion.slots)
        depth = jnp.full((batch, expansion.levels[-1]), expansion.depth)
        _, (scratch, hidden) = prefix(carry, Rows(jnp.maximum(made.tokens[:, leaves:], 0), depth, seen, leaves))
        return made._replace(computed=Computed(hidden[:, :, :expansion.rows], scratch, layers)), state

    def observe(ctx: Context, state: Any, outcome: Outcome) -> Any:
        del ctx, outcome
        return state

    return Drafter(init, draft, observe, expansion.rows, expansion.depth, expansion.kinds, name=f"early_exit({layers})[{expansion.name}]",
                   sources=("early_exit",), computes=layers)


def _leaf_mask(draft: Draft, start: int, slots: int) -> Array:
    """bool[B,leaves,slots]: what the rows from `start` on see."""
    seen = jax.vmap(tree.ancestors)(draft.parents)[:, start:]
    return jnp.pad(seen, ((0, 0), (0, 0), (0, slots - seen.shape[2])))
