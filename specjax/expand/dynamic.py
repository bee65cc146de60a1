"""EAGLE-2's tree: expand the `width` most probable nodes of each level, then keep the best rows of all candidates.

A node's score is the sum of the drafter's log-probabilities along its path, without temperature. A child never scores above its
parent and comes later, so a stable top-k never keeps a child without its parent. (Li et al., EAGLE-2, 2024.)
"""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.expand.base import Expansion, Step
from specjax.types import DETERMINISTIC, FORCED, Array, Context, Draft, Rows, piece


@piece
def dynamic(width: int = 8, depth: int = 4, rows: int = 16) -> Expansion:
    """A context-dependent tree of deterministic nodes.

    Args:
      width: nodes expanded a level, and children tried of each. depth: levels. rows: kept at the end, the root included.

    Returns:
      An Expansion.

    Raises:
      ValueError: fewer candidates than rows asked.
    """
    candidates = width + (depth - 1) * width * width
    if min(width, depth) < 1 or not 2 <= rows <= candidates + 1:
        raise ValueError(f"rows is {rows}: width {width} and depth {depth} give {candidates} candidates below the root")
    slots = 1 + (depth - 1) * width

    def expand(ctx: Context, step: Step, first: Array, carry: Any) -> tuple[Draft, Any]:
        batch = ctx.root.shape[0]
        none, zero = jnp.full((batch, 1, depth), -1, jnp.int32), jnp.zeros((batch, 1), jnp.int32)
        score, token = jax.lax.top_k(sampling.log_normalize(sampling.adjusted(ctx, first[:, None], none, zero)[:, 0]), width)
        own = jnp.broadcast_to(jnp.arange(width), (batch, width))
        seen = jnp.broadcast_to(jnp.arange(slots) == 0, (batch, width, slots))

        def level(c: tuple[Any, ...], number: Array) -> tuple[tuple[Any, ...], tuple[Array, ...]]:
            token, score, own, seen, path, carry = c
            path = path.at[:, :, number - 1].set(token)
            at = 1 + (number - 1) * width
            seen = seen | (jnp.arange(slots)[None] == at + jnp.arange(width)[:, None])[None]
            logits, carry = step(carry, Rows(token, jnp.broadcast_to(number, token.shape), seen, at))
            logits = sampling.adjusted(ctx, logits, path, jnp.broadcast_to(number, token.shape))
            log_p, tokens = jax.lax.top_k(sampling.log_normalize(logits), width)
            total = (score[..., None] + log_p).reshape(batch, -1)
            parent = jnp.repeat(own, width, axis=1)
            tokens = tokens.reshape(batch, -1)
            score, best = jax.lax.top_k(total, width)
            pick = lambda x: jnp.take_along_axis(x, best, axis=1)  # noqa: E731
            base = width + (number - 1) * width * width
            seen, path = (jnp.take_along_axis(x, (best // width)[..., None], axis=1) for x in (seen, path))
            return (pick(tokens), score, base + best, seen, path, carry), (tokens, total, parent)

        all_tokens, all_scores, all_parents = token, score, jnp.full((batch, width), -1)
        if depth > 1:
            start = (token, score, own, seen, jnp.broadcast_to(none, (batch, width, depth)), carry)
            (*_, carry), ys = jax.lax.scan(level, start, jnp.arange(1, depth))
            flat = [jnp.moveaxis(y, 0, 1).reshape(batch, -1) for y in ys]
            all_tokens, all_scores, all_parents = (jnp.concatenate([a, b], axis=1) for a, b in
                                                   zip((all_tokens, all_scores, all_parents), flat, strict=True))
        chosen = jnp.sort(jax.lax.top_k(all_scores, rows - 1)[1], axis=1)
        take = lambda x: jnp.take_along_axis(x, chosen, axis=1)  # noqa: E731
        slot = take(all_parents)
        parents = jnp.where(slot < 0, 0, 1 + jax.vmap(jnp.searchsorted)(chosen, slot)).astype(jnp.int32)
        zero, one = jnp.zeros((batch, 1), jnp.int32), jnp.ones((batch, 1), jnp.float32)
        kinds = jnp.broadcast_to(jnp.asarray([FORCED] + [DETERMINISTIC] * (rows - 1), jnp.int32), (batch, rows))
        draft = Draft(jnp.concatenate([ctx.root[:, None], take(all_tokens)], axis=1), jnp.concatenate([zero, parents], axis=1),
                      kinds, jnp.concatenate([one, jnp.exp(take(all_scores)).astype(jnp.float32)], axis=1),
                      jnp.zeros((batch, rows), jnp.int32))
        return draft, carry

    return Expansion(expand, rows, depth, slots, frozenset((FORCED, DETERMINISTIC)), (), f"dynamic({width}, {depth}, {rows})")
