"""The copy model of an edit: where in the old text the new one stands, as a law over pointers (a hidden Markov model), no model run.

The text c is ``source, -1, prompt, output``. A pointer j is in one of two modes: ``copy[j]``, the chance that the last token was copied from
c[j-1]; ``wait[j]``, that it was inserted while c[j] still waits. With h the chance to leave a run of r copied tokens, h = b / (r + a + b):

    next[j] = (1 - h) copy[j] + g[j] + w_here wait[j] + (h d_any |copy| + w_any |wait|) / n
    stay[j] = h d_insert copy[j] + w_insert wait[j]
    g       = sum_r (1 - rho) rho^(r-1) shift(h d_skip copy + w_skip wait, r)

where next[j] is the chance that the next token is copied from c[j] and stay[j] that it is inserted before it: a deletion skips, a
replacement inserts and then skips, a moved or repeated block begins anywhere, in the output too. After a token t

    copy[j+1] = next[j] [c[j] = t],     wait[j] = beta stay[j],     normalised,

beta being how likely an inserted token is to be this one. Beside it stand the running suffix matches of the same text, prompt included.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.drafters import match_state
from specjax.drafters.match_state import MatchState
from specjax.types import Array

BLOCK = 128
"""Positions of a block in the search for the best pointers."""


class Rates(NamedTuple):
    """Parameters of the copy model.

    Attributes:
      go_on: (a, b) of the chance to leave a run. leave: shares of an insertion, a deletion and a jump among the ways to leave.
      waiting: chances, while inserting, to insert once more, to go on at the pointer, behind it, anywhere. Both sum to 1.
      skip: rho. doublings: a skip is at most 2^doublings tokens. background: beta. awaited: a token that the pointers gave at least this
        chance continues a run. begin: length of run with which the answer begins. cap: longest suffix match that is told apart.
    """

    go_on: tuple[float, float] = (2.0, 0.5)
    leave: tuple[float, float, float] = (0.6, 0.3, 0.1)
    waiting: tuple[float, float, float, float] = (0.55, 0.05, 0.35, 0.05)
    skip: float = 0.6
    doublings: int = 5
    background: float = 0.01
    awaited: float = 0.15
    begin: float = 6.0
    cap: int = 60


class CopyState(NamedTuple):
    """What one request knows.

    Attributes:
      match: the text c and its running suffix matches, i32[B,C] and i32[B]. source: i32[B] tokens of the source, at the start of c.
      output: i32[B] where the output starts in c. next, stay: f32[B,C] the laws before the next token; together they sum to 1.
      run: f32[B] tokens copied in one piece up to now; after a jump the chance that the last token was copied at all.
    """

    match: MatchState
    source: Array
    output: Array
    next: Array
    stay: Array
    run: Array


def start(source: Array, length: Array, capacity: int, rates: Rates) -> CopyState:
    """The state before the first token of the prompt: the pointer stands at the start of the source.

    Args:
      source: i32[B,S]. length: i32[B] tokens in use, 0 = there is none. capacity: tokens of prompt and output to make room for.

    Returns:
      A CopyState of C = S + 1 + capacity positions, rounded up.
    """
    batch, size = source.shape
    total = -(-(size + 1 + capacity) // BLOCK) * BLOCK
    number = jnp.arange(total)[None]
    wide = jnp.pad(source, ((0, 0), (0, total - size)), constant_values=-1)
    text = jnp.where(number < length[:, None], wide, -1)
    zero = jnp.zeros((batch, total), jnp.float32)
    end = jnp.full(batch, size + 1, jnp.int32)
    match = MatchState(text, end, jnp.zeros((batch, total), jnp.int32))
    s = CopyState(match, length, end, zero, zero, jnp.full(batch, rates.begin, jnp.float32))
    point = jnp.broadcast_to((number == 0).astype(jnp.float32), text.shape)
    following, stay = _predict(point, zero, s.run, s, end, rates)
    return s._replace(next=following, stay=stay)


def _shift(x: Array, by: int) -> Array:
    return jnp.pad(x, ((0, 0), (by, 0)))[:, :x.shape[1]]


def copyable(s: CopyState, length: Array) -> Array:
    """bool[B,C]: positions that can be copied when the text has `length` i32[B] positions: the source and the output so far."""
    number = jnp.arange(s.next.shape[1])[None]
    return (number < s.source[:, None]) | ((number >= s.output[:, None]) & (number < length[:, None]))


def _predict(copy: Array, wait: Array, run: Array, s: CopyState, length: Array, rates: Rates) -> tuple[Array, Array]:
    """(next, stay) f32[B,C] from the modes after the last token, f32[B,C], and the run f32[B]."""
    insert, skip, jump = rates.leave
    again, here, behind, anywhere = rates.waiting
    a, b = rates.go_on
    leave = b / (run + a + b)
    inside = jnp.arange(copy.shape[1])[None] <= s.source[:, None]
    # A geometric kernel by doubling: sum of rho^r z^r over r < 2^k is the product of (1 + rho^(2^i) z^(2^i)) over i < k.
    g = (1 - rates.skip) * _shift(jnp.where(inside, (skip * leave)[:, None] * copy + behind * wait, 0.0), 1)
    for i in range(rates.doublings):
        g = g + rates.skip ** (1 << i) * _shift(g, 1 << i)
    n = jnp.maximum(s.source + length - s.output, 1).astype(jnp.float32)
    jumped = (jump * leave * jnp.sum(copy, axis=1) + anywhere * jnp.sum(wait, axis=1)) / n
    following = (1 - leave)[:, None] * copy + jnp.where(inside, g, 0.0) + here * wait + jnp.where(copyable(s, length), jumped[:, None], 0.0)
    return following, (insert * leave)[:, None] * copy + again * wait


def observe(s: CopyState, block: Array, count: Array, rates: Rates) -> CopyState:
    """The state after the first `count` i32[B] output tokens of a block i32[B,W] were committed."""
    before = s.match.length
    match = jax.vmap(match_state.append, in_axes=(0, 0, 0, None))(s.match, block, count, rates.cap)

    def token(i: Array, c: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        t = jax.lax.dynamic_index_in_dim(block, i, axis=1, keepdims=False)
        copied = jnp.where(copyable(s, before + i) & (match.text == t[:, None]), c[0], 0.0)
        wait = rates.background * c[1]
        chance = jnp.sum(copied, axis=1)
        total = chance + jnp.sum(wait, axis=1)
        run = jnp.where(chance > rates.awaited, c[2] + 1, chance / total)
        following, stay = _predict(_shift(copied, 1) / total[:, None], wait / total[:, None], run, s, before + i + 1, rates)
        on = i < count
        return jnp.where(on[:, None], following, c[0]), jnp.where(on[:, None], stay, c[1]), jnp.where(on, run, c[2])

    following, stay, run = jax.lax.fori_loop(0, jnp.max(count), token, (s.next, s.stay, s.run))
    return s._replace(match=match, next=following, stay=stay, run=run)


def prompt(s: CopyState, block: Array, count: Array, rates: Rates) -> CopyState:
    """The state after prompt tokens: they can be matched, and are not output."""
    match = jax.vmap(match_state.append, in_axes=(0, 0, 0, None))(s.match, block, count, rates.cap)
    return s._replace(match=match, output=jnp.where(count > 0, match.length, s.output))


def pointers(s: CopyState, count: int) -> tuple[Array, Array]:
    """The likeliest pointers: (positions i32[B,count], probabilities f32[B,count]); 0 where there are fewer.

    A search of the whole text by `top_k` would cost more than everything else here: the best blocks first, then within them.
    """
    a = jnp.where(copyable(s, s.match.length), s.next, 0.0)
    batch, size = a.shape
    blocks = a.reshape(batch, size // BLOCK, BLOCK)
    count = min(count, size)
    _, which = jax.lax.top_k(jnp.max(blocks, axis=2), min(count, size // BLOCK))
    some = jnp.take_along_axis(blocks, which[:, :, None], axis=1).reshape(batch, -1)
    weight, inner = jax.lax.top_k(some, count)
    at = jnp.take_along_axis(which, inner // BLOCK, axis=1) * BLOCK + inner % BLOCK
    return at.astype(jnp.int32), weight


def follow(s: CopyState, at: Array, depth: int) -> Array:
    """The `depth` tokens from each position on, i32[B,M,depth]; -1 beyond the source. In the prompt and the output, where they reach the
    end of the text, they go round with the distance to it."""
    step, length = jnp.arange(depth)[None, None], s.match.length[:, None]
    period = jnp.maximum(length - at, 1)[:, :, None]
    index = at[:, :, None] + jnp.where((at >= s.source[:, None])[:, :, None], step % period, step)
    return jax.vmap(lambda text, i: text[i])(s.match.text, jnp.minimum(index, s.match.text.shape[1] - 1))


def suffix(s: CopyState) -> tuple[Array, Array]:
    """The longest suffix match in source, prompt and output: (position after it i32[B], its length i32[B])."""
    at, length = jax.vmap(match_state.best)(s.match)
    return at + 1, length


def spans(tokens: list[list[int]], end: int | None = None, least: int = 64) -> dict[str, Any]:
    """Sources for a batch as the parameter tree that edit drafters read, padded to a power of two so that few sizes are compiled.

    Args:
      tokens: one source a request; an empty one means that there is none. end: id appended to each, the one that ends a text.
      least: smallest width.

    Returns:
      {"tokens": i32[B,S], "length": i32[B]}.

    >>> spans([[5, 6, 7], []], end=2, least=4)["length"].tolist()
    [4, 0]
    """
    import numpy as np
    rows = [[*t, end] if t and end is not None else list(t) for t in tokens]
    width = max(least, 1 << max(max(map(len, rows), default=1) - 1, 0).bit_length())
    out = np.zeros((len(rows), width), np.int32)
    for i, row in enumerate(rows):
        out[i, :len(row)] = row
    return {"tokens": jnp.asarray(out), "length": jnp.asarray([len(r) for r in rows], jnp.int32)}
