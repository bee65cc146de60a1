"""The walk that verifiers share: from the root down, one visited row at a time, for a batch whose rows stop apart.

Written for a batch by hand: a vmapped `while_loop` would select its whole carry at every step.
"""
from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from specjax import sampling
from specjax.types import Array, Context, Draft, Verdict


class Walk(NamedTuple):
    """Where each batch row is.

    Attributes:
      active: bool[B]. row: i32[B] current row. depth: i32[B]. path: i32[B,R]. token: i32[B] the token after the path.
      go_on: f32[B,R] chance to go on at each visited depth, -1 elsewhere.
    """

    active: Array
    row: Array
    depth: Array
    path: Array
    token: Array
    go_on: Array

    def advance(self, accept: Array, child: Array, token: Array, go_on: Array) -> Walk:
        """One visited row: descend to `child` where `accept`, else end with `token`; both i32[B]."""
        b = jnp.arange(self.row.shape[0])
        on = self.active & accept
        width = self.path.shape[1]
        depth = jnp.where(on, self.depth + 1, self.depth)
        return Walk(on, jnp.where(on, child, self.row).astype(jnp.int32), depth,
                    self.path.at[b, jnp.where(on, depth, width)].set(child.astype(jnp.int32), mode="drop"),
                    jnp.where(self.active, token, self.token),
                    self.go_on.at[b, jnp.where(self.active, self.depth, width)].set(go_on, mode="drop"))

    def verdict(self) -> Verdict:
        """The finished walk as a Verdict."""
        return Verdict(self.path, self.depth + 1, self.token, self.go_on)


def begin(draft: Draft) -> Walk:
    """Every row of the batch at its root."""
    batch, rows = draft.tokens.shape
    path = jnp.broadcast_to(jnp.where(jnp.arange(rows) == 0, 0, -1), (batch, rows))
    zero = jnp.zeros(batch, jnp.int32)
    return Walk(jnp.ones(batch, bool), zero, zero, path, zero, jnp.full((batch, rows), -1.0, jnp.float32))


def _here(draft: Draft, logits: Array, w: Walk) -> tuple[Array, Array, Array]:
    """Where each batch row stands, as the warp's arguments: (logits f[B,1,V], path tokens i32[B,1,R-1], depth i32[B,1])."""
    rows = w.path[:, 1:]
    tokens = jnp.where(rows >= 0, jnp.take_along_axis(draft.tokens, jnp.maximum(rows, 0), axis=1), -1)
    return logits[jnp.arange(w.row.shape[0]), w.row][:, None], tokens[:, None], w.depth[:, None]


def law_at(ctx: Context, draft: Draft, logits: Array, w: Walk) -> Array:
    """The warped law of the row where each batch row stands.

    Args:
      ctx: the round. draft: the tree. logits: f[B,R,V]. w: the walk.

    Returns:
      f[B,V] log-probabilities.
    """
    return sampling.laws(ctx, *_here(draft, logits, w))[:, 0]


def adjusted_at(ctx: Context, draft: Draft, logits: Array, w: Walk) -> Array:
    """The logits f[B,V] of that row before temperature; arguments as for `law_at`."""
    return sampling.adjusted(ctx, *_here(draft, logits, w))[:, 0]
