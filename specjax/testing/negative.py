"""Drafters and verifiers that are wrong in ways that shipped code was wrong. Every proof must fail on them.

`drop_unlikely` has both forms: a sample silently dropped because of its value is biased, a void node with the dropped mass taken out
of its q row is exact.
"""
from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from specjax import noise as coins
from specjax import tree
from specjax.expand.base import Expansion, Step
from specjax.types import EMPTY, WITHOUT_REPLACEMENT, Array, Context, Draft, Drafter, Plan, Verifier, piece


def _changed(drafter: Drafter, change: Any, name: str) -> Drafter:
    def draft(ctx: Context, state: Any, plan: Plan) -> tuple[Draft, Any]:
        made, state = drafter.draft(ctx, state, plan)
        return change(made), state

    return drafter._replace(draft=draft, name=f"{name}({drafter.name})")


def _with_q(draft: Draft, log_q: Array) -> Draft:
    return draft._replace(proposal=draft.proposal._replace(log_q=log_q))


def _q_of_nodes(draft: Draft) -> Array:
    """log q of each node's own token: f[B,R]."""
    law = jnp.take_along_axis(draft.proposal.log_q, draft.proposal.row[..., None], axis=1)
    return jnp.take_along_axis(law, jnp.maximum(draft.tokens, 0)[..., None], axis=2)[..., 0]


@piece
def argmax_as_sampled(drafter: Drafter) -> Drafter:
    """A value chosen without coins, verified with its softmax probability as if it had been drawn (one level)."""
    def change(draft: Draft) -> Draft:
        top = jnp.argmax(draft.proposal.log_q, axis=2).astype(jnp.int32)
        chosen = jnp.take_along_axis(top, draft.proposal.row, axis=1)
        number = jnp.arange(draft.tokens.shape[1])[None]
        return draft._replace(tokens=jnp.where(number > 0, chosen, draft.tokens))

    return _changed(drafter, change, "argmax_as_sampled")


@piece
def drop_unlikely(drafter: Drafter, least: float, void: bool) -> Drafter:
    """Drops samples whose probability is below `least`: as void nodes with sub-normalised q rows, or silently (biased)."""
    def change(draft: Draft) -> Draft:
        number = jnp.arange(draft.tokens.shape[1])[None]
        unlikely = (_q_of_nodes(draft) < jnp.log(least)) & (number > 0) & (draft.kind != EMPTY)
        number, same_group = number[0], draft.parents[:, :, None] == draft.parents[:, None, :]
        after = same_group & (number[:, None] > number[None, :])[None] & (draft.kind == WITHOUT_REPLACEMENT)[:, :, None]
        ended = jnp.any(after & unlikely[:, None, :], axis=2)  # a void ends its group of draws without replacement
        unlikely = unlikely & ~ended
        gone = unlikely | ended
        for _ in range(drafter.depth):  # nothing hangs below a dropped node
            gone = gone | jnp.take_along_axis(gone, draft.parents, axis=1)
        if not void:
            return tree.drop(draft, gone)
        draft = tree.drop(draft, gone & ~unlikely)
        draft = draft._replace(tokens=jnp.where(unlikely & (draft.kind != EMPTY), -1, draft.tokens))
        log_q = draft.proposal.log_q
        return _with_q(draft, jnp.where(log_q < jnp.log(least), -jnp.inf, log_q))

    return _changed(drafter, change, "drop_unlikely")


@piece
def top_p_on_one_side(drafter: Drafter, p: float) -> Drafter:
    """Draws from the full law, stores the law after top-p: the law stored is not the law drawn from."""
    def change(draft: Draft) -> Draft:
        q = jnp.exp(draft.proposal.log_q)
        above = jnp.sum(jnp.where(q[..., None, :] > q[..., :, None], q[..., None, :], 0.0), axis=-1)
        kept = jnp.where(above < p, q, 0.0)
        return _with_q(draft, jnp.log(kept / jnp.sum(kept, axis=-1, keepdims=True)))

    return _changed(drafter, change, "top_p_on_one_side")


@piece
def better_of_two(drafter: Drafter) -> Drafter:
    """Of two independent siblings, keeps the likelier and still declares it drawn."""
    def change(draft: Draft) -> Draft:
        value = _q_of_nodes(draft)
        first = (value[:, 1] >= value[:, 2])[:, None]
        return tree.drop(draft, jnp.concatenate([jnp.zeros_like(first), ~first, first], axis=1))

    return _changed(drafter, change, "better_of_two")


@piece
def shared_coin(expansion: Expansion) -> Expansion:
    """Draws the first token by inverting the cumulative law with the very uniform that the verifier will test it with."""
    def expand(ctx: Context, step: Step, first: Array, carry: Any) -> tuple[Draft, Any]:
        draft, carry = expansion.expand(ctx, step, first, carry)
        u = coins.uniform(ctx.noise, coins.ACCEPT, ctx.index, jnp.ones_like(ctx.index))
        cumulative = jnp.cumsum(jnp.exp(draft.proposal.log_q[:, 0]), axis=1)
        token = jnp.sum(cumulative < u[:, None], axis=1).astype(jnp.int32)
        return draft._replace(tokens=draft.tokens.at[:, 1].set(jnp.minimum(token, first.shape[1] - 1))), carry

    return expansion._replace(expand=expand, name=f"shared_coin[{expansion.name}]")


@piece
def keyed_by_position(verifier: Verifier) -> Verifier:
    """Claims that a rule of coins follows the text's noise, so that drafters draw with coins keyed by position alone."""
    return verifier._replace(coupled=True, name=f"keyed_by_position({verifier.name})")
