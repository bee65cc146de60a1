"""Running suffix matches: for every earlier position, how long a suffix of the text ends there. No tree, fixed shape.

``e[j]`` is the length of the longest common suffix of ``text[:j+1]`` and ``text[:n]`` for j < n - 1. Appending t:
``e'[j] = (text[j] == t) * (e[j-1] + 1)``: one compare, one shift, one select. A block of A tokens does the same with the run
length of equal tokens: ``e'[j] = run[j]`` if below A, else ``A + e[j-A]``. Negative tokens are separators: they match nothing.

`suffix_matches` gives the same lengths anew for a store that others write to; `top` the M best positions without a sort of the text.
"""
from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax import round as rounds
from specjax.types import Array, Context, Outcome


class MatchState(NamedTuple):
    """One request's text and its running matches: `text` i32[B,S] (-1 unused), `length` i32[B], `e` i32[B,S]."""

    text: Array
    length: Array
    e: Array


def empty(batch: int, capacity: int) -> MatchState:
    """A state of no text."""
    return MatchState(jnp.full((batch, capacity), -1, jnp.int32), jnp.zeros(batch, jnp.int32), jnp.zeros((batch, capacity), jnp.int32))


def append(s: MatchState, block: Array, count: Array, cap: int) -> MatchState:
    """Appends the first `count` tokens of a block to ONE sequence.

    Args:
      s: text i32[S], length i32[], e i32[S]. block: i32[A]. count: i32[] at most A. cap: longest length kept.

    Returns:
      The state after the block; nothing changes when count is 0.

    >>> s = MatchState(jnp.full(8, -1), jnp.int32(0), jnp.zeros(8, jnp.int32))
    >>> s = append(s, jnp.asarray([5, 6, 7, 5, 6]), jnp.int32(5), 60)
    >>> s.e.tolist()
    [0, 2, 0, 0, 0, 0, 0, 0]
    """
    size, width = s.text.shape[0], block.shape[0]
    number = jnp.arange(size)
    offset = number - s.length
    inside = (offset >= 0) & (offset < count)
    text = jnp.where(inside, block[jnp.clip(offset, 0, width - 1)], s.text)
    length = s.length + count

    def one(k: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
        run, alive = c
        wanted = block[jnp.maximum(count - 1 - k, 0)]
        here = jnp.where(number >= k, jnp.roll(text, k), -2)
        alive = alive & (here == wanted) & (number >= k) & (wanted >= 0)
        return run + alive.astype(jnp.int32), alive

    run, _ = jax.lax.fori_loop(0, count, one, (jnp.zeros(size, jnp.int32), jnp.ones(size, bool)))
    before = jnp.where(number >= count, jnp.roll(s.e, count), 0)
    e = jnp.minimum(jnp.where(run < count, run, count + before), cap)
    e = jnp.where(number < length - 1, e, 0)
    return MatchState(text, length, jnp.where(count > 0, e, s.e))


def best(s: MatchState) -> tuple[Array, Array]:
    """The longest match of ONE sequence, the most recent on ties: (j i32[] its last position, e i32[] its length, 0 = none)."""
    size = s.e.shape[0]
    j = jnp.argmax(s.e * size + jnp.arange(size))
    return j.astype(jnp.int32), s.e[j]


def continuation(s: MatchState, j: Array, width: int) -> Array:
    """The `width` tokens after position j of ONE sequence, going round with the match's own period where the text ends."""
    period = jnp.maximum(s.length - 1 - j, 1)
    return s.text[jnp.minimum(j + 1 + jnp.arange(width) % period, s.text.shape[0] - 1)]


def reach(e: Array, width: int) -> Array:
    """How likely the first 1, 2, ... `width` tokens after a match of length e i32[] all come: f32[width].

    The next token comes with chance ``1 - 0.75 e^(-2/3)``, and each that does lengthens the match. (Fitted to greedy answers of the default target
    to 48 prompts: .25 at e = 1, .53 at 2, .66 at 3, .76 at 5, .86 at 12, .92 at 28; the fit is within .03 up to 28.)

    >>> [round(float(x), 2) for x in reach(jnp.int32(2), 3)]
    [0.53, 0.34, 0.24]
    """
    length = jnp.maximum(e, 1).astype(jnp.float32) + jnp.arange(width, dtype=jnp.float32)
    return jnp.cumprod(1.0 - 0.75 * length ** (-2.0 / 3.0))


def follow(ctx: Context, s: MatchState, outcome: Outcome, cap: int) -> MatchState:
    """The state of a batch after an outcome: every committed token is appended, and the root where it is not yet in the text.

    Args:
      ctx: the round. s: the texts. outcome: a round or a prefill chunk. cap: longest match kept.
    """
    block, count = news(ctx, s.length, outcome)
    return jax.vmap(append, in_axes=(0, 0, 0, None))(s, block, count, cap)


def news(ctx: Context, length: Array, outcome: Outcome) -> tuple[Array, Array]:
    """What an outcome adds to texts of `length` i32[B]: (tokens i32[B,K+2], count i32[B]).

    The text so far, the root included, is position + 1 tokens; before the first chunk not even the root is in it.
    """
    new = jnp.concatenate([ctx.root[:, None], rounds.emitted(outcome.draft, outcome.verdict)[0]], axis=1)
    missing = (length <= ctx.position) & (outcome.verdict.count > 0)
    return jnp.where(missing[:, None], new, jnp.roll(new, -1, axis=1)), outcome.verdict.count + missing.astype(jnp.int32)


def write(text: Array, block: Array, start: Array, count: Array) -> Array:
    """Writes the first `count` i32[B] tokens of `block` i32[B,A] into `text` i32[B,S] from `start` i32[B] on; the surplus is dropped."""
    number = jnp.arange(block.shape[1])[None]
    at = jnp.where(number < count[:, None], start[:, None] + number, text.shape[1])
    return text.at[jnp.arange(text.shape[0])[:, None], at].set(block, mode="drop")


def tail(text: Array, length: Array, width: int) -> Array:
    """The last `width` tokens of each text, newest first, -1 where there is none: i32[B,width] from i32[B,S] and i32[B]."""
    at = length[:, None] - 1 - jnp.arange(width)[None]
    return jnp.where(at >= 0, jnp.take_along_axis(text, jnp.maximum(at, 0), axis=1), -1)


def suffix_matches(store: Array, query: Array) -> Array:
    """How long a suffix of each query ends at every position of a store, from nothing: no state, so stores may be overwritten.

    The loop goes one token back a step and ends when no position agrees any more.

    Args:
      store: i32[B,S], or i32[1,S] for all; negative tokens separate documents. query: i32[B,C], newest token first.

    Returns:
      i32[B,S], at most C.

    >>> suffix_matches(jnp.asarray([[5, 6, -1, 5, 6, 7]]), jnp.asarray([[6, 5, 9]])).tolist()
    [[0, 2, 0, 0, 2, 0]]
    """
    size, cap = store.shape[1], query.shape[1]
    padded = jnp.pad(store, ((0, 0), (cap, 0)), constant_values=-1)

    def on(c: tuple[Array, Array, Array]) -> Array:
        return (c[0] < cap) & jnp.any(c[2])

    def back(c: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, e, alive = c
        token = jax.lax.dynamic_slice_in_dim(query, k, 1, axis=1)
        alive = alive & (jax.lax.dynamic_slice_in_dim(padded, cap - k, size, axis=1) == token) & (token >= 0)
        return k + 1, e + alive.astype(jnp.int32), alive

    shape = (query.shape[0], size)
    return jax.lax.while_loop(on, back, (jnp.int32(0), jnp.zeros(shape, jnp.int32), jnp.ones(shape, bool)))[1]


_BLOCK = 256


def top(e: Array, count: int) -> tuple[Array, Array]:
    """The `count` longest matches of each sequence, the most recent first on ties.

    A selection over the whole text is slow on a CPU and a sort is slower: the best `count` blocks by their maxima hold the best
    `count` positions, so only these are searched. Keys are positive floats made of the bits of ``e * S + j``, which order alike.

    Args:
      e: i32[B,S] match lengths, ``max(e) * S`` below 2^30. count: M, at most S (static).

    Returns:
      (positions i32[B,M], lengths i32[B,M]), longest first; a length of 0 is no match.

    >>> top(jnp.asarray([[0, 2, 1, 2]]), 3)[0].tolist()
    [[3, 1, 2]]
    """
    batch, size = e.shape
    if count > size:
        raise ValueError(f"{count} matches asked of a text of {size} slots")
    key = jax.lax.bitcast_convert_type(e * size + jnp.arange(size)[None] + (1 << 23), jnp.float32)  # no denormals
    if size > 4 * _BLOCK:
        key = jnp.pad(key, ((0, 0), (0, -size % _BLOCK))).reshape(batch, -1, _BLOCK)
        if count < key.shape[1]:
            blocks = jax.lax.top_k(jnp.max(key, axis=2), count)[1]
            key = jnp.take_along_axis(key, blocks[:, :, None], axis=1)
        key = key.reshape(batch, -1)
    value = jax.lax.bitcast_convert_type(jax.lax.top_k(key, count)[0], jnp.int32) - (1 << 23)
    return value % size, value // size


def rows_after(text: Array, length: Array, at: Array, width: int, wrap: bool = True) -> tuple[Array, Array]:
    """The `width` tokens after each position.

    Args:
      text: i32[B,S]. length: i32[B] tokens in use. at: i32[B,M] positions below ``length - 1``. width: D (static).
      wrap: where the text ends, go round with the match's own period (static).

    Returns:
      (tokens i32[B,M,D], usable bool[B,M,D]: inside the text, no separator before).
    """
    step = jnp.arange(width)[None, None]
    period = jnp.maximum(length[:, None] - 1 - at, 1)[..., None]
    where = at[..., None] + 1 + (step % period if wrap else step)
    inside = where < length[:, None, None]
    flat = jnp.minimum(where, text.shape[1] - 1).reshape(text.shape[0], -1)
    tokens = jnp.take_along_axis(text, flat, axis=1).reshape(where.shape)
    return tokens, jnp.cumprod((inside & (tokens >= 0)).astype(jnp.int32), axis=2).astype(bool)
