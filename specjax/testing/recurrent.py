"""A tiny Target with a recurrent state, ``h' = (1 - z) h + z tanh(W h + E[x])`` with the gate ``z = sigmoid(U h + F[x])``.

Its cache has no slots, cannot be cut back, and knows no positions: it runs only if the round never looks inside a cache. Scratch
holds the state after every row, computed along the tree; `commit` takes the state of the last committed row.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array, Rows, Target, piece


class RecurrentCache(NamedTuple):
    """The state after the committed text: `h` f[B,D]."""

    h: Array


def random_params(vocab: int, width: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random parameters of `recurrent_target(vocab, width)`."""
    rng = np.random.default_rng(seed)
    shapes = {"w": (width, width), "u": (width, width), "e": (vocab, width), "f": (vocab, width), "head": (vocab, width)}
    scale = {"w": width**-0.5, "u": width**-0.5, "e": 1.5, "f": 0.5, "head": 1.0}
    return {name: (rng.normal(size=shape) * scale[name]).astype(np.float32) for name, shape in shapes.items()}


@piece
def recurrent_target(vocab: int, width: int) -> Target:
    """A gated recurrent network as a Target.

    Args:
      vocab: V. width: D of the state.

    Returns:
      A Target. Features: "logits" f[B,T,V], "final" f[B,T,D].
    """
    def init(params: Any, batch: int, capacity: int) -> RecurrentCache:
        del capacity
        return RecurrentCache(jnp.zeros((batch, width), params["w"].dtype))

    def scratch(params: Any, batch: int, rows: int) -> Array:
        return jnp.zeros((batch, rows, width), params["w"].dtype)

    def cell(params: Any, h: Array, tokens: Array) -> Array:
        gate = jax.nn.sigmoid(h @ params["u"].T + params["f"][tokens])
        return h + gate * (jnp.tanh(h @ params["w"].T + params["e"][tokens]) - h)

    def forward(params: Any, cache: RecurrentCache, work: Array, rows: Rows, want: tuple[str, ...]) -> tuple[dict[str, Array], Array]:
        b, slots = jnp.arange(work.shape[0]), jnp.arange(work.shape[1])[None]

        def one(work: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            t, tokens, seen = row
            slot = jnp.asarray(rows.at) + t
            parent = jnp.max(jnp.where(seen & (slots < slot), slots, -1), axis=1)
            before = jnp.where(parent[:, None] < 0, cache.h, work[b, jnp.maximum(parent, 0)])
            h = cell(params, before, tokens)
            return jax.lax.dynamic_update_slice_in_dim(work, h[:, None], slot, axis=1), h

        number = jnp.arange(rows.tokens.shape[1])
        work, states = jax.lax.scan(one, work, (number, rows.tokens.T, jnp.moveaxis(rows.mask, 1, 0)))
        states = jnp.moveaxis(states, 0, 1)
        made = {"logits": lambda: states @ params["head"].T, "final": lambda: states}
        return {name: made[name]() for name in want}, work

    def select(work: Array, path: Array) -> Array:
        return jnp.take_along_axis(work, jnp.maximum(path, 0)[..., None], axis=1)

    def commit(cache: RecurrentCache, taken: Array, count: Array) -> RecurrentCache:
        last = jnp.take_along_axis(taken, jnp.maximum(count - 1, 0)[:, None, None], axis=1)[:, 0]
        return RecurrentCache(jnp.where(count[:, None] > 0, last, cache.h))

    def readout(params: Any, x: Array, ids: Array | None = None) -> Array:
        head = params["head"] if ids is None else params["head"][ids]
        return x.transpose(1, 2, 0) @ head.T

    return Target(init, scratch, forward, select, commit, vocab, context=1 << 20, layers=1, width=width, readout=readout)
