"""All drafts that a drafter can make, each with its probability, by forcing every draw of a real drafter.

A race is won by the token whose time is tiny, so a table of times chooses each draw: independent draws take their coins at the
child's row, draws without replacement at the parent's, the tiniest time first. All combinations run as one batch. The probability
of a draft is the product of q' over its sampled nodes, computed in numpy from the laws the drafter returned; combinations that
give the same draft (a draw below an empty node changes nothing) count once, and the probabilities must add up to 1.
"""
from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import noise as coins
from specjax import tree
from specjax.noise import Noise
from specjax.sampling import TemperatureState, temperature
from specjax.settings import Settings
from specjax.testing.table_lm import table_pair, table_target
from specjax.types import EMPTY, INDEPENDENT, WITHOUT_REPLACEMENT, Array, Context, Draft, Drafter, Plan
from specjax.warp import grammar_sizes, settings_warp, wishes


class Leaf(NamedTuple):
    """A drafter that throws coins.

    Attributes:
      drafter: it. stream: of its noise in the composition. kind: of its nodes. levels: nodes of each level of its static tree.
    """

    drafter: Drafter
    stream: int
    kind: int
    levels: tuple[int, ...]


class Case(NamedTuple):
    """A drafter under proof. `leaves` are the drafters inside it that throw coins.

    Attributes:
      name: for messages. vocab: V. depth: K. drafter: it. leaves: in it. at: temperature. seed: of the tables.
      settings: None for temperature alone, or all settings of the one request, whose prompt is token 0.
    """

    name: str
    vocab: int
    depth: int
    drafter: Drafter
    leaves: tuple[Leaf, ...] = ()
    at: float = 1.0
    seed: int = 0
    settings: Settings | None = None


class Drawn(NamedTuple):
    """N combinations of draws: the drafts, the target's logits f64[N,R,V] on them, and the probability f64[N] of each draft."""

    draft: Draft
    logits: Array
    weight: np.ndarray


def events(leaf: Leaf, vocab: int) -> list[tuple[int, np.ndarray]]:
    """The draws of a leaf as (row of its coins, possible ordered results i64[n,k]).

    >>> [(row, r.shape) for row, r in events(Leaf(None, 0, WITHOUT_REPLACEMENT, (2, 2)), 3)]
    [(0, (6, 2)), (1, (3, 1)), (2, (3, 1))]
    """
    out, above, start = [], [0], 1
    for width in leaf.levels:
        below = list(range(start, start + width))
        fan = width // len(above)
        if leaf.kind == INDEPENDENT:
            out += [(row, np.arange(vocab)[:, None]) for row in below]
        elif leaf.kind == WITHOUT_REPLACEMENT:
            out += [(row, np.asarray(list(itertools.permutations(range(vocab), fan)))) for row in above]
        above, start = below, start + width
    return out


def forced_tables(leaves: tuple[Leaf, ...], vocab: int) -> tuple[dict[int, np.ndarray], int]:
    """Race times for every combination of draws.

    Returns:
      ({coins.given_key(DRAW, stream): f64[N, rows, V]}, N).
    """
    listed = [(leaf, row, results) for leaf in leaves for row, results in events(leaf, vocab)]
    total = int(np.prod([len(r) for *_, r in listed], dtype=np.int64))
    number, stride = np.arange(total), 1
    tables = {coins.given_key(coins.DRAW, leaf.stream): np.ones((total, 1 + sum(leaf.levels), vocab)) for leaf in leaves}
    for leaf, row, results in listed:
        tokens = results[(number // stride) % len(results)]
        for rank in range(tokens.shape[1]):
            tables[coins.given_key(coins.DRAW, leaf.stream)][number, row, tokens[:, rank]] = 10.0 ** (10 * rank - 100)
        stride *= len(results)
    return tables, total


def probability(draft: Draft) -> np.ndarray:
    """The product of q' over the sampled nodes of each draft: f64[N], independent of the code under test."""
    tokens, kind, parents = (np.asarray(x) for x in (draft.tokens, draft.kind, draft.parents))
    q, q_row = np.exp(np.asarray(draft.proposal.log_q)), np.asarray(draft.proposal.row)
    out, b = np.ones(tokens.shape[0]), np.arange(tokens.shape[0])
    for node in range(1, tokens.shape[1]):
        law = q[b, q_row[:, node]].copy()
        for sibling in range(1, node):
            again = (parents[:, sibling] == parents[:, node]) & (kind[:, sibling] == WITHOUT_REPLACEMENT) & (q_row[:, sibling] == q_row[:, node])
            law[b, tokens[:, sibling]] *= np.where(again & (kind[:, node] == WITHOUT_REPLACEMENT), 0.0, 1.0)
        total = law.sum(axis=1)
        out *= np.where(kind[:, node] == EMPTY, 1.0, law[b, tokens[:, node]] / np.where(total > 0, total, 1.0))
    return out


def blank_context(params: dict[str, Any], target: Any, cache: Any, batch: int, at: Array, table: dict[int, Array] | None,
                  coupled: bool = False, settings: Settings | None = None) -> Context:
    """The first round of `batch` requests whose prompt is token 0, on given coins (or on real ones, with request ids 0, 1, ...)."""
    zero = jnp.zeros(batch, jnp.int32)
    noise = Noise(jnp.uint32(0), jnp.arange(batch, dtype=jnp.int32), coupled, 0, table)
    if settings is None:
        return Context(params, target, cache, zero, zero - 1, zero, temperature(), TemperatureState(jnp.full(batch, at, at.dtype)), noise)
    vocab = next(iter(params.values()))["table"].shape[-1]
    asked = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x), batch, axis=0), wishes([settings], vocab, grammar_sizes([settings])))
    state = settings_warp().init(asked, zero[:, None], zero + 1, vocab)
    return Context(params, target, cache, zero, zero - 1, zero, settings_warp(), state, noise)


QUICK_COMPILE = {"xla_backend_optimization_level": 0}
"""Compiler options of programs that run once: most of a proof's time is their compilation."""


@functools.partial(jax.jit, static_argnames=("case", "batch", "coupled"), compiler_options=QUICK_COMPILE)
def _draw(case: Case, params: dict[str, Any], tables: dict[int, Array] | None, at: Array, batch: int, coupled: bool
          ) -> tuple[Draft, tuple[Draft, ...], Array]:
    target = table_target(case.vocab, case.depth)
    cache = target.init(params["target"], batch, 8)
    ctx = blank_context(params, target, cache, batch, at, tables, coupled, case.settings)
    plan = Plan(jnp.full(batch, 99, jnp.int32), jnp.full(batch, 99, jnp.int32), jnp.int32(0))

    def run(drafter: Drafter, stream: int) -> Draft:
        state = drafter.init(params, batch, 8, case.drafter.depth)
        return drafter.draft(ctx._replace(noise=ctx.noise._replace(stream=stream)), state, plan)[0]

    draft = run(case.drafter, 0)
    raw = tuple(draft if leaf.drafter is case.drafter else run(leaf.drafter, leaf.stream) for leaf in case.leaves)
    features, _ = target.forward(params["target"], cache, target.scratch(params["target"], batch, draft.tokens.shape[1]), tree.rows(draft),
                                 ("logits",))
    return draft, raw, features["logits"]


def all_draws(case: Case) -> Drawn:
    """Every draft of a case with its probability; call it under `float64`.

    Raises:
      AssertionError: the probabilities do not add up to 1, so that the enumeration is not complete.
    """
    tables, total = forced_tables(case.leaves, case.vocab)
    params = table_pair(case.vocab, case.depth, case.seed)
    draft, raw, logits = _draw(case, params, tables, jnp.asarray(case.at), total, False)
    weight = np.ones(total)
    if raw:
        key = np.concatenate([np.asarray(x) for d in raw for x in (d.tokens, d.kind)], axis=1)
        once = np.zeros(total, bool)
        once[np.unique(key, axis=0, return_index=True)[1]] = True
        weight = np.where(once, np.prod([probability(d) for d in raw], axis=0), 0.0)
    if abs(weight.sum() - 1) > 1e-9:
        raise AssertionError(f"{case.name}: the drafts' probabilities add up to {weight.sum()}")
    return Drawn(draft, logits, weight)


def some_draws(case: Case, batch: int, coupled: bool = False) -> Drawn:
    """`batch` drafts of a case drawn with real coins, request ids 0, 1, ...; weights are 1 / batch."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float32), table_pair(case.vocab, case.depth, case.seed))
    draft, _, logits = _draw(case._replace(leaves=()), params, None, jnp.float32(case.at), batch, coupled)
    return Drawn(draft, logits, np.full(batch, 1.0 / batch))
