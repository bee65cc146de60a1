"""What a pass costs: milliseconds for R rows, a batch and a used length, and the bare loop that plain decoding is held against.

Every figure is the time of a jitted loop on the device over its number of steps, so that dispatch is not in it. The bound beside
it is the time to read the parameters once, measured as a chain of matrix-vector products over the same matrices.
"""
from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import sampling, tree
from specjax.decode import OPTIONS, capacity_for
from specjax.types import Array, Rows, Target


class Cost(NamedTuple):
    """Median and least milliseconds of a step, and seconds of the first call, compilation included."""

    median_ms: float
    least_ms: float
    first_s: float


def timed(call: Callable[[], Any], steps: int, repeats: int) -> Cost:
    """Times `call`, which runs `steps` steps on the device, `repeats` times after a first one."""
    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(call())
        return time.perf_counter() - start

    first = once()
    seconds = [once() / steps for _ in range(repeats)]
    return Cost(1e3 * statistics.median(seconds), 1e3 * min(seconds), first)


@functools.partial(jax.jit, static_argnames=("target", "rows", "steps"), donate_argnames=("cache",), compiler_options=OPTIONS)
def passes(target: Target, params: Any, cache: Any, rows: int, steps: int) -> tuple[Any, Array]:
    """`steps` greedy passes of a chain of `rows` rows, each committing one row, as a round does."""
    batch = cache.length.shape[0]

    def body(_: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        cache, root = carry
        draft = tree.chain(root, jnp.broadcast_to(root[:, None], (batch, rows - 1)), jnp.full(batch, rows - 1))
        features, work = target.forward(params, cache, target.scratch(params, batch, rows), tree.rows(draft), ("logits",))
        taken = target.select(work, jnp.zeros((batch, 1), jnp.int32))
        # One row is read, as a verifier reads the rows it visits; which one is data, so that all of them are computed.
        visited = features["logits"][jnp.arange(batch), root % rows]
        return target.commit(cache, taken, jnp.ones(batch, jnp.int32)), sampling.argmax(visited)

    return jax.lax.fori_loop(0, steps, body, (cache, jnp.zeros(batch, jnp.int32)))


def pass_cost(target: Target, params: Any, rows: int, batch: int, used: int, steps: int = 8, repeats: int = 5, capacity: int = 0) -> Cost:
    """Cost of a pass of `rows` rows and `batch` sequences that have `used` slots in use.

    Args:
      target, params: a model whose cache has `length` and `position`. capacity: cache slots, 0 = the smallest that holds them.
    """
    capacity = capacity or capacity_for(used, steps, rows)
    cache = target.init(params, batch, capacity)

    def call() -> Any:
        nonlocal cache
        full = jnp.full(batch, used, jnp.int32)
        cache, tokens = passes(target, params, cache._replace(length=full, position=full + 0), rows, steps)
        return tokens

    return timed(call, steps, repeats)


@functools.partial(jax.jit, static_argnames=("steps",))
def _read_all(params: Any, steps: int) -> Array:
    def body(_: Array, x: Array) -> Array:
        for w in jax.tree.leaves(params):
            if w.ndim == 2:
                x = (w @ jnp.broadcast_to(x[:1], (w.shape[1], 1)))[:1] * jnp.asarray(1e-9, w.dtype)
        return x

    return jax.lax.fori_loop(0, steps, body, jnp.ones((1, 1), jax.tree.leaves(params)[0].dtype))


def read_cost(params: Any, steps: int = 8, repeats: int = 5) -> Cost:
    """Cost of reading every matrix of a parameter tree once: the bound of a pass of one row."""
    return timed(lambda: _read_all(params, steps), steps, repeats)


@functools.partial(jax.jit, static_argnames=("target", "steps"), donate_argnames=("cache", "root"), compiler_options=OPTIONS)
def bare_loop(target: Target, params: Any, cache: Any, root: Array, steps: int) -> tuple[Any, Array, Array]:
    """Greedy decoding of one sequence in the fewest lines: what a round of plain decoding may not be much slower than.

    Returns:
      (cache, last token i32[1], tokens i32[1,steps]).
    """
    rows = Rows(root[:, None], jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool), 0)
    zero, one = jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32)

    def body(i: Array, carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        cache, root, out = carry
        features, work = target.forward(params, cache, target.scratch(params, 1, 1), rows._replace(tokens=root[:, None]), ("logits",))
        root = sampling.argmax(features["logits"])[:, 0]
        return target.commit(cache, target.select(work, zero), one), root, out.at[:, i].set(root)

    return jax.lax.fori_loop(0, steps, body, (cache, root, jnp.zeros((1, steps), jnp.int32)))
