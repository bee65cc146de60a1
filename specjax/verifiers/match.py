"""`match`: same seed, same text. The default verifier.

At each visited row the target's own token is drawn by the exponential race under the noise of that text position,
``y = argmax_x p(x) / E(request, index, x)``. If a child carries y the walk follows it, else y is emitted and the walk ends.
y depends on the text alone, so the output is plain sampling's under the same seed, for ANY draft, even one that looks at the
noise. Temperature 0 is greedy verification.
"""
from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax import sampling, tree
from specjax.types import (
    DETERMINISTIC,
    EMPTY,
    FORCED,
    INDEPENDENT,
    RIDER,
    WITHOUT_REPLACEMENT,
    Array,
    Context,
    Draft,
    Scores,
    Verdict,
    Verifier,
    piece,
)
from specjax.verifiers.walk import Walk, adjusted_at, begin, law_at


@piece
def match() -> Verifier:
    """Sample once per visited row with the text's own noise, and follow.

    Returns:
      A Verifier that accepts every kind of node; lossless in the strongest sense ("text").

    >>> match().lossless
    'text'
    """
    def verify(ctx: Context, draft: Draft, scores: Scores) -> Verdict:
        batch, rows, vocab = scores.logits.shape
        ids, b = jnp.arange(vocab), jnp.arange(batch)
        children = (draft.parents[:, None, :] == jnp.arange(rows)[None, :, None]) & (jnp.arange(rows) > 0)[None, None]
        children &= ((draft.kind != EMPTY) & (draft.kind != RIDER))[:, None, :]
        distinct = tree.first_with_token(draft)

        def sampled(w: Walk) -> tuple[Array, Array]:
            log_p = law_at(ctx, draft, scores.logits, w)
            reach = jnp.exp(jnp.take_along_axis(log_p, jnp.maximum(draft.tokens, 0), axis=1))
            return sampling.race(log_p, sampling.text_times(ctx, w.depth + 1, ids)), reach

        def greedy(w: Walk) -> tuple[Array, Array]:
            y = sampling.argmax(adjusted_at(ctx, draft, scores.logits, w))
            return y, (draft.tokens == y[:, None]).astype(scores.logits.dtype)

        def step(w: Walk) -> Walk:
            y, reach = jax.lax.cond(jnp.all(ctx.warp.greedy(ctx.warp_state)), greedy, sampled, w)
            mine = children[b, w.row]
            must = mine & (draft.kind == FORCED)
            y = jnp.where(jnp.any(must, axis=1), jnp.max(jnp.where(must, draft.tokens, -1), axis=1), y)
            hit = mine & (draft.tokens == y[:, None])
            go_on = jnp.sum(jnp.where(mine & distinct & (draft.tokens >= 0), reach, 0.0), axis=1).astype(jnp.float32)
            go_on = jnp.where(jnp.any(mine, axis=1), go_on, -1.0)
            return w.advance(jnp.any(hit, axis=1), jnp.argmax(hit, axis=1), y, go_on)

        done = jax.lax.while_loop(lambda w: jnp.any(w.active), step, begin(draft))
        return done.verdict()

    kinds = frozenset((DETERMINISTIC, INDEPENDENT, WITHOUT_REPLACEMENT, FORCED, RIDER))
    return Verifier(verify, kinds, lossless="text", coupled=True, name="match")


def teacher_token(ctx: Context, logits: Array, index: Array) -> tuple[Array, Array]:
    """Plain sampling's token at given output indices, and by how much it won.

    Args:
      ctx: seeds, request ids and warp; `ctx.index` is ignored. logits: f[B,C,V] of the rows that judge. index: i32[B,C].

    Returns:
      (i32[B,C] winner; f32[B,C] gap between the two best race scores ``log p - log E``, the distance to a near-tie).
    """
    from specjax import noise as coins
    vocab = logits.shape[-1]
    none = jnp.full((*index.shape, 1), -1, jnp.int32)
    log_p = sampling.laws(ctx, logits, none, jnp.zeros_like(index))
    times = coins.race_times(ctx.noise, coins.TEXT, index, 0, jnp.arange(vocab))
    greedy_gap = jax.lax.top_k(logits, 2)[0]
    value = log_p - jnp.log(times)
    best = jax.lax.top_k(value, 2)[0]
    gap = jnp.where(jnp.isfinite(best[..., 1]), best[..., 0] - best[..., 1], greedy_gap[..., 0] - greedy_gap[..., 1])
    return sampling.race(log_p, times), gap
