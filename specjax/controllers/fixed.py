"""`fixed`: the same plan every round, or no draft at all."""
from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from specjax.types import Array, Context, Controller, Outcome, Plan, Signal, piece

UNLIMITED = 1 << 20


@piece
def fixed(depth: int = UNLIMITED, rows: int = UNLIMITED) -> Controller:
    """Lets the drafter draft up to `depth` tokens deep and `rows` rows, the root included.

    Args:
      depth: longest path; 0 is plain decoding. rows: rows of a pass; 1 is plain decoding. Defaults: all the drafter makes.

    Returns:
      A stateless Controller.

    Raises:
      ValueError: a negative depth, or fewer than one row.
    """
    if depth < 0 or rows < 1:
        raise ValueError(f"depth is {depth} and rows is {rows}: at least 0 and 1 are needed")

    def init(batch: int) -> tuple[()]:
        del batch
        return ()

    def plan(ctx: Context, state: Any) -> tuple[Plan, Any]:
        batch = ctx.root.shape[0]
        return Plan(jnp.full(batch, depth, jnp.int32), jnp.full(batch, rows, jnp.int32), jnp.int32(0)), state

    def keep_going(hint: Any, signal: Signal) -> tuple[Any, Array]:
        return hint, jnp.ones(signal.top.shape, bool)

    def observe(state: Any, outcome: Outcome) -> Any:
        del outcome
        return state

    return Controller(init, plan, keep_going, observe, f"fixed({depth}, {rows})" if depth < UNLIMITED else "fixed")
