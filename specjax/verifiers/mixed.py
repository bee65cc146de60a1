"""`mixed`: each row of a batch by its own rule, `match` or `rejection`.

Rows that follow the text's noise (`Noise.coupled`) are judged by `match`, the others by `rejection`; their drafts are drawn accordingly. A batch
that is all of one kind pays for one rule.
"""
from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.types import Context, Draft, Scores, Verdict, Verifier, piece
from specjax.verifiers.match import match
from specjax.verifiers.rejection import rejection


@piece
def mixed(text_first: bool = True) -> Verifier:
    """`match` or `rejection`, row by row.

    Args:
      text_first: rows that ask for nothing use `match`, else `rejection`; the verifier's promise is that of these rows.

    Returns:
      A Verifier that leaves the coupling to the rows.

    >>> mixed().coupled is None, mixed().lossless, mixed(False).lossless
    (True, 'text', 'law')
    """
    text, law = match(), rejection()

    def verify(ctx: Context, draft: Draft, scores: Scores) -> Verdict:
        coupled = ctx.noise.coupled
        by_text = lambda: text.verify(ctx, draft, scores)  # noqa: E731
        by_law = lambda: law.verify(ctx, draft, scores)  # noqa: E731

        def both() -> Verdict:
            pick = lambda a, b: jnp.where(coupled.reshape(-1, *(1,) * (a.ndim - 1)), a, b)  # noqa: E731
            return jax.tree.map(pick, by_text(), by_law())

        which = jnp.where(jnp.all(coupled), 0, jnp.where(jnp.any(coupled), 2, 1))
        return jax.lax.switch(which, (by_text, by_law, both))

    return Verifier(verify, text.accepts & law.accepts, lossless="text" if text_first else "law", coupled=None, name="mixed")
