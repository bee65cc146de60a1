"""The warp of all settings: a request's sampling settings as one law, for target and drafter, with and without speculation.

The one order, of each row by itself:

    logits -> bias -> banned tokens, stop ids before min_new_tokens, grammar -> repetition, presence, frequency penalty
           -> / temperature -> top-k -> top-p -> min-p -> typical-p -> normalise;   temperature 0: the point mass at the largest

Penalties and grammar see the path of each node: what prompt and answer hold, and the drafted tokens from the root to the row that judges. Their
committed state moves by emitted tokens only. What no row of a batch uses costs nothing: it stands in the branch of a `cond` that is not taken
(which is why a warp works on a batch and is never mapped over rows).

Where grammar and minimum length together leave nothing, the minimum yields.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import truncate
from specjax.sampling import argmax, log_normalize, point_mass
from specjax.settings import MAX_BIAS, MAX_STOPS, Settings
from specjax.types import Array, Warp, piece


class Wishes(NamedTuple):
    """Settings as arrays, one entry a row.

    Attributes:
      temperature, top_p, min_p, typical_p, repetition, presence, frequency: f32[B]. top_k, min_new: i32[B].
      bias_ids: i32[B,M] token ids, V where unused. bias: f32[B,M], -inf = banned. stops: i32[B,E], -1 where unused.
      grammar: i32[B] state of the grammar, -1 = none. following: i16[B,S,C], classes: i32[B,V or 1], final: bool[B,S] its tables.
    """

    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    typical_p: Array
    repetition: Array
    presence: Array
    frequency: Array
    min_new: Array
    bias_ids: Array
    bias: Array
    stops: Array
    grammar: Array
    following: Array
    classes: Array
    final: Array


class WarpState(NamedTuple):
    """`wishes`; `counts` i32[B,V] how often the answer holds a token; `prompt` bool[B,V] whether the prompt does; `made` i32[B] its length."""

    wishes: Wishes
    counts: Array
    prompt: Array
    made: Array


def grammar_sizes(settings: Sequence[Settings]) -> tuple[int, int]:
    """(states, classes) that hold the grammars of some requests, rounded up to powers of two; (0, 0) without any."""
    tables = [s.grammar.following.shape for s in settings if s.grammar is not None]
    return tuple(1 << (max(t[i] for t in tables) - 1).bit_length() if tables else 0 for i in (0, 1))  # type: ignore[return-value]


def wishes(settings: Sequence[Settings], vocab: int, sizes: tuple[int, int] = (0, 0)) -> Wishes:
    """Checked settings as arrays.

    Args:
      settings: one a row. vocab: V. sizes: (states, classes) of the grammar tables, (0, 0) = no row may have one.

    Returns:
      Wishes, on the host.

    Raises:
      ValueError: a grammar larger than `sizes`.
    """
    batch, (states, classes) = len(settings), sizes
    floats = lambda name: np.asarray([getattr(s, name) for s in settings], np.float32)  # noqa: E731
    integers = lambda name: np.asarray([getattr(s, name) for s in settings], np.int32)  # noqa: E731
    bias_ids, bias = np.full((batch, MAX_BIAS), vocab, np.int32), np.zeros((batch, MAX_BIAS), np.float32)
    stops = np.full((batch, MAX_STOPS), -1, np.int32)
    following = np.full((batch, max(1, states), max(1, classes)), -1, np.int16)
    of, final = np.zeros((batch, vocab if states else 1), np.int32), np.zeros((batch, max(1, states)), bool)
    for b, s in enumerate(settings):
        pairs = [*s.logit_bias, *((t, -np.inf) for t in s.banned)]
        bias_ids[b, :len(pairs)], bias[b, :len(pairs)] = [t for t, _ in pairs], [v for _, v in pairs]
        stops[b, :len(s.stop_ids)] = s.stop_ids
        if s.grammar is not None:
            rows, columns = s.grammar.following.shape
            if rows > states or columns > classes:
                raise ValueError(f"the grammar {s.grammar.source!r} has {rows} states and {columns} classes of tokens: there is room for {states} "
                                 f"and {classes}")
            following[b, :rows, :columns], of[b], final[b, :rows] = s.grammar.following, s.grammar.classes, s.grammar.final
    return Wishes(floats("temperature"), integers("top_k"), floats("top_p"), floats("min_p"), floats("typical_p"), floats("repetition_penalty"),
                  floats("presence_penalty"), floats("frequency_penalty"), integers("min_new_tokens"), bias_ids, bias, stops,
                  np.asarray([-1 if s.grammar is None else 0 for s in settings], np.int32), following, of, final)


def _when(wanted: Array, change: object, x: Array, *rest: Array) -> Array:
    """`change(x, *rest)` if any row wants it, else x."""
    return jax.lax.cond(jnp.any(wanted), change, lambda x, *_: x, x, *rest)


def _wide(x: Array) -> Array:
    """[B] -> [B,1,1], beside [B,T,V]."""
    return x[:, None, None]


def biased(w: Wishes, logits: Array) -> Array:
    """Bias added, banned tokens at -inf: f[B,T,V]."""
    batch = logits.shape[0]

    def change(x: Array) -> Array:
        b, t = jnp.arange(batch)[:, None, None], jnp.arange(x.shape[1])[None, :, None]
        return x.at[b, t, w.bias_ids[:, None]].add(w.bias[:, None].astype(x.dtype), mode="drop")

    return _when(w.bias_ids[:, 0] < logits.shape[-1], change, logits)


def grammar_states(w: Wishes, path: Array) -> Array:
    """The grammar's state after each path i32[B,T,K]: i32[B,T]; -1 where there is no grammar or the path leaves it."""
    def one(state: Array, following: Array, classes: Array, tokens: Array) -> Array:
        def step(s: Array, token: Array) -> tuple[Array, None]:
            after = following[jnp.maximum(s, 0), classes[jnp.maximum(token, 0)]].astype(jnp.int32)
            return jnp.where(token < 0, s, jnp.where(s < 0, -1, after)), None
        return jax.lax.scan(step, state, tokens)[0]

    return jax.vmap(lambda state, following, classes, paths: jax.vmap(lambda p: one(state, following, classes, p))(paths))(
        w.grammar, w.following, w.classes, path)


def forbidden(s: WarpState, logits: Array, path: Array, depth: Array) -> Array:
    """Stop ids before the minimum length and what the grammar does not allow, at -inf: f[B,T,V]."""
    w, batch, vocab = s.wishes, logits.shape[0], logits.shape[-1]
    b, t = jnp.arange(batch)[:, None, None], jnp.arange(logits.shape[1])[None, :, None]
    early = (s.made[:, None] + depth) < w.min_new[:, None]

    def marked(rows: Array) -> Array:
        """bool[B,T,V]: stop ids, at the rows bool[B,T]."""
        at = jnp.where(rows[..., None] & (w.stops >= 0)[:, None], w.stops[:, None], vocab)
        return jnp.zeros(logits.shape, bool).at[b, t, at].set(True, mode="drop")

    if w.classes.shape[1] == 1:
        return _when(early, lambda x: jnp.where(marked(early), -jnp.inf, x), logits)

    def change(x: Array) -> Array:
        state = grammar_states(w, path)
        inside, at = state >= 0, jnp.maximum(state, 0)
        row = jnp.take_along_axis(w.following, at[..., None].astype(jnp.int32), axis=1)
        allowed = jnp.take_along_axis(row, jnp.broadcast_to(w.classes[:, None], x.shape), axis=2) >= 0
        allowed = jnp.where(marked(inside), jnp.take_along_axis(w.final, at, axis=1)[..., None], allowed | ~inside[..., None])
        later = allowed & ~marked(early)
        return jnp.where(jnp.where(jnp.any(later & (x > -jnp.inf), axis=-1, keepdims=True), later, allowed), x, -jnp.inf)

    return _when((w.grammar >= 0) | jnp.any(early, axis=1), change, logits)


def penalised(s: WarpState, logits: Array, path: Array) -> Array:
    """Repetition, then presence and frequency penalty, with the path of each row: f[B,T,V]."""
    w = s.wishes

    def change(x: Array) -> Array:
        b, t = jnp.arange(x.shape[0])[:, None, None], jnp.arange(x.shape[1])[None, :, None]
        counts = jnp.broadcast_to(s.counts[:, None], x.shape).at[b, t, jnp.where(path >= 0, path, x.shape[-1])].add(1, mode="drop")
        factor = _wide(w.repetition).astype(x.dtype)
        x = jnp.where((counts > 0) | s.prompt[:, None], jnp.where(x > 0, x / factor, x * factor), x)
        times = counts.astype(x.dtype)
        return x - _wide(w.presence).astype(x.dtype) * jnp.minimum(times, 1) - _wide(w.frequency).astype(x.dtype) * times

    return _when((w.repetition != 1) | (w.presence != 0) | (w.frequency != 0), change, logits)


def truncated(w: Wishes, x: Array) -> Array:
    """Top-k, top-p, min-p and typical-p of log-weights f[B,T,V]; what is cut off is -inf."""
    x = _when((w.top_k > 0) | (w.top_p < 1) | (w.min_p > 0), lambda x: truncate.cut(x, _wide(w.top_k), _wide(w.top_p), _wide(w.min_p)), x)
    return _when(w.typical_p < 1, lambda x: truncate.typical(x, _wide(w.typical_p)), x)


@piece
def settings_warp() -> Warp:
    """All settings; each row of a batch has its own.

    Returns:
      A Warp whose state is a `WarpState`.
    """
    def init(w: Wishes, prompt: Array, length: Array, vocab: int) -> WarpState:
        batch = prompt.shape[0]
        at = jnp.where(jnp.arange(prompt.shape[1])[None] < length[:, None], prompt, vocab)
        seen = jnp.zeros((batch, vocab), bool).at[jnp.arange(batch)[:, None], at].set(True, mode="drop")
        return WarpState(w, jnp.zeros((batch, vocab), jnp.int32), seen, jnp.zeros(batch, jnp.int32))

    def adjust(s: WarpState, logits: Array, path: Array, depth: Array) -> Array:
        return penalised(s, forbidden(s, biased(s.wishes, logits), path, depth), path)

    def law(s: WarpState, logits: Array, path: Array, depth: Array) -> Array:
        x, cold = adjust(s, logits, path, depth), _wide(s.wishes.temperature <= 0)
        warm = _wide(jnp.where(s.wishes.temperature <= 0, 1.0, s.wishes.temperature)).astype(x.dtype)
        soft = log_normalize(truncated(s.wishes, x / warm))  # a division by a reciprocal would round differently for 1: divide
        return jax.lax.cond(jnp.any(cold), lambda: jnp.where(cold, point_mass(argmax(x), x.shape[-1], x.dtype), soft), lambda: soft)

    def observe(s: WarpState, tokens: Array, count: Array) -> WarpState:
        batch, vocab = s.counts.shape
        b, inside = jnp.arange(batch)[:, None], jnp.arange(tokens.shape[1])[None] < count[:, None]
        counts = s.counts.at[b, jnp.where(inside, tokens, vocab)].add(1, mode="drop")
        w = s.wishes
        if w.classes.shape[1] > 1:
            w = w._replace(grammar=grammar_states(w, jnp.where(inside, tokens, -1)[:, None])[:, 0])
        return WarpState(w, counts, s.prompt, s.made + count)

    def greedy(s: WarpState) -> Array:
        return s.wishes.temperature <= 0

    return Warp(init, adjust, law, observe, greedy, wishes=wishes)
