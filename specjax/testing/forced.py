"""Is a text plain sampling's? Teacher-force it through the plain model and ask, token by token, whether it is the winner of the text's
own race at that prefix. A token that lost by less than rounding can explain is a near-tie; after one, the check goes on along the text
as it is, so that one fork is one near-tie and not a hundred wrong tokens.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax import decode
from specjax.noise import Noise
from specjax.sampling import TemperatureState, temperature
from specjax.testing.draws import blank_context
from specjax.types import Array, Target
from specjax.verifiers.match import teacher_token

TOLERANCE = 1e-3
"""Largest gap of a near-tie in float32, in log units (of the race; of the logits when greedy)."""


class Check(NamedTuple):
    """Tokens of a text by what they are.

    Attributes:
      equal: plain sampling's winner. near_ties: the runner-up of a race closer than the tolerance. wrong: neither.
      first_wrong: (text, index in its output) of the first wrong token, or None.
    """

    equal: int
    near_ties: int
    wrong: int
    first_wrong: tuple[int, int] | None


def _judge(logits: Array, following: Array, at: Array, extra: tuple[Array, ...]) -> tuple[Array, Array, Array]:
    seed, request, temperatures, prompt = extra
    ctx = blank_context({}, None, None, prompt.shape[0], jnp.float32(0), None)
    ctx = ctx._replace(noise=Noise(seed, request, True), warp=temperature(), warp_state=TemperatureState(temperatures))
    index = at + 1 - prompt[:, None]  # the row at the last prompt token judges output token 0
    winner, gap = teacher_token(ctx, logits, index)
    others = jnp.where(jnp.arange(logits.shape[-1])[None, None] == winner[..., None], -jnp.inf, logits)
    return winner == following, teacher_token(ctx, others, index)[0] == following, gap


def check(target: Target, params: Any, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], *,
          temperature: float | Sequence[float] = 0.0, seed: int = 0, request_ids: Sequence[int] | None = None, tolerance: float = TOLERANCE,
          chunk: int = 32) -> Check:
    """Compares texts with plain sampling, each token given all before it.

    Args:
      target, params: the plain model. prompts, outputs: token ids, one list a text. temperature: one, or one a text.
      seed, request_ids: of the coins, ids default 0, 1, ... tolerance: of a near-tie. chunk: rows a pass.

    Returns:
      The Check over all texts.
    """
    tokens, lengths = decode.pad_prompts([[*p, *o] for p, o in zip(prompts, outputs, strict=True)], target.vocab)
    batch, begin = len(prompts), np.asarray([len(p) for p in prompts], np.int32)
    ids = np.arange(batch) if request_ids is None else np.asarray(request_ids)
    extra = (jnp.uint32(seed & 0xFFFFFFFF), jnp.asarray(ids, jnp.int32),
             jnp.asarray(np.broadcast_to(np.asarray(temperature, np.float32), (batch,))), jnp.asarray(begin))
    won, second, gap = (np.asarray(x) for x in decode.forced_read(target, params, jnp.asarray(tokens), jnp.asarray(lengths), _judge, chunk,
                                                                  tokens.shape[1] + 2 * chunk, extra))
    at = np.arange(tokens.shape[1])[None]
    judged = (at >= begin[:, None] - 1) & (at < lengths[:, None] - 1)
    near = judged & ~won & second & (gap < tolerance)
    wrong = judged & ~won & ~near
    first = np.argwhere(wrong)
    return Check(int((won & judged).sum()), int(near.sum()), int(wrong.sum()),
                 (int(first[0, 0]), int(first[0, 1] + 1 - begin[first[0, 0]])) if len(first) else None)
