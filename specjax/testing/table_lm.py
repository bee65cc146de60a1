"""`TableLM`: a model that looks its logits up by the whole prefix, small enough that every law can be enumerated.

Prefixes are numbered as a V-ary heap: the empty prefix is 0, and token t after prefix c is ``c V + t + 1``. Deeper prefixes than
the table share one last row. A prompt has one token, which is read as "begin": its value is ignored.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array, Rows, Target, piece


class TableCache(NamedTuple):
    """The committed prefix: `code` i32[B], -1 before the prompt's token; `length` i32[B] tokens committed."""

    code: Array
    length: Array


def prefixes(vocab: int, depth: int) -> int:
    """How many prefixes of at most `depth` tokens there are.

    >>> prefixes(3, 2)
    13
    """
    return sum(vocab**n for n in range(depth + 1))


def random_table(vocab: int, depth: int, seed: int, sharpness: float = 1.0) -> dict[str, np.ndarray]:
    """Random parameters of `table_target(vocab, depth)`: {"table": f64[prefixes + 1, V] logits}."""
    rng = np.random.default_rng(seed)
    return {"table": rng.normal(size=(prefixes(vocab, depth) + 1, vocab)) * sharpness}


def joint_law(table: np.ndarray, vocab: int, tokens: int, temperature: float = 1.0,
              law_of: Callable[[np.ndarray, tuple[int, ...]], np.ndarray] | None = None) -> np.ndarray:
    """The law of the first `tokens` tokens, straight from the table in numpy: f64[V, ..., V].

    Args:
      table: f64[prefixes + 1, V] logits. vocab: V. tokens: how many. temperature: of the law, if `law_of` is None. law_of: the law f64[V] from
        logits f64[V] and the tokens before.

    >>> joint_law(np.zeros((4, 2)), 2, 2).tolist()
    [[0.25, 0.25], [0.25, 0.25]]
    """
    joint, codes, last = np.ones(1), np.zeros(1, np.int64), table.shape[0] - 1
    for length in range(tokens):
        logits = np.asarray(table, np.float64)[codes]
        if law_of is not None:
            law = np.stack([law_of(row, made) for row, made in zip(logits, np.ndindex(*(vocab,) * length), strict=True)])
        elif temperature > 0:
            w = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
            law = w / w.sum(-1, keepdims=True)
        else:
            law = np.eye(vocab)[logits.argmax(-1)]
        joint = (joint[:, None] * law).reshape(-1)
        codes = np.minimum(codes[:, None] * vocab + np.arange(vocab) + 1, last).reshape(-1)
    return joint.reshape((vocab,) * tokens)


@piece
def table_target(vocab: int, depth: int) -> Target:
    """A table as a Target; the dtype of its laws is that of its parameters.

    Args:
      vocab: V. depth: longest prefix with logits of its own.

    Returns:
      A Target. Features: "logits" f[B,T,V], and "final", the same (the readout is the identity).
    """
    last = prefixes(vocab, depth)

    def following(code: Array, token: Array) -> Array:
        # The last row leads to itself; multiplied further its number would overflow.
        return jnp.where(code < 0, 0, jnp.where(code >= last, last, jnp.minimum(code * vocab + token + 1, last)))

    def init(params: Any, batch: int, capacity: int) -> TableCache:
        del params, capacity
        return TableCache(jnp.full(batch, -1, jnp.int32), jnp.zeros(batch, jnp.int32))

    def scratch(params: Any, batch: int, rows: int) -> Array:
        del params
        return jnp.zeros((batch, rows), jnp.int32)

    def forward(params: Any, cache: TableCache, work: Array, rows: Rows, want: tuple[str, ...]) -> tuple[dict[str, Array], Array]:
        zero = jnp.int32(0)
        work = jax.lax.dynamic_update_slice(work, rows.tokens.astype(jnp.int32), (zero, jnp.asarray(rows.at, jnp.int32)))

        def read(code: Array, slot: tuple[Array, Array]) -> tuple[Array, None]:
            token, seen = slot
            return jnp.where(seen, following(code, token[:, None]), code).astype(jnp.int32), None

        # Parents stand before children, so the slots a row sees, in order, are its path.
        start = jnp.broadcast_to(cache.code[:, None], rows.tokens.shape)
        code, _ = jax.lax.scan(read, start, (work.T, jnp.moveaxis(rows.mask, 2, 0)))
        logits = params["table"][code]
        made = {"logits": logits, "final": logits}
        return {name: made[name] for name in want}, work

    def select(work: Array, path: Array) -> Array:
        return jnp.take_along_axis(work, jnp.maximum(path, 0), axis=1)

    def commit(cache: TableCache, taken: Array, count: Array) -> TableCache:
        code = cache.code
        for j in range(taken.shape[1]):
            code = jnp.where(j < count, following(code, taken[:, j]), code).astype(jnp.int32)
        return TableCache(code, cache.length + count)

    def embed(params: Any, tokens: Array) -> Array:
        return jax.nn.one_hot(tokens, vocab, dtype=params["table"].dtype).transpose(2, 0, 1)

    def readout(params: Any, x: Array, ids: Array | None = None) -> Array:
        del params
        logits = x.transpose(1, 2, 0)
        return logits if ids is None else logits[..., ids]

    return Target(init, scratch, forward, select, commit, vocab, context=1 << 20, width=vocab, embed=embed, readout=readout)


@functools.cache
def table_pair(vocab: int, depth: int, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Parameters of a target and of two drafters that resemble it, from one seed: {"target", "draft", "draft2"}.

    Drafters are the target's table with noise added, so that acceptance is neither rare nor certain.
    """
    target = random_table(vocab, depth, seed, 0.8)["table"]
    blurred = {name: {"table": target * 0.5 + random_table(vocab, depth, seed + i, 0.7)["table"]} for i, name in ((101, "draft"), (202, "draft2"))}
    return {"target": {"table": target}, **blurred}
