"""Runs a model-free drafter against a known output, without a model: the target is a table that knows the text.

The loop is the real one, so what is measured is what a generation with that text would have counted; with a table of what passes
of each row count cost, also how fast it would have been, drafting aside. A drafter that learns from the target's runners-up gets the
recorded ones on rows that lie on the text, and none on others: replay says a little less for it than a run would.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode, requests
from specjax import round as rounds
from specjax.controllers.fixed import fixed
from specjax.drafters.lookup import lookup
from specjax.round import compose
from specjax.statistics import summarize
from specjax.types import Array, Controller, Drafter, Rows, Target, piece
from specjax.verifiers.match import match


class Replay(NamedTuple):
    """What the drafter would have done.

    Attributes:
      tokens_per_pass, nodes_per_pass, wasted_per_pass: means over passes; wasted nodes are those not accepted.
      acceptance_at: share of the rounds with a node at depth d + 1 that accepted one. by_source: accepted tokens of each drafter.
      passes: of each text. cost: of each text, in passes of one row; the tokens of a text over its cost are its speedup.
    """

    tokens_per_pass: float
    nodes_per_pass: float
    wasted_per_pass: float
    acceptance_at: tuple[float, ...]
    by_source: dict[str, int]
    passes: list[int]
    cost: list[float]


COSTS = ((1, 1.0), (4, 1.5), (16, 2.4), (32, 4.6))
"""(rows, cost in passes of one row): the default target on two CPU cores; larger passes cost in proportion to the last."""


@piece
def known_text(vocab: int) -> Target:
    """A Target that always continues with ``params["text"]`` i32[B,N]; its cache is the position i32[B].

    It makes the features "top8" and "top8_log_p" from ``params["top8"]`` i32[B,N,8], -1 on rows off the text.
    """
    def init(params: Any, batch: int, capacity: int) -> Array:
        del params, capacity
        return jnp.zeros(batch, jnp.int32)

    def scratch(params: Any, batch: int, rows: int) -> tuple[()]:
        del params, batch, rows
        return ()

    def forward(params: Any, position: Array, work: Any, rows: Rows, want: tuple[str, ...]) -> tuple[dict[str, Array], Any]:
        here = jnp.minimum(position[:, None] + rows.depth, params["text"].shape[1] - 1)
        at = jnp.minimum(here + 1, params["text"].shape[1] - 1)
        take = lambda x, i: jnp.take_along_axis(x, i.reshape(*i.shape, *(1,) * (x.ndim - 2)), axis=1)  # noqa: E731
        made = {"logits": jax.nn.one_hot(take(params["text"], at), vocab)}
        if set(want) - {"logits"}:
            true = take(params["text"], here) == rows.tokens
            on_text = jnp.all(~rows.mask | true[:, None], axis=2)
            made["top8"] = jnp.where(on_text[..., None], take(params["top8"], here), -1)
            made["top8_log_p"] = jnp.zeros(made["top8"].shape, jnp.float32)
        return {name: made[name] for name in want}, work

    def select(work: Any, path: Array) -> Any:
        del path
        return work

    def commit(position: Array, taken: Any, count: Array) -> Array:
        del taken
        return position + count

    return Target(init, scratch, forward, select, commit, vocab, context=1 << 20)


def replay(drafter: Drafter | None, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], *,
           top8: Sequence[Sequence[Sequence[int]]] | None = None, controller: Controller | None = None, batch: int | None = None,
           costs: Sequence[tuple[int, float]] = COSTS, memory: bool = False, buckets: tuple[int, ...] | None = None,
           params: dict[str, Any] | None = None) -> Replay:
    """Replays known outputs.

    Args:
      drafter: one without a model; None = `lookup()`. prompts, outputs: token ids, one list a text.
      top8: the target's likeliest ids at every position of prompt and output, for drafters that learn from them. controller: default
        `fixed()`. batch: texts replayed together, default all; with 1 the cost is that of each text alone. costs: (rows, cost) of
        passes. memory: each batch begins with the shared tables of the one before. buckets: row counts of the passes. params: trees the
        drafter reads.

    Returns:
      A Replay.

    Raises:
      AssertionError: the loop did not give the known outputs.
    """
    # Few sizes are compiled: the vocabulary and the texts are rounded up, for all batches alike.
    vocab = 1 << max(int(max(max(x) for x in (*prompts, *outputs))), 15).bit_length()
    text, _ = decode.pad_prompts([[*p, *o] for p, o in zip(prompts, outputs, strict=True)], vocab)
    padded, lengths = decode.pad_prompts([list(p) for p in prompts], vocab)
    limits = np.asarray([len(o) for o in outputs], np.int32)
    m = compose(known_text(vocab), drafter or lookup(), match(), controller or fixed(), buckets=buckets)
    capacity = decode.capacity_for(int(lengths.max()), int(limits.max()), m.rows)
    batch, parts, cost, old = batch or len(prompts), [], [], None
    known = np.full((*text.shape, 8), -1, np.int32)
    for i, ids in enumerate(top8 or ()):
        known[i, :len(ids)] = ids
    for i in range(0, len(prompts), batch):
        here = np.resize(np.arange(i, min(i + batch, len(prompts))), batch)
        trees = {"target": {"text": jnp.asarray(text[here]), "top8": jnp.asarray(known[here])}, **(params or {})}
        asked = requests.as_settings(batch, max_new_tokens=limits[here].tolist())
        r = jax.tree.map(jnp.asarray, requests.arrays(m, [list(prompts[j]) for j in here], asked, padded.shape[1]))
        state = decode._start(m, trees, capacity, -(-int(limits.max()) // 64) * 64, r)
        state = state if old is None else rounds.remember(state, old)
        state = decode.finish(m, trees, decode.prefill(m, trees, state, jnp.asarray(padded[here]), jnp.asarray(lengths[here])))
        old, real = state if memory else None, len(set(here.tolist()))
        for j in range(real):
            if np.asarray(state.tokens)[j, :limits[here[j]]].tolist() != list(outputs[here[j]]):
                raise AssertionError(f"text {here[j]} was not reproduced")
        per_pass = [pass_cost(r, costs) for r in m.buckets]
        cost += [float(np.dot(np.asarray(state.statistics.shared), per_pass))] * real
        parts.append(jax.tree.map(lambda x, n=real: np.array(x[:n]), state.statistics._replace(shared=state.statistics.shared)))
    s = summarize(rounds.Statistics(*(np.concatenate(x) for x in zip(*(p[:-1] for p in parts), strict=True)), parts[0].shared), m.drafter.sources)
    return Replay(s.tau, s.drafted / s.rounds, (s.drafted - s.accepted) / s.rounds, s.acceptance_at, s.by_source,
                  np.concatenate([p.rounds for p in parts]).tolist(), cost)


def pass_cost(rows: int, costs: Sequence[tuple[int, float]] = COSTS) -> float:
    """The cost of a pass of `rows` rows: that of the next row count in the table, in proportion beyond its end.

    >>> pass_cost(1), pass_cost(9), pass_cost(64)
    (1.0, 2.4, 9.2)
    """
    return next((c for r, c in costs if rows <= r), costs[-1][1] * rows / costs[-1][0])
