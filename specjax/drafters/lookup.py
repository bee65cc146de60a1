"""`lookup`: propose what followed the longest earlier match of the text's own suffix (prompt lookup; SuffixDecoding's length rule).

The match of length e suggests a chain of ``alpha * e`` tokens: long matches are trusted longer. A match may start in the prompt
or in the output, and where its continuation reaches the end of the text it goes round with the match's own period.
"""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from specjax import round as rounds
from specjax import tree
from specjax.drafters import match_state
from specjax.drafters.match_state import MatchState
from specjax.types import DETERMINISTIC, FORCED, Context, Draft, Drafter, Outcome, Plan, piece


@piece
def lookup(longest: int = 15, alpha: float = 4.0, min_match: int = 2, cap: int = 60) -> Drafter:
    """Suffix matches in the request's own text, as chains.

    Args:
      longest: most tokens drafted. alpha: tokens drafted for each matched token. min_match: shortest match that is used.
      cap: matches longer than this count as this long.

    Returns:
      A Drafter without parameters; its state is the text, bounded by the capacity, and dies with the request.

    Raises:
      ValueError: a parameter out of range.
    """
    if longest < 1 or alpha <= 0 or not 1 <= min_match <= cap:
        raise ValueError(f"longest is {longest}, alpha {alpha}, min_match {min_match}, cap {cap}: need longest >= 1, alpha > 0 and 1 <= min_match <= cap")

    def init(params: dict[str, Any], batch: int, capacity: int, depth: int) -> MatchState:
        del params, depth
        return match_state.empty(batch, capacity)

    def draft(ctx: Context, state: MatchState, plan: Plan) -> tuple[Draft, MatchState]:
        del plan

        def one(s: MatchState) -> tuple[Any, ...]:
            j, e = match_state.best(s)
            count = jnp.clip((alpha * e).astype(jnp.int32), 1, longest)
            return match_state.continuation(s, j, longest), jnp.where(e >= min_match, count, 0)

        tokens, count = jax.vmap(one)(state)
        return tree.chain(ctx.root, tokens, count), state

    def observe(ctx: Context, state: MatchState, outcome: Outcome) -> MatchState:
        # The text so far, the root included, is position + 1 tokens; before the first chunk not even the root is in it.
        new = jnp.concatenate([ctx.root[:, None], rounds.emitted(outcome.draft, outcome.verdict)[0]], axis=1)
        missing = (state.length <= ctx.position) & (outcome.verdict.count > 0)
        block = jnp.where(missing[:, None], new, jnp.roll(new, -1, axis=1))
        return jax.vmap(match_state.append, in_axes=(0, 0, 0, None))(state, block, outcome.verdict.count + missing, cap)

    return Drafter(init, draft, observe, rows=longest + 1, depth=longest, kinds=frozenset((FORCED, DETERMINISTIC)),
                   name=f"lookup({longest})", sources=("lookup",))
