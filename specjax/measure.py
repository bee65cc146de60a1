"""Measures that need no model: how fast this machine reads weights, how many bytes a token needs, and where a text loops.

A token lies in a *loop* when it belongs to a stretch of at least 24 tokens that is at least 3 consecutive repetitions of some period
p <= 64: a stretch ``[a, b)`` with ``tokens[k] == tokens[k - p]`` for all k in ``[a + p, b)`` and ``b - a >= max(3 p, 24)``. The last
repetition may be cut. Small models loop when they decode greedily, and a loop flatters every drafter.
"""
from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array

PERIOD, REPETITIONS, LEAST = 64, 3, 24
"""Longest period of a loop, fewest repetitions, fewest tokens."""


def in_loop(tokens: Sequence[int]) -> np.ndarray:
    """Which tokens lie in a loop (see the module).

    Args:
      tokens: ids of one text.

    Returns:
      bool[len(tokens)].

    >>> in_loop([5, 1, 2] * 8).all(), in_loop([5, 1, 2] * 7 + [5, 1]).any()
    (np.True_, np.False_)
    """
    ids = np.asarray(tokens, np.int64).reshape(-1)
    marked = np.zeros(len(ids), bool)
    for period in range(1, min(PERIOD, len(ids) // REPETITIONS) + 1):
        same = np.concatenate([[False], ids[period:] == ids[:-period], [False]]).astype(np.int8)
        starts, ends = np.flatnonzero(np.diff(same) == 1), np.flatnonzero(np.diff(same) == -1)
        for start, end in zip(starts, ends, strict=True):
            if end + period - start >= max(REPETITIONS * period, LEAST):
                marked[start:end + period] = True
    return marked


def loop_share(tokens: Sequence[int]) -> float:
    """Share of tokens that lie in loops, 0 for an empty text.

    >>> loop_share([7] * 24 + list(range(100, 124)))
    0.5
    """
    return float(np.mean(in_loop(tokens))) if len(tokens) else 0.0


def first_loop(tokens: Sequence[int]) -> int:
    """Index of the first token that lies in a loop, the length of the text when there is none.

    >>> first_loop([1, 2, 3] + [7] * 24), first_loop([1, 2, 3])
    (3, 3)
    """
    marked = in_loop(tokens)
    return int(np.argmax(marked)) if marked.any() else len(tokens)


def parameter_bytes(params: Any, unread: Sequence[str] = ()) -> int:
    """Bytes of a parameter tree.

    Args:
      params: a dict of trees. unread: names at the top to leave out, such as an embedding table of which a token reads one row.

    Returns:
      The sum over the other leaves.

    >>> parameter_bytes({"embedding": np.zeros((8, 4), np.float32), "head": np.zeros((8, 4), np.float32)}, unread=["embedding"])
    128
    """
    return sum(x.size * x.dtype.itemsize for name, tree in params.items() if name not in unread for x in jax.tree.leaves(tree))


def bytes_per_token(params: Any) -> int:
    """Bytes of weights that a plain token must read: all, but of an embedding table that is not also the head only one row."""
    return parameter_bytes(params, ("embedding",) if "head" in params else ())


@functools.partial(jax.jit, static_argnames=("times",))
def _read(matrices: list[Array], times: int) -> Array:
    def body(_: Array, x: Array) -> Array:
        for w in matrices:
            # Each product needs the one before it, so that none is dropped or run beside another.
            x = (w @ jnp.broadcast_to(x, (w.shape[1], 1)))[:1] * jnp.asarray(1e-9, w.dtype)
        return x

    return jax.lax.fori_loop(0, times, body, jnp.ones((1, 1), matrices[0].dtype))


def read_bandwidth(params: Any = None, repeats: int = 5, gigabytes: float = 0.5) -> float:
    """How fast this machine reads weights in the form in which a plain pass reads them: a chain of matrix-vector products.

    Args:
      params: a parameter tree whose matrices are read, if together they are at least half of `gigabytes`; else matrices of that size
        are made, since a small model would be read from the processor's cache. repeats: the best counts.

    Returns:
      Gigabytes (1e9 bytes) a second.
    """
    matrices = [x for x in jax.tree.leaves(params) if x.ndim == 2]
    if sum(x.nbytes for x in matrices) < 5e8 * gigabytes:
        side = 2048
        matrices = [jnp.full((side, side), 0.5, jnp.float32) for _ in range(max(1, round(gigabytes * 1e9 / (4 * side * side))))]
    size, times = sum(x.nbytes for x in matrices), 2
    jax.block_until_ready(_read(matrices, times))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(_read(matrices, times))
        seconds.append(time.perf_counter() - start)
    return size * times / min(seconds) / 1e9
