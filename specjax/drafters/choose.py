"""Drafters of which one is chosen: `select` by the controller's arm, before anything is drawn; `cascade` by the confidence of the drafts.

What is not chosen is not run, unless its drafting changes its state, as a model with a cache of its own does: such a drafter drafts every
round. The others run inside a `switch` or `cond` that returns their draft alone, so that nothing large is copied.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from specjax import noise as coins
from specjax import tree
from specjax.drafters.combine import joined
from specjax.types import DETERMINISTIC, FORCED, Context, Draft, Drafter, Plan, Proposal, piece

Thunk = Callable[[], Draft]


def _lazily(drafters: tuple[Drafter, ...], ctx: Context, states: tuple[Any, ...], plan: Plan, change: Callable[[Draft], Draft]
            ) -> tuple[list[Thunk], list[Draft], tuple[Any, ...]]:
    """What makes each draft when it is called, the drafts as traced once, and the states after drafting.

    Where tracing shows that a drafter leaves its state as it is, the draft is traced again inside the branch that calls it, and what was
    traced here is dropped by the compiler as unused.
    """
    thunks, traced, kept, offset = [], [], [], 0
    for i, (d, state) in enumerate(zip(drafters, states, strict=True)):
        def make(i: int = i, d: Drafter = d, state: Any = state, offset: int = offset) -> tuple[Draft, Any]:
            made, after = d.draft(ctx._replace(noise=coins.child(ctx.noise, i)), state, plan)
            return change(made._replace(source=made.source + offset, own={}, computed=None)), after

        made, after = make()
        same = all(a is b for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True))
        thunks.append((lambda make=make: make()[0]) if same else (lambda made=made: made))
        traced.append(made)
        kept.append(after)
        offset += len(d.sources)
    return thunks, traced, tuple(kept)


def _with_laws(draft: Draft, q_rows: int, vocab: int, dtype: Any) -> Draft:
    """The draft with a proposal of `q_rows` laws, so that all arms return one shape."""
    batch, rows = draft.tokens.shape
    p = draft.proposal or Proposal(jnp.full((batch, 0, vocab), -jnp.inf, dtype), jnp.zeros((batch, rows), jnp.int32))
    if p.ids is not None:
        raise ValueError("an arm of select speaks a draft vocabulary: redeclare it deterministic")
    return draft._replace(proposal=p._replace(log_q=jnp.pad(p.log_q, ((0, 0), (0, q_rows - p.log_q.shape[1]), (0, 0)), constant_values=-jnp.inf)))


@piece
def select(*drafters: Drafter) -> Drafter:
    """One of several drafters a round, for the whole batch: the one that ``plan.arm`` names. Every law is kept.

    All observe every outcome, whoever drafted. The choice is the controller's (see `controllers.bandit`), made before a value is drawn.

    Args:
      *drafters: two or more.

    Returns:
      A Drafter of all their kinds.
    """
    rows, depth = max(d.rows for d in drafters), max(d.depth for d in drafters)

    def draft(ctx: Context, states: tuple[Any, ...], plan: Plan) -> tuple[Draft, tuple[Any, ...]]:
        thunks, traced, states = _lazily(drafters, ctx, states, plan, lambda d: tree.pad(d, rows))
        laws = [d.proposal.log_q for d in traced if d.proposal is not None]
        if not laws:
            return jax.lax.switch(plan.arm, thunks), states
        most = max(q.shape[1] for q in laws)
        branches = [lambda t=t: _with_laws(t(), most, laws[0].shape[2], laws[0].dtype) for t in thunks]
        return jax.lax.switch(plan.arm, branches), states

    return joined(drafters, draft, rows, frozenset().union(*(d.kinds for d in drafters)), "select")._replace(depth=depth)


def expected_tokens(draft: Draft) -> jax.Array:
    """f32[B]: the sum of the nodes' scores, the tokens that the drafter itself expects to be accepted."""
    return jnp.sum(draft.score[:, 1:], axis=1)


@piece
def cascade(*drafters: Drafter, least: tuple[float, ...] = (1.0,)) -> Drafter:
    """The first drafter that is confident: its draft expects at least ``least[i]`` accepted tokens; else the last one's.

    The choice looks at values, so every sampled node is redeclared deterministic. A later drafter runs only if some row needs it.

    Args:
      *drafters: two or more, the first choice first. least: expected tokens that each but the last must reach; one value serves all.

    Returns:
      A Drafter of deterministic nodes.

    Raises:
      ValueError: a wrong number of thresholds.
    """
    if len(least) not in (1, len(drafters) - 1):
        raise ValueError(f"{len(least)} thresholds for {len(drafters)} drafters: one, or one for each but the last")
    bars, rows = least * (len(drafters) - 1 if len(least) == 1 else 1), max(d.rows for d in drafters)

    def draft(ctx: Context, states: tuple[Any, ...], plan: Plan) -> tuple[Draft, tuple[Any, ...]]:
        thunks, _, states = _lazily(drafters, ctx, states, plan, lambda d: tree.pad(tree.as_deterministic(d), rows))
        out, sure = thunks[0](), jnp.zeros(ctx.root.shape, bool)
        for i, bar in enumerate(bars):
            sure = sure | (expected_tokens(out) >= bar)
            out = jax.lax.cond(jnp.all(sure), lambda out=out: out, lambda i=i, out=out, sure=sure: _pick(sure, out, thunks[i + 1]()))
        return out, states

    return joined(drafters, draft, rows, frozenset((FORCED, DETERMINISTIC)), "cascade")


def _pick(first: jax.Array, a: Draft, b: Draft) -> Draft:
    return Draft(*(jnp.where(first[:, None], x, y) for x, y in zip(a[:5], b[:5], strict=True)))
