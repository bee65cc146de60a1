"""`given`: a verifier that follows a known text instead of a law, so that the speed of a drafter can be measured on a text that the model
would not write: an edit as a person made it, through the real target's passes.

The forward runs on the real rows and its largest logit is searched at every visited row, as greedy verification does; then the known
token takes its place. What is measured is what a model that writes this text would cost. The text is NOT the model's.
"""
from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax import sampling, tree
from specjax.types import DETERMINISTIC, EMPTY, FORCED, Array, Context, Draft, Scores, Verdict, Verifier, piece
from specjax.verifiers.walk import Walk, begin


@piece
def given(params: str = "answer") -> Verifier:
    """Follows ``ctx.params[params]`` i32[B,N], the known output.

    Args:
      params: name of the tree that holds it.

    Returns:
      A Verifier of deterministic drafts; "lossy", since the text is not the model's.
    """
    def verify(ctx: Context, draft: Draft, scores: Scores) -> Verdict:
        rows = draft.tokens.shape[1]
        b, answer = jnp.arange(ctx.root.shape[0]), ctx.params[params]
        children = (draft.parents[:, None, :] == jnp.arange(rows)[None, :, None]) & (jnp.arange(rows) > 0)[None, None]
        children &= (draft.kind != EMPTY)[:, None, :]
        distinct = tree.first_with_token(draft)

        def step(w: Walk) -> Walk:
            real: Array = sampling.argmax(scores.logits[b, w.row])
            known = jnp.take_along_axis(answer, jnp.clip(ctx.index + 1 + w.depth, 0, answer.shape[1] - 1)[:, None], axis=1)[:, 0]
            y = jnp.where(real < 0, real, known)  # never the real one, which the compiler cannot know: the search must be done
            mine = children[b, w.row]
            hit = mine & (draft.tokens == y[:, None])
            go_on = jnp.where(jnp.any(mine, axis=1), jnp.any(hit & distinct, axis=1).astype(jnp.float32), -1.0)
            return w.advance(jnp.any(hit, axis=1), jnp.argmax(hit, axis=1), y, go_on)

        return jax.lax.while_loop(lambda w: jnp.any(w.active), step, begin(draft)).verdict()

    return Verifier(verify, frozenset((DETERMINISTIC, FORCED)), lossless="lossy", coupled=True, name="given")
