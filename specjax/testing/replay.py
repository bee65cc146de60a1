"""Runs a model-free drafter against a known output, without a model: the target is a table that knows the text.

The loop is the real one, so what is measured is what a generation with that text would have counted.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode
from specjax.controllers.fixed import fixed
from specjax.drafters.lookup import lookup
from specjax.round import compose
from specjax.statistics import summarize
from specjax.types import Array, Drafter, Rows, Target, piece
from specjax.verifiers.match import match


class Replay(NamedTuple):
    """What the drafter would have done.

    Attributes:
      tokens_per_pass, nodes_per_pass, wasted_per_pass: means over passes; wasted nodes are those not accepted.
      acceptance_at: share of the rounds with a node at depth d + 1 that accepted one. by_source: accepted tokens of each drafter.
      passes: of each text.
    """

    tokens_per_pass: float
    nodes_per_pass: float
    wasted_per_pass: float
    acceptance_at: tuple[float, ...]
    by_source: dict[str, int]
    passes: list[int]


@piece
def known_text(vocab: int) -> Target:
    """A Target that always continues with ``params["text"]`` i32[B,N]; its cache is the position i32[B]."""
    def init(params: Any, batch: int, capacity: int) -> Array:
        del params, capacity
        return jnp.zeros(batch, jnp.int32)

    def scratch(params: Any, batch: int, rows: int) -> tuple[()]:
        del params, batch, rows
        return ()

    def forward(params: Any, position: Array, work: Any, rows: Rows, want: tuple[str, ...]) -> tuple[dict[str, Array], Any]:
        del want
        at = jnp.minimum(position[:, None] + rows.depth + 1, params["text"].shape[1] - 1)
        return {"logits": jax.nn.one_hot(jnp.take_along_axis(params["text"], at, axis=1), vocab)}, work

    def select(work: Any, path: Array) -> Any:
        del path
        return work

    def commit(position: Array, taken: Any, count: Array) -> Array:
        del taken
        return position + count

    return Target(init, scratch, forward, select, commit, vocab, context=1 << 20)


def replay(drafter: Drafter | None, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> Replay:
    """Replays known outputs.

    Args:
      drafter: one that needs no parameters; None = `lookup()`. prompts, outputs: token ids, one list a text.

    Returns:
      A Replay.

    Raises:
      AssertionError: the loop did not give the known outputs.
    """
    # Few sizes are compiled: the vocabulary and the text are rounded up.
    vocab = 1 << max(int(max(max(x) for x in (*prompts, *outputs))), 15).bit_length()
    text, _ = decode.pad_prompts([[*p, *o] for p, o in zip(prompts, outputs, strict=True)], vocab)
    params = {"target": {"text": jnp.asarray(text)}}
    m = compose(known_text(vocab), drafter or lookup(), match(), fixed())
    state = decode.begin(m, params, [list(p) for p in prompts], max_new_tokens=[len(o) for o in outputs])
    state = decode.finish(m, params, state)
    tokens = np.asarray(state.tokens)
    for i, o in enumerate(outputs):
        if tokens[i, :len(o)].tolist() != list(o):
            raise AssertionError(f"text {i} was not reproduced")
    s = summarize(state.statistics, m.drafter.sources)
    return Replay(s.tau, s.drafted / s.rounds, (s.drafted - s.accepted) / s.rounds, s.acceptance_at, s.by_source,
                  np.asarray(state.statistics.rounds).tolist())
