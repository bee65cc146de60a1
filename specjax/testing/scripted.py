"""A drafter that knows the answer and spoils it on purpose, so that each round accepts exactly as many tokens as asked.

The true continuation is data, ``params["truth"]`` i32[B,N], and so is the script, ``params["accepts"]`` i32[n]: round r drafts the
next K tokens with the one at depth ``accepts[r mod n] + 1`` changed. `nosy` is a controller that reads what no controller should
need: tokens of rejected rows.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from specjax import tree
from specjax.controllers.fixed import UNLIMITED
from specjax.types import DETERMINISTIC, FORCED, Array, Context, Controller, Draft, Drafter, Outcome, Plan, Signal, piece


class Turn(NamedTuple):
    """How many rounds each batch row has drafted: i32[B]."""

    round: Array


@piece
def scripted(length: int) -> Drafter:
    """A chain of the true continuation, wrong after a scripted number of tokens.

    Args:
      length: K, at least every entry of the script.

    Returns:
      A Drafter that reads the trees "truth" and "accepts".
    """
    def init(params: dict[str, Any], batch: int, capacity: int, depth: int) -> Turn:
        del params, capacity, depth
        return Turn(jnp.zeros(batch, jnp.int32))

    def draft(ctx: Context, state: Turn, plan: Plan) -> tuple[Draft, Turn]:
        del plan
        truth, accepts, number = ctx.params["truth"], ctx.params["accepts"], jnp.arange(length)[None]
        at = jnp.minimum(ctx.index[:, None] + 1 + number, truth.shape[1] - 1)
        tokens = jnp.take_along_axis(truth, at, axis=1)
        right = accepts[state.round % accepts.shape[0]]
        tokens = jnp.where(number == right[:, None], (tokens + 1) % ctx.target.vocab, tokens)
        return tree.chain(ctx.root, tokens, jnp.full_like(ctx.root, length)), Turn(state.round + 1)

    def observe(ctx: Context, state: Turn, outcome: Outcome) -> Turn:
        del ctx, outcome
        return state

    return Drafter(init, draft, observe, rows=length + 1, depth=length, kinds=frozenset((FORCED, DETERMINISTIC)),
                   name=f"scripted({length})", params=("truth", "accepts"), sources=("scripted",))


class NosyState(NamedTuple):
    """Depth allowed in the next round: i32[B]."""

    depth: Array


@piece
def nosy(longest: int) -> Controller:
    """Sets the next round's depth from the tokens of rejected rows: allowed, and biased wherever coins are used twice.

    Args:
      longest: K of the drafter.

    Returns:
      A Controller.
    """
    def init(batch: int) -> NosyState:
        return NosyState(jnp.full(batch, longest, jnp.int32))

    def plan(ctx: Context, state: NosyState) -> tuple[Plan, NosyState]:
        del ctx
        return Plan(state.depth, jnp.full_like(state.depth, UNLIMITED), jnp.int32(0)), state

    def keep_going(hint: Any, signal: Signal) -> tuple[Any, Array]:
        return hint, jnp.ones(signal.top.shape, bool)

    def observe(state: NosyState, outcome: Outcome) -> NosyState:
        del state
        draft, path = outcome.draft, outcome.verdict.path
        number = jnp.arange(draft.tokens.shape[1])[None]
        taken = jnp.any(path[:, :, None] == number[:, None], axis=1)
        rejected = (draft.kind != FORCED) & ~taken
        total = jnp.sum(jnp.where(rejected, draft.tokens * (number % 2 + 1), 0), axis=1)
        return NosyState((total % (longest + 1)).astype(jnp.int32))

    return Controller(init, plan, keep_going, observe, f"nosy({longest})")
