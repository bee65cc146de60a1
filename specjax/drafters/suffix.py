"""SuffixDecoding (Oliaro et al. 2024): frequencies of what followed the current suffix, here and in past answers, without a tree.

The suffix of length l occurs C(l) = #{j: e[j] >= l} times; a node that w of the M best occurrences pass through has the frequency
D = w / C(l). For every l at once the heaviest nodes with D >= least are taken, at most ``factor * l + offset``; the l whose D add up to
most wins, ties to the longer. Exact while C(l) <= M; beyond, the most recent M occurrences are looked at.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import round as rounds
from specjax import tree
from specjax.drafters import match_state, trie
from specjax.drafters.match_state import MatchState
from specjax.types import DETERMINISTIC, FORCED, Array, Context, Draft, Drafter, Outcome, Plan, piece


class Store(NamedTuple):
    """Past answers, the oldest evicted whole: `docs` i32[G,L+1] (-1 padded, the last column a wall), `next` i32[] the slot to overwrite."""

    docs: Array
    next: Array


class SuffixState(NamedTuple):
    """`local`: prompt and answer with running matches. slot: i32[B] of this answer in the store, -1 = none yet. written: i32[B] tokens
    of it there. shared: the Store, which outlives requests where the caller carries it (see `round.remember`)."""

    local: MatchState
    slot: Array
    written: Array
    shared: Store


class Rules(NamedTuple):
    """How much is drafted: see `suffix`."""

    rows: int
    depth: int
    pointers: int
    longest: int
    factor: float
    offset: float
    least: float
    path: bool


def _budgets(r: Rules) -> Array:
    """i32[L]: most nodes after a match of 1, 2, .. L tokens."""
    return jnp.asarray([max(0, min(int(r.factor * n + r.offset), r.rows - 1)) for n in range(1, r.longest + 1)], jnp.int32)


def speculate(root: Array, text: Array, length: Array, e: Array, extra: int, r: Rules, source: int) -> tuple[Draft, Array]:
    """The best draft over all match lengths.

    Args:
      root: i32[B]. text: i32[B,S] or i32[1,S]. length: i32[B] tokens in use. e: i32[B,S] matches. extra: added to each C(l) (1: the
        suffix itself counts). r: the rules. source: of the nodes.

    Returns:
      (Draft, expected tokens f32[B]).
    """
    at, found = match_state.top(e, min(r.pointers, e.shape[1]))
    rows, ok = match_state.rows_after(jnp.broadcast_to(text, (root.shape[0], text.shape[1])), length, at, r.depth, wrap=False)
    lengths = jnp.arange(1, r.longest + 1)
    count = jnp.sum(e[:, None] >= lengths[None, :, None], axis=2) + extra
    mine = (found[:, None] >= lengths[None, :, None]) & (found > 0)[:, None]
    base, budget = jnp.maximum(count, 1).astype(jnp.float32), _budgets(r)
    ok = ok & (found > 0)[..., None]
    if r.path:
        return _paths(root, rows, ok, mine, base, budget, r, source)
    w, first = trie.node_weights(trie.agreement(rows, ok), mine.astype(jnp.float32))
    w = jnp.where(w >= r.least * base[..., None, None], w, 0.0)
    best = jax.lax.top_k(w.reshape(*w.shape[:2], -1), min(r.rows - 1, w[0, 0].size))[0] / base[..., None]
    score = jnp.sum(jnp.where(jnp.arange(best.shape[2])[None, None] < budget[None, :, None], best, 0.0), axis=2)
    chosen, score = _longest_best(score)
    pick = lambda x: jnp.take_along_axis(x, chosen.reshape(-1, *(1,) * (x.ndim - 1)), axis=1)[:, 0]  # noqa: E731
    draft = trie.best_nodes(root, rows, pick(w), first, r.rows, pick(base), source)
    return tree.clip(draft, 1 + budget[chosen], jnp.full_like(root, r.depth)), score


def _longest_best(score: Array) -> tuple[Array, Array]:
    """(index of the largest, the last on ties; its value) along axis 1; sums that differ by rounding only are ties."""
    best = jnp.max(score, axis=1)
    chosen = score.shape[1] - 1 - jnp.argmax((score >= best[:, None] - 1e-5)[:, ::-1], axis=1)
    return chosen.astype(jnp.int32), best


def _paths(root: Array, rows: Array, ok: Array, mine: Array, base: Array, budget: Array, r: Rules, source: int) -> tuple[Draft, Array]:
    """The path that always takes the most frequent child, for every match length."""
    def step(alive: Array, x: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        token, used, d = x
        alive = alive & used[:, None]
        same = (token[:, :, None] == token[:, None]).astype(jnp.float32)
        votes = jnp.where(alive, jnp.einsum("bmn,bln->blm", same, alive.astype(jnp.float32)), 0.0)
        chosen = jnp.argmax(votes, axis=2)
        share = jnp.max(votes, axis=2) / base
        share = jnp.where((share >= r.least) & (d < budget)[None], share, 0.0)
        picked = jnp.take_along_axis(token, chosen, axis=1)
        return alive & (token[:, None] == picked[..., None]) & (share > 0)[..., None], (picked, share)

    xs = (jnp.moveaxis(rows, 2, 0), jnp.moveaxis(ok, 2, 0), jnp.arange(r.depth))
    _, (tokens, share) = jax.lax.scan(step, mine, xs)
    chosen, score = _longest_best(jnp.sum(share, axis=0))
    pick = lambda x: jnp.take_along_axis(x, chosen[None, :, None], axis=2)[..., 0].T  # noqa: E731
    tokens, share = pick(tokens), pick(share)
    draft = tree.chain(root, tokens, jnp.sum(share > 0, axis=1), score=share)
    draft = tree.pad(draft, r.rows) if r.rows > r.depth + 1 else tree.first(draft, r.rows)
    return draft._replace(source=draft.source.at[:, 1:].set(source)), score


@piece
def suffix(rows: int = 16, depth: int = 15, factor: float = 1.0, offset: float = 0.0, least: float = 0.1, pointers: int = 32,
           longest: int = 32, documents: int = 0, document: int = 1024, path: bool = False) -> Drafter:
    """Suffix frequencies of the request and, when `documents` > 0, of past answers.

    Args:
      rows: of a draft, the root included. depth: deepest node. factor, offset: nodes allowed after a match of l are ``factor * l +
        offset``. least: frequency below which a node is not drafted. pointers: M. longest: match lengths tried.
      documents: G answers kept, the oldest evicted; 0 = the request alone. document: L tokens kept of each answer.
      path: one chain of most frequent tokens, the published default, in place of a tree.

    Returns:
      A Drafter whose `shared` store outlives requests only where the caller carries it. Prompts are never stored.

    Raises:
      ValueError: sizes below 1, or a `least` outside (0, 1].
    """
    for name, value in (("depth", depth), ("pointers", pointers), ("longest", longest), ("document", document), ("rows - 1", rows - 1)):
        if value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
    if not 0 < least <= 1 or documents < 0:
        raise ValueError(f"least is {least} and documents is {documents}: least must lie in (0, 1], documents must not be negative")
    r = Rules(rows, depth, pointers, longest, factor, offset, least, path)

    def init(params: dict[str, Any], batch: int, capacity: int, steps: int) -> SuffixState:
        del params, steps
        if 0 < documents < batch:
            raise ValueError(f"{documents} documents are too few for a batch of {batch}: each row writes one")
        docs = jnp.full((documents, document + 1), -1, jnp.int32)
        none = jnp.full(batch, -1, jnp.int32)
        return SuffixState(match_state.empty(batch, capacity), none, jnp.zeros(batch, jnp.int32), Store(docs, jnp.int32(0)))

    def draft(ctx: Context, state: SuffixState, plan: Plan) -> tuple[Draft, SuffixState]:
        del plan
        s = state.local
        here, score = speculate(ctx.root, s.text, s.length, s.e, 1, r, 0)
        if not documents:
            return here, state
        store = state.shared.docs.reshape(1, -1)
        e = match_state.suffix_matches(store, match_state.tail(s.text, s.length, min(longest, s.text.shape[1])))
        e = jnp.where(jnp.arange(store.shape[1])[None] // (document + 1) == state.slot[:, None], 0, e)  # its own answer is `local`
        past, other = speculate(ctx.root, store, jnp.full_like(ctx.root, store.shape[1]), e, 0, r, 1)
        better = (other > score)[:, None]
        return Draft(*(jnp.where(better, a, b) for a, b in zip(past[:5], here[:5], strict=True))), state

    def observe(ctx: Context, state: SuffixState, outcome: Outcome) -> SuffixState:
        local = match_state.follow(ctx, state.local, outcome, max(longest, 60))
        if outcome.prefill or not documents:
            return state._replace(local=local)
        count = outcome.verdict.count
        new = (state.slot < 0) & (count > 0)
        slot = jnp.where(new, (state.shared.next + jnp.cumsum(new) - 1) % documents, state.slot).astype(jnp.int32)
        docs = state.shared.docs.at[jnp.where(new, slot, documents)].set(-1, mode="drop")
        block = rounds.emitted(outcome.draft, outcome.verdict)[0]
        number = jnp.arange(block.shape[1])[None]
        at = jnp.where(number < count[:, None], state.written[:, None] + number, document + 1)
        at = jnp.where(at < document, at, document + 1)
        docs = docs.at[jnp.maximum(slot, 0)[:, None], at].set(block, mode="drop")
        written = jnp.minimum(state.written + count, document)
        return SuffixState(local, slot, written, Store(docs, (state.shared.next + jnp.sum(new)) % documents))

    name = f"suffix({rows}{f', {documents} answers' if documents else ''}{', path' if path else ''})"
    return Drafter(init, draft, observe, rows, min(depth, rows - 1), frozenset((FORCED, DETERMINISTIC)), name,
                   sources=("suffix", "past answers") if documents else ("suffix",))

