"""`none`: no draft. With it the round is plain decoding, the baseline of every ratio."""
from __future__ import annotations

from typing import Any

from specjax import tree
from specjax.types import FORCED, Context, Draft, Drafter, Outcome, Plan, piece


@piece
def none() -> Drafter:
    """Drafts nothing: one row a pass.

    >>> none().rows
    1
    """
    def init(params: dict[str, Any], batch: int, capacity: int, depth: int) -> tuple[()]:
        del params, batch, capacity, depth
        return ()

    def draft(ctx: Context, state: Any, plan: Plan) -> tuple[Draft, Any]:
        del plan
        return tree.root_only(ctx.root, 1), state

    def observe(ctx: Context, state: Any, outcome: Outcome) -> Any:
        del ctx, outcome
        return state

    return Drafter(init, draft, observe, rows=1, depth=0, kinds=frozenset((FORCED,)), name="none")
