"""A static corpus whose positions are sorted by the DEPTH tokens that follow them; longest suffix matches by bisection, under jit.

Built by doubling: rank = token; for h in 1, 2, 4, 8 positions are sorted by (rank[i], rank[i + h]) and ranked again. A query compares the
last l tokens of a text, for every l at once, with DEPTH tokens at the middle of a range, and the largest l with a range that is not empty
wins; the width of the range is the number of occurrences. Documents are kept apart by a token that no text has.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array

DEPTH = 16
LARGEST = 1 << 24
"""Most tokens of a corpus."""


class Corpus(NamedTuple):
    """`tokens` i32[L], -1 between documents and behind the last; `order` i32[L] positions sorted by what follows them."""

    tokens: Array
    order: Array


class Found(NamedTuple):
    """For each request: `length` i32[B] of the longest match, and its range `low`, `high` i32[B] in the order, empty when length is 0."""

    length: Array
    low: Array
    high: Array


def join(documents: Sequence[Sequence[int]]) -> np.ndarray:
    """Documents as one array i32[L] with -1 behind each.

    >>> join([[1, 2], [3]]).tolist()
    [1, 2, -1, 3, -1]
    """
    parts = [np.asarray([*d, -1], np.int32) if not isinstance(d, np.ndarray) else np.append(d, -1).astype(np.int32) for d in documents]
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def build(tokens: np.ndarray, say: Callable[[str], None] = lambda step: None) -> np.ndarray:
    """Sorts the positions of a corpus.

    Args:
      tokens: i32[L], -1 between documents. say: called before each of the four sorts.

    Returns:
      i32[L] positions in the order of their next DEPTH tokens, equal ones by position.

    Raises:
      ValueError: no tokens, or more than LARGEST.
    """
    size = len(tokens)
    if not size:
        raise ValueError("the corpus is empty")
    if size > LARGEST:
        raise ValueError(f"the corpus has {size} tokens; at most {LARGEST} can be held")
    rank, order, h = tokens.astype(np.int64) + 1, np.arange(size), 1
    while h < DEPTH:
        say(f"sorting by {2 * h} tokens")
        key = rank * (int(rank.max()) + 2)
        key[:size - h] += rank[h:] + 1
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        rank[order] = np.cumsum(np.concatenate([[0], ordered[1:] != ordered[:-1]]))
        h *= 2
    return order.astype(np.int32)


def find(corpus: Corpus, recent: Array) -> Found:
    """The longest matches of the ends of some texts.

    Args:
      corpus: L positions. recent: i32[B,DEPTH] last tokens of each text, the newest last, -1 where there is none.

    Returns:
      What was Found. Matches are at most DEPTH tokens long.
    """
    size = corpus.order.shape[0]
    lengths, step = jnp.arange(1, DEPTH + 1), jnp.arange(DEPTH)

    def one(recent: Array) -> tuple[Array, Array, Array]:
        wanted = recent[jnp.clip(DEPTH - lengths[:, None] + step[None], 0, DEPTH - 1)]  # [l, k]: token k of the last l
        used = step[None] < lengths[:, None]
        possible = jnp.all(jnp.where(used, wanted, 0) >= 0, axis=1)

        def before(at: Array, equal_too: Array) -> Array:
            """Whether the window at position `order[at]` sorts before the query, or is equal where `equal_too`."""
            window = corpus.tokens[jnp.minimum(corpus.order[at][:, None] + step[None], size - 1)]
            window = jnp.where(corpus.order[at][:, None] + step[None] < size, window, -2)
            differs = used & (window != wanted)
            first = jnp.argmax(differs, axis=1)
            less = jnp.take_along_axis(window, first[:, None], axis=1)[:, 0] < jnp.take_along_axis(wanted, first[:, None], axis=1)[:, 0]
            return jnp.where(jnp.any(differs, axis=1), less, equal_too)

        def bisect(equal_too: bool) -> Array:
            def body(_: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
                low, high = c
                middle = (low + high) // 2
                right = before(jnp.minimum(middle, size - 1), jnp.bool_(equal_too)) & (low < high)
                return jnp.where(right, middle + 1, low), jnp.where(right | (low >= high), high, middle)

            zero = jnp.zeros(DEPTH, jnp.int32)
            return jax.lax.fori_loop(0, size.bit_length(), body, (zero, zero + size))[0]

        low, high = bisect(False), bisect(True)
        high = jnp.where(possible, high, low)
        best = jnp.max(jnp.where(high > low, lengths, 0))
        at = jnp.maximum(best - 1, 0)
        return best.astype(jnp.int32), low[at], jnp.where(best > 0, high[at], low[at])

    return Found(*jax.vmap(one)(recent))


def rows(corpus: Corpus, found: Found, count: int, depth: int) -> tuple[Array, Array]:
    """What followed some of the occurrences, evenly spread over the range (the first ones would be those of the smallest tokens).

    Args:
      corpus: L positions. found: from `find`. count: M rows. depth: D tokens of each.

    Returns:
      (tokens i32[B,M,D], -1 behind the end of a document; used bool[B,M]).
    """
    size = corpus.order.shape[0]

    def one(length: Array, low: Array, high: Array) -> tuple[Array, Array]:
        width, number = high - low, jnp.arange(count)
        # (2 i + 1) width / (2 M) in two steps: the product would overflow.
        whole, part = width // count, width % count
        spread = number * whole + ((2 * number + 1) * part) // (2 * count) + whole // 2
        at = low + jnp.where(width <= count, number, spread)
        used = (number < width) & (length > 0)
        start = corpus.order[jnp.clip(at, 0, size - 1)] + length
        index = start[:, None] + jnp.arange(depth)[None]
        tokens = jnp.where(index < size, corpus.tokens[jnp.minimum(index, size - 1)], -1)
        return jnp.where(jnp.cumprod(((tokens >= 0) & used[:, None]).astype(jnp.int32), axis=1) > 0, tokens, -1), used

    return jax.vmap(one)(found.length, found.low, found.high)
