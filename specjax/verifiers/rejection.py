"""`rejection`: the law of the target by recursive rejection, for any tree and any mix of proposals among siblings.

At a visited row carry the residual r, at first the target's law p. For each child in draw order, with conditional proposal
q' (a point mass for a value chosen without coins; q for independent draws; q without the earlier siblings of the same q row,
renormalised, for draws without replacement): accept when ``u q'(x) < r(x)``, else ``r <- norm((r - q')+)``. After the last
child the token is drawn from r. (Leviathan et al.; Chen et al.; multi-candidate and recursive speculative decoding; SpecInfer.)

Two rules that are easy to get wrong: "earlier siblings" are draws without replacement from the SAME q row, nothing else, and a void
node (drawn, then dropped) is tested against its sub-normalised q row and always rejected. A void node ends its group of draws
without replacement: nobody could tell which value the next draw had to leave out.
"""
from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import noise as coins
from specjax import sampling
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
from specjax.verifiers.walk import Walk, begin, law_at

_KINDS = frozenset((DETERMINISTIC, INDEPENDENT, WITHOUT_REPLACEMENT, FORCED, RIDER))


class Trial(NamedTuple):
    """The walk before the last coin is thrown; the enumerator of exact laws reads it, `verify` finishes it.

    Attributes:
      walk: path so far; `walk.token` is not yet drawn. law: f[B,V] of the token after the path.
      chance: f[B,R] probability that each tested node is accepted, given that it is tested. tested: bool[B,R].
      last: i32[B] node tested last at the current row.
      hope: f32[B] unbiased estimate of the chance to go on at the current row.
    """

    walk: Walk
    law: Array
    chance: Array
    tested: Array
    last: Array
    hope: Array


def drawn_before(draft: Draft, node: Array, vocab: int) -> Array:
    """Values that earlier siblings drew without replacement from the q row of `node` i32[B]: bool[B,V]."""
    batch, rows = draft.tokens.shape
    b, number = jnp.arange(batch), jnp.arange(rows)[None]
    if draft.proposal is None:
        return jnp.zeros((batch, vocab), bool)
    q_row = draft.proposal.row
    before = ((number > 0) & (number < node[:, None]) & (draft.parents == draft.parents[b, node][:, None])
              & (q_row == q_row[b, node][:, None]) & (draft.kind == WITHOUT_REPLACEMENT) & (draft.tokens >= 0))
    return jnp.zeros((batch, vocab), bool).at[b[:, None], jnp.where(before, draft.tokens, vocab)].set(True, mode="drop")


def proposal_of(draft: Draft, node: Array, seen: Array, vocab: int, dtype: jnp.dtype) -> Array:
    """The conditional proposal q' of one node of each batch row: f[B,V] probabilities.

    Args:
      draft: the tree. node: i32[B]. seen: bool[B,V] values already tried in this node's q row. vocab, dtype: of the target.
    """
    b = jnp.arange(node.shape[0])
    kind, token = draft.kind[b, node], draft.tokens[b, node]
    point = (jnp.arange(vocab)[None] == token[:, None]).astype(dtype)
    if draft.proposal is None:
        return point
    q = jnp.exp(draft.proposal.log_q[b, draft.proposal.row[b, node]]).astype(dtype)
    if draft.proposal.ids is not None:
        q = jnp.zeros((q.shape[0], vocab), dtype).at[:, draft.proposal.ids].add(q)
    rest = jnp.where(seen, 0.0, q)
    missing = 1.0 - jnp.sum(q, axis=1, keepdims=True)  # mass of dropped values, rounding left out
    total = jnp.sum(rest, axis=1, keepdims=True) + jnp.where(missing > 1e-4, missing, 0.0)
    rest = rest / jnp.where(total > 0, total, 1.0)
    q = jnp.where((kind == WITHOUT_REPLACEMENT)[:, None], rest, q)
    return jnp.where((kind == DETERMINISTIC)[:, None], point, q)


def residual(r: Array, q: Array) -> Array:
    """norm((r - q)+), or r where nothing is left (r = q up to rounding: the test could not have failed)."""
    left = jnp.maximum(r - q, 0.0)
    total = jnp.sum(left, axis=-1, keepdims=True)
    return jnp.where(total > 0, left / jnp.where(total > 0, total, 1.0), r)


def walk(ctx: Context, draft: Draft, scores: Scores) -> Trial:
    """Tests nodes until no batch row has one left to test.

    Args:
      ctx: coins, warp. draft: the tree. scores: logits of the pass.

    Returns:
      The finished Trial.
    """
    batch, rows, vocab = scores.logits.shape
    dtype, b, number = scores.logits.dtype, jnp.arange(batch), jnp.arange(rows)
    testable = (draft.kind != EMPTY) & (draft.kind != RIDER) & (number > 0)[None]
    u = coins.uniform(ctx.noise, coins.ACCEPT, jnp.broadcast_to(ctx.index[:, None], (batch, rows)),
                      jnp.broadcast_to(number, (batch, rows)))

    def candidates(t: Trial) -> Array:
        return testable & (draft.parents == t.walk.row[:, None]) & (number[None] > t.last[:, None])

    def step(t: Trial) -> Trial:
        open_nodes = candidates(t)
        some = jnp.any(open_nodes, axis=1)
        node = jnp.argmax(open_nodes, axis=1).astype(jnp.int32)
        token, kind = draft.tokens[b, node], draft.kind[b, node]
        q = proposal_of(draft, node, drawn_before(draft, node, vocab), vocab, dtype)
        at = jnp.maximum(token, 0)
        q_x, r_x = q[b, at], jnp.where(token >= 0, t.law[b, at], 0.0)
        forced = kind == FORCED
        accept = some & (forced | ((u[b, node] * q_x < r_x) & (q_x > 0)))  # q'(x) = 0: nothing was left to draw
        chance = jnp.where(forced, 1.0, jnp.where(q_x > 0, jnp.minimum(r_x / jnp.where(q_x > 0, q_x, 1.0), 1.0), 0.0))
        overlap = jnp.where(forced, 1.0, jnp.sum(jnp.minimum(q, t.law), axis=1))
        hope = t.hope + jnp.where(some, overlap, 0.0).astype(jnp.float32)
        first_test = t.hope < 0
        hope = jnp.where(some & first_test, overlap.astype(jnp.float32), hope)
        inner = t.walk._replace(active=some).advance(accept, node, t.walk.token, jnp.where(some, hope, t.hope))
        fresh = jnp.exp(law_at(ctx, draft, scores.logits, inner))
        law = jnp.where(accept[:, None], fresh, jnp.where((some & ~accept)[:, None], residual(t.law, q), t.law))
        column = jnp.where(some, node, rows)
        return Trial(inner, law, t.chance.at[b, column].set(chance.astype(dtype), mode="drop"),
                     t.tested.at[b, column].set(True, mode="drop"),
                     jnp.where(accept, 0, jnp.where(some, node, t.last)), jnp.where(accept, -1.0, hope))

    w = begin(draft)
    law = jnp.exp(law_at(ctx, draft, scores.logits, w))
    minus = jnp.full(batch, -1.0, jnp.float32)
    trial = Trial(w, law, jnp.zeros((batch, rows), dtype), jnp.zeros((batch, rows), bool), jnp.zeros(batch, jnp.int32),
                  minus)
    return jax.lax.while_loop(lambda t: jnp.any(candidates(t)), step, trial)


def finish(ctx: Context, trial: Trial) -> Verdict:
    """Draws the token after the path with coins of its own, keyed by the row where the walk ended."""
    ids = jnp.arange(trial.law.shape[1])
    times = coins.race_times(ctx.noise, coins.EXTRA, ctx.index, trial.walk.row, ids)
    return trial.walk._replace(token=sampling.race(jnp.log(trial.law), times)).verdict()


@piece
def rejection() -> Verifier:
    """Recursive rejection along any tree: deterministic, independent and without-replacement siblings, several drafters.

    Returns:
      A Verifier whose output has the target's law exactly; another text than plain sampling's.

    >>> rejection().lossless
    'law'
    """
    def verify(ctx: Context, draft: Draft, scores: Scores) -> Verdict:
        return finish(ctx, walk(ctx, draft, scores))

    return Verifier(verify, _KINDS, lossless="law", coupled=False, name="rejection")


@piece
def rejection_chain() -> Verifier:
    """The same rule for chains, all rows tested at once (Leviathan et al.): parallel, at the price of every row's law.

    Draft rows must form a chain, row n below row n - 1. Same coins as `rejection`, hence the same verdicts.

    Returns:
      A Verifier for chains of deterministic, independent or forced nodes.
    """
    def verify(ctx: Context, draft: Draft, scores: Scores) -> Verdict:
        batch, rows, vocab = scores.logits.shape
        number = jnp.broadcast_to(jnp.arange(rows), (batch, rows))
        before = jnp.where(jnp.arange(rows - 1)[None, None] < number[..., None], draft.tokens[:, None, 1:], -1)
        p = jnp.exp(sampling.laws(ctx, scores.logits, before, number))
        none = jnp.zeros((batch, vocab), bool)
        q = jax.vmap(lambda n: proposal_of(draft, jnp.full(batch, n), none, vocab, p.dtype), out_axes=1)(jnp.arange(rows))
        x = jnp.maximum(draft.tokens, 0)[:, 1:, None]
        q_x = jnp.take_along_axis(q[:, 1:], x, axis=2)[..., 0]
        p_x = jnp.where(draft.tokens[:, 1:] >= 0, jnp.take_along_axis(p[:, :-1], x, axis=2)[..., 0], 0.0)
        u = coins.uniform(ctx.noise, coins.ACCEPT, jnp.broadcast_to(ctx.index[:, None], (batch, rows)), number)[:, 1:]
        kind = draft.kind[:, 1:]
        ok = ((u * q_x < p_x) | (kind == FORCED)) & (kind != EMPTY)
        accepted = jnp.sum(jnp.cumprod(ok, axis=1), axis=1)
        b = jnp.arange(batch)
        following = jnp.minimum(accepted + 1, rows - 1)
        tested = (accepted + 1 < rows) & (draft.kind[b, following] != EMPTY)
        law = jnp.where(tested[:, None], residual(p[b, accepted], q[b, following]), p[b, accepted])
        overlap = jnp.sum(jnp.minimum(p[:, :-1], q[:, 1:]), axis=2)
        overlap = jnp.where(kind == FORCED, 1.0, overlap)
        go_on = jnp.where((kind != EMPTY) & (number[:, :-1] <= accepted[:, None]), overlap, -1.0)
        go_on = jnp.pad(go_on, ((0, 0), (0, 1)), constant_values=-1.0).astype(jnp.float32)
        times = coins.race_times(ctx.noise, coins.EXTRA, ctx.index, accepted, jnp.arange(vocab))
        path = jnp.where(number <= accepted[:, None], number, -1)
        return Verdict(path, accepted + 1, sampling.race(jnp.log(law), times), go_on)

    return Verifier(verify, frozenset((DETERMINISTIC, INDEPENDENT, FORCED)), lossless="law", coupled=False, name="rejection_chain")
