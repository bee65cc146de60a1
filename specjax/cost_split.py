"""Where the time of a generation goes: drafting, target passes, and the rest (verify, commit, observe).

Drafting alone and a pass alone are timed as jitted loops on a state in the middle of the generation, so that lengths are typical and
dispatch is not in it. Both are pure functions of the state: it is read, never changed.
"""
from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import round as rounds
from specjax import sampling, tree
from specjax.decode import OPTIONS
from specjax.pass_cost import timed
from specjax.types import Array, Draft, Method


class CostSplit(NamedTuple):
    """Milliseconds of a whole generation, and of one draft and one pass.

    Attributes:
      draft_ms, pass_ms, rest_ms: their sum is the measured decode time. `rest_ms` is what the two parts leave: verify, commit,
        observe. one_draft_ms: of a round. one_pass_ms: by rows of the pass.
    """

    draft_ms: float
    pass_ms: float
    rest_ms: float
    one_draft_ms: float
    one_pass_ms: dict[int, float]


@functools.partial(jax.jit, static_argnames=("m", "steps"), compiler_options=OPTIONS)
def drafts(m: Method, params: dict[str, Any], s: rounds.State, steps: int) -> Array:
    """Drafts `steps` times from one state; i32[B], worthless."""
    ctx = rounds.context(m, params, s)
    plan, _ = m.controller.plan(ctx, s.controller)

    def body(_: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, root = carry
        made, state = m.drafter.draft(ctx._replace(root=root), state, plan)
        wanted = made.tokens[:, -1] == -2  # never: a need for the result, so that it is made
        if made.computed is not None:
            wanted |= jnp.any(made.computed.hidden[0] > 1e30, axis=1)
        # The barrier hides that the state may not have changed: the draft would be taken out of the loop.
        return jax.lax.optimization_barrier((state, jnp.where(wanted, made.tokens[:, -1], root)))

    return jax.lax.fori_loop(0, steps, body, (s.drafter, s.root))[1]


@functools.partial(jax.jit, static_argnames=("m", "rows", "steps"), compiler_options=OPTIONS)
def passes(m: Method, params: dict[str, Any], s: rounds.State, rows: int, steps: int) -> Array:
    """`steps` target passes of `rows` rows over the cache of a state, nothing verified or committed; i32[B] last greedy token."""
    batch, target, weights = s.root.shape[0], m.target, params["target"]

    def draft() -> Draft:
        if not m.drafter.computes:
            return tree.chain(s.root, jnp.broadcast_to(s.root[:, None], (batch, rows - 1)), jnp.full(batch, rows - 1))
        ctx = rounds.context(m, params, s)
        return tree.first(tree.pad(m.drafter.draft(ctx, s.drafter, m.controller.plan(ctx, s.controller)[0])[0], m.rows), rows)

    x = draft()

    def body(_: Array, root: Array) -> Array:
        scratch, extra = target.scratch(weights, batch, rows), {}
        if x.computed is not None:
            at = jnp.minimum(jnp.arange(rows), x.computed.hidden.shape[2] - 1)
            scratch = target.select(x.computed.scratch, jnp.broadcast_to(at, (batch, rows)))
            hidden = jax.lax.optimization_barrier((x.computed.hidden[:, :, at], root))[0]
            extra = {"resume": (hidden, x.computed.layer)}
        now = x._replace(tokens=x.tokens.at[:, 0].set(root))
        features, _ = target.forward(weights, s.cache, scratch, tree.rows(now), m.want, **extra)
        return sampling.argmax(features["logits"])[:, 0]

    return jax.lax.fori_loop(0, steps, body, s.root)


def split(m: Method, params: dict[str, Any], middle: rounds.State, count: dict[int, int], seconds: float, steps: int = 8,
          repeats: int = 3) -> CostSplit:
    """Splits the decode time of a generation.

    Args:
      m, params: the composition. middle: a state of the generation about half-way, prefilled. count: rows -> passes of that size in
        the whole generation. seconds: its decode time. steps, repeats: of the timed loops.

    Returns:
      A CostSplit. Parts are timed on their own, so that `rest_ms` may come out a little below 0 when it is near 0.
    """
    draft = 0.0 if m.depth == 0 else timed(lambda: drafts(m, params, middle, steps), steps, repeats).median_ms
    one = {rows: timed(lambda rows=rows: passes(m, params, middle, rows, steps), steps, repeats).median_ms
           for rows, n in count.items() if n}
    drafting = draft * sum(count.values())
    passing = sum(one[rows] * n for rows, n in count.items() if n)
    return CostSplit(drafting, passing, 1e3 * seconds - drafting - passing, draft, one)
