"""Chains copied from one earlier place of the request's own text; what differs is the place and the length.

`prompt_lookup` (Saxena 2023) takes the first place where the last 3, else 2, else 1 tokens occur with a whole continuation; `llma`
(Yang et al. 2023) the first place in the prompt alone, by up to 5 tokens; `automaton` (Hu et al. 2024, SAM-Decoding) the longest match
of any length, its earliest end, copied for a multiple of the match. Each is one reduction over the running matches e[j].
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from specjax import tree
from specjax.drafters import match_state
from specjax.drafters.match_state import MatchState
from specjax.types import DETERMINISTIC, FORCED, Array, Context, Draft, Drafter, Outcome, Plan, piece

Rule = Callable[[Array, Array, Array], tuple[Array, Array]]
"""(e i32[S], length i32[], prompt i32[] tokens of it) -> (position i32[], tokens to copy i32[])."""


def _copier(rule: Rule, longest: int, cap: int, name: str, source: str) -> Drafter:
    def init(params: dict[str, Any], batch: int, capacity: int, depth: int) -> MatchState:
        del params, depth
        return match_state.empty(batch, capacity)

    def draft(ctx: Context, state: MatchState, plan: Plan) -> tuple[Draft, MatchState]:
        del plan
        at, count = jax.vmap(rule)(jnp.minimum(state.e, cap), state.length, ctx.position - ctx.index)
        tokens, ok = match_state.rows_after(state.text, state.length, at[:, None], longest, wrap=False)
        return tree.chain(ctx.root, tokens[:, 0], jnp.minimum(count, jnp.sum(ok[:, 0], axis=1))), state

    def observe(ctx: Context, state: MatchState, outcome: Outcome) -> MatchState:
        return match_state.follow(ctx, state, outcome, cap)

    return Drafter(init, draft, observe, longest + 1, longest, frozenset((FORCED, DETERMINISTIC)), name, sources=(source,))


def _check(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")


@piece
def prompt_lookup(longest_match: int = 3, length: int = 10) -> Drafter:
    """Prompt lookup in its published form: the first place, of the longest match, that leaves `length` tokens to copy.

    Args:
      longest_match: tokens of the suffix tried first; then one less, down to 1. length: tokens copied.

    Returns:
      A Drafter of chains. It does not go round at the end of the text, so the nearest repeat is often out of reach.
    """
    _check(longest_match=longest_match, length=length)

    def rule(e: Array, used: Array, prompt: Array) -> tuple[Array, Array]:
        del prompt
        e = jnp.where(jnp.arange(e.shape[0]) + length < used, e, 0)
        at = jnp.argmax(e)
        return at, jnp.where(e[at] > 0, length, 0)

    return _copier(rule, length, longest_match, f"prompt_lookup({longest_match}, {length})", "prompt_lookup")


@piece
def llma(longest_match: int = 5, length: int = 15) -> Drafter:
    """Copies from the prompt alone, where the references stand, after its first place with the longest match.

    Args:
      longest_match: tokens of a trigger tried first. length: tokens copied (the paper's block is 20, the known token included).
    """
    _check(longest_match=longest_match, length=length)

    def rule(e: Array, used: Array, prompt: Array) -> tuple[Array, Array]:
        del used
        e = jnp.where(jnp.arange(e.shape[0]) < prompt - 1, e, 0)
        at = jnp.argmax(e)
        return at, jnp.where(e[at] > 0, jnp.minimum(length, prompt - 1 - at), 0)

    return _copier(rule, length, longest_match, f"llma({longest_match}, {length})", "llma")


@piece
def automaton(alpha: float = 4.0, length: int = 15, earliest: bool = True, cap: int = 60) -> Drafter:
    """What a suffix automaton of the text would propose: after the longest match, ``alpha`` times its length in tokens.

    Args:
      alpha: tokens a token of the match. length: most tokens copied. earliest: the first end position, as the automaton keeps it;
        else the most recent one. cap: longest match that is counted.
    """
    _check(length=length, cap=cap)
    if alpha <= 0:
        raise ValueError(f"alpha is {alpha}: it must be positive")

    def rule(e: Array, used: Array, prompt: Array) -> tuple[Array, Array]:
        del used, prompt
        at = jnp.argmax(e) if earliest else e.shape[0] - 1 - jnp.argmax(e[::-1])
        return at, jnp.minimum((alpha * e[at].astype(jnp.float32)).astype(jnp.int32), length)

    return _copier(rule, length, cap, f"automaton({alpha:g}, {length})", "automaton")


@piece
def anpd(order: int = 5, length: int = 6, pointers: int = 32) -> Drafter:
    """Adaptive n-gram drafting (Ou et al. 2024): each token the most frequent follower at the highest order that has one.

    The drafted tokens enter the context of the next, on a copy of the running matches; counts are exact while at most `pointers`
    places share the context, and those of the most recent places beyond.

    Args:
      order: N of the n-gram. length: tokens drafted. pointers: M places looked at.
    """
    _check(length=length, pointers=pointers)
    if order < 2:
        raise ValueError(f"order is {order}: at least a bigram is needed")

    def init(params: dict[str, Any], batch: int, capacity: int, depth: int) -> MatchState:
        del params, depth
        return match_state.empty(batch, capacity)

    def draft(ctx: Context, state: MatchState, plan: Plan) -> tuple[Draft, MatchState]:
        del plan
        number = jnp.arange(state.text.shape[1])[None]
        known = number < state.length[:, None] - 1
        following = jnp.roll(state.text, -1, axis=1)

        def step(c: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
            e, going = c
            at, length_of = match_state.top(e, min(pointers, e.shape[1]))
            mine = (length_of == length_of[:, :1]) & (length_of > 0)
            token = jnp.take_along_axis(following, at, axis=1)
            votes = jnp.sum((token[:, :, None] == token[:, None]) & mine[:, None], axis=2)
            chosen = jnp.take_along_axis(token, jnp.argmax(jnp.where(mine, votes, -1), axis=1)[:, None], axis=1)
            going = going & (length_of[:, 0] > 0)
            longer = jnp.minimum(jnp.where(number > 0, jnp.roll(e, 1, axis=1), 0) + 1, order - 1)
            e = jnp.where((state.text == chosen) & known, longer, 0)
            return (e, going), (chosen[:, 0], going)

        going = jnp.ones(ctx.root.shape, bool)
        _, (tokens, alive) = jax.lax.scan(step, (jnp.minimum(state.e, order - 1), going), None, length=length)
        return tree.chain(ctx.root, tokens.T, jnp.sum(alive, axis=0)), state

    def observe(ctx: Context, state: MatchState, outcome: Outcome) -> MatchState:
        return match_state.follow(ctx, state, outcome, order - 1)

    return Drafter(init, draft, observe, length + 1, length, frozenset((FORCED, DETERMINISTIC)), f"anpd({order}, {length})", sources=("anpd",))
