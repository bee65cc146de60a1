"""`lookup`: propose what followed the longest earlier match of the text's own suffix (prompt lookup, Saxena 2023).

A longer match is trusted longer. The lengths are those that fill a pass of a row count at which cost has a flat: with the default,
a match of 2 tokens fills a pass of 4 rows and one of 5 a pass of 16. A match may start in the prompt or in the output, and where its
continuation reaches the end of the text it goes round with the match's own period.
"""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from specjax import tree
from specjax.drafters import match_state
from specjax.drafters.match_state import MatchState
from specjax.types import DETERMINISTIC, FORCED, Context, Draft, Drafter, Outcome, Plan, piece


@piece
def lookup(lengths: tuple[tuple[int, int], ...] = ((2, 3), (5, 15)), cap: int = 60) -> Drafter:
    """Suffix matches in the request's own text, as chains.

    Args:
      lengths: (shortest match, tokens to draft) pairs, both ascending; the last pair that a match reaches counts.
      cap: matches longer than this count as this long.

    Returns:
      A Drafter without parameters; its state is the text, bounded by the capacity, and dies with the request.

    Raises:
      ValueError: pairs that are empty, not positive or not ascending, or that start beyond the cap.
    """
    matches, amounts = [m for m, _ in lengths], [t for _, t in lengths]
    for values in (matches, amounts):
        if not values or min(values) < 1 or values != sorted(set(values)):
            raise ValueError(f"lengths is {lengths}: pairs (match, tokens) of positive, ascending numbers are needed")
    if matches[-1] > cap:
        raise ValueError(f"lengths asks for matches of {matches[-1]} tokens, but cap is {cap}")
    longest = amounts[-1]

    def init(params: dict[str, Any], batch: int, capacity: int, depth: int) -> MatchState:
        del params, depth
        return match_state.empty(batch, capacity)

    def draft(ctx: Context, state: MatchState, plan: Plan) -> tuple[Draft, MatchState]:
        del plan

        def one(s: MatchState) -> tuple[Any, ...]:
            j, e = match_state.best(s)
            reached = jnp.sum(e >= jnp.asarray(matches))
            return match_state.continuation(s, j, longest), jnp.asarray([0, *amounts])[reached], match_state.reach(e, longest)

        tokens, count, score = jax.vmap(one)(state)
        return tree.chain(ctx.root, tokens, count, score=score), state

    def observe(ctx: Context, state: MatchState, outcome: Outcome) -> MatchState:
        return match_state.follow(ctx, state, outcome, cap)

    return Drafter(init, draft, observe, rows=longest + 1, depth=longest, kinds=frozenset((FORCED, DETERMINISTIC)),
                   name=f"lookup({longest})", sources=("lookup",))
