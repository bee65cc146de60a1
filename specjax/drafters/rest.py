"""`rest`: continuations of the text's longest suffix match in a static corpus, as one tree (REST, He et al. 2023).

The last tokens of the text are looked up in a suffix array, some of their occurrences give rows, and the heaviest prefixes of the rows are
the draft: with counts as weights this is the best-first growth of a frequency trie. A node's score is the share of the occurrences that
agree with it, times l / (l + trust) for a match of l tokens.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import round as rounds
from specjax.retrieval import suffix_array, trie
from specjax.retrieval.suffix_array import DEPTH, Corpus
from specjax.types import DETERMINISTIC, FORCED, Array, Context, Draft, Drafter, Outcome, Plan, piece


class Recent(NamedTuple):
    """The last tokens of each text, the newest last, -1 before its start: i32[B,DEPTH]."""

    tokens: Array


def push(recent: Array, block: Array, count: Array) -> Array:
    """The last tokens i32[B,DEPTH] after the first `count` i32[B] tokens of a block i32[B,W] were appended.

    >>> push(jnp.asarray([[1, 2, 3]]), jnp.asarray([[4, 5]]), jnp.asarray([1])).tolist()
    [[2, 3, 4]]
    """
    both = jnp.concatenate([recent, block], axis=1)
    return jax.vmap(lambda x, n: jax.lax.dynamic_slice_in_dim(x, n, recent.shape[1]))(both, count)


def observe_recent(ctx: Context, recent: Array, outcome: Outcome) -> Array:
    """`push` of what a round or a prefill chunk committed; the root comes first where nothing has shown it yet."""
    missing = ((ctx.position == 0) & (outcome.verdict.count > 0)).astype(jnp.int32)
    recent = push(recent, ctx.root[:, None], missing)
    return push(recent, rounds.emitted(outcome.draft, outcome.verdict)[0], outcome.verdict.count)


@piece
def rest(rows: int = 16, depth: int = 10, occurrences: int = 64, shortest: int = 2, trust: float = 2.0, params: str = "store") -> Drafter:
    """Drafts from a corpus.

    Args:
      rows: of a pass, the root included. depth: longest continuation. occurrences: of the match that are read. shortest: match that is
        used. trust: see the module. params: name of the tree with the `Corpus`, the same for all requests.

    Returns:
      A Drafter; its state is the last tokens of the text.

    Raises:
      ValueError: sizes that are not positive, or a shortest match beyond the depth of the index.
    """
    if min(rows - 1, depth, occurrences, shortest) < 1 or trust < 0 or shortest > DEPTH:
        raise ValueError(f"rows {rows} must be 2 or more, depth {depth} and occurrences {occurrences} positive, trust {trust} not negative, "
                         f"shortest {shortest} between 1 and {DEPTH}")

    def init(trees: dict[str, Any], batch: int, capacity: int, length: int) -> Recent:
        del trees, capacity, length
        return Recent(jnp.full((batch, DEPTH), -1, jnp.int32))

    def draft(ctx: Context, state: Recent, plan: Plan) -> tuple[Draft, Recent]:
        del plan
        corpus: Corpus = ctx.params[params]
        found = suffix_array.find(corpus, state.tokens)
        found = found._replace(high=jnp.where(found.length >= shortest, found.high, found.low))
        tokens, used = suffix_array.rows(corpus, found, occurrences, depth)
        matched = found.length.astype(jnp.float32)
        share = matched / jnp.maximum(matched + trust, 1e-6) / jnp.maximum(jnp.sum(used, axis=1), 1).astype(jnp.float32)
        weight = jnp.broadcast_to(jnp.where(used, share[:, None], 0.0)[:, :, None], tokens.shape)
        return trie.trie_from_rows(ctx.root, tokens, tokens >= 0, weight, rows), state

    def observe(ctx: Context, state: Recent, outcome: Outcome) -> Recent:
        return Recent(observe_recent(ctx, state.tokens, outcome))

    return Drafter(init, draft, observe, rows=rows, depth=depth, kinds=frozenset((FORCED, DETERMINISTIC)), name=f"rest({rows})",
                   params=(params,), sources=("store",))
