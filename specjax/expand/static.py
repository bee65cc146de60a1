"""Static trees: every node of level l gets ``branching[l]`` children, chosen or drawn from the drafter's law.

One `lax.scan` over levels grows them all: chains, k-ary trees of the most likely tokens, independent draws (multi-candidate
and SpecInfer-like trees) and draws without replacement by the k best of one exponential race (recursive speculative decoding's
constant branching). Rows are in breadth-first order, and slot n of the drafter's scratch is row n.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import noise as coins
from specjax import sampling, tree
from specjax.expand.base import Expansion, Step
from specjax.types import DETERMINISTIC, FORCED, INDEPENDENT, WITHOUT_REPLACEMENT, Array, Context, Draft, Proposal, Rows, piece

_KIND = {"top": DETERMINISTIC, "independent": INDEPENDENT, "without_replacement": WITHOUT_REPLACEMENT}


class Template:
    """The static tables of a tree: all rows and levels, as numpy arrays made once when the expansion is built."""

    def __init__(self, branching: tuple[int, ...]):
        widths = [1, *np.cumprod(branching).tolist()]
        starts = np.cumsum([0, *widths]).tolist()
        self.rows, self.depth, self.levels = starts[-1], len(branching), tuple(widths[1:])
        self.parents = np.zeros(self.rows, np.int32)
        for level, k in enumerate(branching):
            self.parents[starts[level + 1]:starts[level + 2]] = starts[level] + np.arange(widths[level + 1]) // k
        self.width = max(widths[1:-1], default=1)
        self.fan = max(branching[1:], default=1)
        self.slots = max([self.rows, *(s + self.width for s in starts[1:-2])])
        seen = np.eye(self.rows, self.slots, dtype=bool)
        for row in range(1, self.rows):
            seen[row] |= seen[self.parents[row]]
        # Per scanned level: rows of the frontier, of its children, and what each frontier row sees; `rows` means "none".
        self.frontier = np.full((self.depth - 1, self.width), self.rows, np.int32)
        self.children = np.full((self.depth - 1, self.width, self.fan), self.rows, np.int32)
        self.q_row = np.zeros(self.rows, np.int32)
        for level in range(1, self.depth):
            n, k = widths[level], branching[level]
            self.frontier[level - 1, :n] = starts[level] + np.arange(n)
            self.children[level - 1, :n, :k] = starts[level + 1] + np.arange(n * k).reshape(n, k)
            self.q_row[starts[level + 1]:starts[level + 2]] = 1 + (level - 1) * self.width + np.arange(n * k) // k
        self.starts = np.asarray(starts[1:self.depth], np.int32)
        self.mask = seen[np.minimum(self.frontier, self.rows - 1)]
        # The rows of the path from the root's child to each frontier row, 0 where it has ended.
        self.above = np.zeros((self.depth - 1, self.width, self.depth), np.int32)
        for at in np.ndindex(self.frontier.shape):
            path, row = [], self.frontier[at] % self.rows
            while row:
                path, row = [row, *path], self.parents[row]
            self.above[at][:len(path)] = path


def _choose(draw: str, ctx: Context, logits: Array, path: Array, parent: Array, children: Array, depth: Array) -> tuple[Array, Array, Array]:
    """Children of T frontier rows.

    Args:
      draw: see `static`. logits: f[B,T,V]. path: i32[B,T,K] tokens from the root's child to each row, -1 padded. parent: i32[T] rows.
      children: i32[T,k] rows. depth: i32[] of the children.

    Returns:
      (tokens i32[B,T,k]; log-probability of each f[B,T,k]; log_q f[B,T,V] the law drawn from).
    """
    batch, t, vocab = logits.shape
    k, ids = children.shape[1], jnp.arange(vocab)
    above = jnp.broadcast_to(depth - 1, (batch, t))
    if draw == "top":
        plain = sampling.log_normalize(sampling.adjusted(ctx, logits, path, above))
        value, tokens = jax.lax.top_k(plain, k)
        return tokens, value, plain
    log_q = sampling.laws(ctx, logits, path, above)
    at = jnp.broadcast_to(depth, (batch, t))
    if draw == "without_replacement":
        times = sampling.draw_times(ctx, at, jnp.broadcast_to(parent, (batch, t)), ids)
        tokens = jax.lax.top_k(sampling.race_values(log_q, times), k)[1] if k > 1 else sampling.race(log_q, times)[..., None]
    else:
        def one(rank: int) -> Array:
            row = jnp.broadcast_to(children[:, rank], (batch, t))
            if rank == 0:
                return sampling.race(log_q, sampling.draw_times(ctx, at, row, ids))
            times = coins.race_times(ctx.noise, coins.DRAW, ctx.index[:, None], row, ids)  # coupled twins would be identical
            return sampling.race(log_q, times)
        tokens = jnp.stack([one(r) for r in range(k)], axis=-1)
    return tokens, jnp.take_along_axis(log_q, tokens, axis=-1), log_q


@piece
def static(branching: tuple[int, ...], draw: str = "top") -> Expansion:
    """A tree with ``branching[l]`` children below every node of level l.

    Args:
      branching: children a node, level by level; (1, 1, 1) is a chain of three.
      draw: "top" takes the most likely tokens (deterministic); "independent" draws each child from the drafter's warped law;
        "without_replacement" takes the k best of one race, which are k draws without replacement in draw order.

    Returns:
      An Expansion.

    Raises:
      ValueError: an unknown draw, or a branching that is empty or below 1.

    >>> static((2, 1)).rows, static((4, 2, 2)).rows - 1
    (5, 28)
    """
    if draw not in _KIND:
        raise ValueError(f"draw is {draw!r}: one of {sorted(_KIND)}")
    if not branching or min(branching) < 1:
        raise ValueError(f"branching is {branching}: at least one level, each with at least one child")
    t, kind = Template(branching), _KIND[draw]

    def expand(ctx: Context, step: Step, first: Array, carry: Any) -> tuple[Draft, Any]:
        batch = ctx.root.shape[0]
        top = np.arange(1, 1 + branching[0], dtype=np.int32)[None]
        none = jnp.full((batch, 1, 1), -1, jnp.int32)
        chosen, log_p, law0 = _choose(draw, ctx, first[:, None], none, jnp.zeros(1, jnp.int32), jnp.asarray(top), jnp.int32(1))
        tokens = jnp.zeros((batch, t.rows), jnp.int32).at[:, 0].set(ctx.root).at[:, top[0]].set(chosen[:, 0])
        score = jnp.zeros((batch, t.rows), log_p.dtype).at[:, top[0]].set(log_p[:, 0])

        def level(c: tuple[Array, Array, Any], x: tuple[Array, ...]) -> tuple[tuple[Array, Array, Any], Array]:
            tokens, score, carry = c
            number, at, frontier, children, mask, above = x
            here = jnp.minimum(frontier, t.rows - 1)
            rows = Rows(tokens[:, here], jnp.broadcast_to(number, (batch, t.width)),
                        jnp.broadcast_to(mask, (batch, *mask.shape)), at)
            logits, carry = step(carry, rows)
            path = jnp.where(above > 0, tokens[:, above], -1)
            chosen, log_p, log_q = _choose(draw, ctx, logits, path, frontier, children, number + 1)
            below = children.reshape(-1)
            tokens = tokens.at[:, below].set(chosen.reshape(batch, -1), mode="drop")
            total = (score[:, here][..., None] + log_p).reshape(batch, -1)
            return (tokens, score.at[:, below].set(total, mode="drop"), carry), log_q

        xs = (jnp.arange(1, t.depth, dtype=jnp.int32), t.starts, t.frontier, t.children, t.mask, t.above)
        laws: list[Array] = [law0]
        if t.depth > 1:
            (tokens, score, carry), deeper = jax.lax.scan(level, (tokens, score, carry), jax.tree.map(jnp.asarray, xs))
            laws.append(jnp.moveaxis(deeper, 0, 1).reshape(batch, -1, deeper.shape[-1]))
        kinds = jnp.broadcast_to(jnp.asarray([FORCED] + [kind] * (t.rows - 1), jnp.int32), (batch, t.rows))
        proposal = None
        if kind != DETERMINISTIC:
            proposal = Proposal(jnp.concatenate(laws, axis=1), jnp.broadcast_to(jnp.asarray(t.q_row), (batch, t.rows)))
        parents = jnp.broadcast_to(jnp.asarray(t.parents), (batch, t.rows))
        draft = Draft(tokens, parents, kinds, jnp.exp(score).astype(jnp.float32), jnp.zeros_like(tokens), proposal)
        # A draw without replacement finds nothing once the support is used up: such a node, and all below it, is empty.
        return tree.drop(draft, score == -jnp.inf), carry

    name = f"{draw}{branching}" if len(set(branching)) > 1 or branching[0] > 1 else f"{draw} chain of {len(branching)}"
    return Expansion(expand, t.rows, t.depth, t.slots, frozenset((FORCED, kind)), t.levels, name)


def _build(branching: tuple[int, ...], draw: str) -> Callable[..., Expansion]:
    return static(tuple(branching), draw)


def chain(length: int, draw: str = "independent") -> Expansion:
    """A chain of `length` tokens, sampled from the drafter's law (the argmax at temperature 0), or its argmax with "top"."""
    return _build((1,) * length, draw)


def kary(*branching: int) -> Expansion:
    """The most likely tokens: a k-ary tree by level, deterministic."""
    return _build(branching, "top")


def independent(*branching: int) -> Expansion:
    """Independent draws, repeats possible (multi-candidate speculative decoding with replacement)."""
    return _build(branching, "independent")


def gumbel(*branching: int) -> Expansion:
    """Draws without replacement by one race a node (Gumbel top-k; recursive speculative decoding, constant branching)."""
    return _build(branching, "without_replacement")
