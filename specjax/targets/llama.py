"""Decoder-only transformers of the LLaMA line as one `Target`: prefill, decode, verify and layer ranges are one function.

A block is ``x += O attention(rotate(Q n(x)), rotate(K n(x)), V n(x))``, then ``x += D (silu(G n(x)) * U n(x))`` with
RMSNorm n. Activations are FEATURE-MAJOR, ``x[D, B, T]``, and weights are ``[out, in]``: every product has the weights as its
left operand with contiguous rows. On a CPU that reads them once and unpacked (measured: 16 columns cost 2.1x one column,
against 3.3x for ``x @ W``); an accelerator chooses its own layouts.

The rows of Q (and the columns of O) are stored in the order (key head, feature, query heads that share the key head), so that a
pass of one sequence needs no transposition between the projection and the scores; see `queries_side_by_side`.
"""
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax import attention, cache, sampling
from specjax.targets.config import LlamaConfig, rope_frequencies
from specjax.types import Array, Rows, Target, piece


def _normal(shape: tuple[int, ...], axes: tuple[str | None, ...], rngs: nnx.Rngs) -> nnx.Param:
    value = jax.random.normal(rngs.params(), shape, jnp.float32) * np.float32(shape[-1] ** -0.5)
    return nnx.Param(value, axes=axes)


class Block(nnx.Module):
    """One transformer block; q, k, v and gate, up are stored as one matrix each."""

    def __init__(self, c: LlamaConfig, rngs: nnx.Rngs):
        qkv = (c.heads + 2 * c.kv_heads) * c.head_dim
        self.attention_norm = nnx.Param(jnp.ones(c.width), axes=("embed",))
        self.qkv = _normal((qkv, c.width), ("heads", "embed"), rngs)
        self.qkv_bias = nnx.Param(jnp.zeros(qkv), axes=("heads",)) if c.qkv_bias else None
        self.q_norm = nnx.Param(jnp.ones(c.head_dim), axes=(None,)) if c.qk_norm else None
        self.k_norm = nnx.Param(jnp.ones(c.head_dim), axes=(None,)) if c.qk_norm else None
        self.o = _normal((c.width, c.heads * c.head_dim), ("embed", "heads"), rngs)
        self.mlp_norm = nnx.Param(jnp.ones(c.width), axes=("embed",))
        self.gate_up = _normal((2 * c.ffn, c.width), ("ffn", "embed"), rngs)
        self.down = _normal((c.width, c.ffn), ("embed", "ffn"), rngs)


class Llama(nnx.Module):
    """The network: embedding, blocks, final norm, and a head unless it is the embedding."""

    def __init__(self, c: LlamaConfig, rngs: nnx.Rngs):
        self.embedding = _normal((c.vocab, c.width), ("vocab", "embed"), rngs)
        self.blocks = nnx.List([Block(c, rngs) for _ in range(c.layers)])
        self.final_norm = nnx.Param(jnp.ones(c.width), axes=("embed",))
        self.head = None if c.tied else _normal((c.vocab, c.width), ("vocab", "embed"), rngs)


@functools.cache
def abstract(config: LlamaConfig) -> tuple[Any, Any]:
    """The static definition and the parameter tree's shapes, without memory: (graph definition, State of ShapeDtypeStructs)."""
    return nnx.split(nnx.eval_shape(lambda: Llama(config, nnx.Rngs(0))))


def random_params(config: LlamaConfig, seed: int = 0) -> dict[str, Any]:
    """Random parameters, for tests and for training from scratch: the tree that `target(config)` takes."""
    return nnx.to_pure_dict(nnx.split(Llama(config, nnx.Rngs(seed)))[1])


def queries_side_by_side(rows: np.ndarray, config: LlamaConfig) -> np.ndarray:
    """Reorders query rows from (query head, feature) to the stored order (key head, feature, query head of the group).

    Args:
      rows: [H * d, ...] rows of Q or of its bias, or the transposed O. config: the model.

    Returns:
      The same rows, reordered.

    >>> c = LlamaConfig(vocab=8, layers=1, width=8, heads=4, kv_heads=2, head_dim=2, ffn=8, context=64)
    >>> queries_side_by_side(np.arange(8), c).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    shape = (config.kv_heads, config.heads // config.kv_heads, config.head_dim, *rows.shape[1:])
    return np.ascontiguousarray(np.swapaxes(rows.reshape(shape), 1, 2)).reshape(rows.shape)


def linear(w: Array, x: Array) -> Array:
    """``w @ x`` over the feature axis: f[out,in], f[in,B,T] -> f[out,B,T]."""
    return (w @ x.reshape(x.shape[0], -1)).reshape(-1, *x.shape[1:])


def rms_norm(x: Array, scale: Array, eps: float, axis: int = 0) -> Array:
    """x / sqrt(mean(x^2) + eps) * scale along `axis`, the mean in float32 or better."""
    shape = [1] * x.ndim
    shape[axis] = -1
    mean = jnp.mean(jnp.square(x.astype(jnp.promote_types(x.dtype, jnp.float32))), axis=axis, keepdims=True)
    return x * jax.lax.rsqrt(mean + eps).astype(x.dtype) * scale.reshape(shape)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotates the halves of each head: x f[G,d,n,B,T], cos and sin f[d/2,B,T]."""
    a, b = jnp.split(x, 2, axis=1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)


@piece
def target(config: LlamaConfig) -> Target:
    """A LLaMA-like decoder as a Target; its parameters are the tree of `random_params` or of a loaded checkpoint.

    Args:
      config: sizes and switches.

    Returns:
      A Target. Features that may be asked (`want`): "logits" f[B,T,V]; "final" and "normed" f[B,T,D], the residual stream
      before and after the last norm; "layer.n" f[B,T,D], the residual stream after n blocks (n = 0: the embeddings); "top8"
      i32[B,T,8] the likeliest ids, the likeliest first; "top8_log_p" f[B,T,8] their log-probabilities at temperature 1.
    """
    c = config
    frequencies = rope_frequencies(c)

    def dtype_of(params: Any) -> jnp.dtype:
        return params["embedding"].dtype

    def init(params: Any, batch: int, capacity: int) -> cache.Cache:
        return cache.init(c.layers, batch, c.kv_heads, c.head_dim, capacity, dtype_of(params))

    def scratch(params: Any, batch: int, rows: int) -> cache.KeyValues:
        return cache.rows(c.layers, batch, c.kv_heads, c.head_dim, rows, dtype_of(params))

    def embed(params: Any, tokens: Array) -> Array:
        return params["embedding"][tokens].transpose(2, 0, 1)

    def angles(state: cache.Cache, rows: Rows, dtype: jnp.dtype) -> tuple[Array, Array]:
        position = (state.position[:, None] + rows.depth).astype(jnp.float32)
        angle = jnp.asarray(frequencies, jnp.float32)[:, None, None] * position[None]
        # Without the barrier the compiler recomputes the sines inside every layer.
        return jax.lax.optimization_barrier((jnp.cos(angle).astype(dtype), jnp.sin(angle).astype(dtype)))

    def attention_part(block: dict[str, Array], x: Array, kv: tuple[Array, ...], length: Array, mask: Array, at: Array,
                       turn: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        mixed = linear(block["qkv"], rms_norm(x, block["attention_norm"], c.norm_eps))
        if c.qkv_bias:
            mixed = mixed + block["qkv_bias"][:, None, None]
        split = c.heads * c.head_dim, (c.heads + c.kv_heads) * c.head_dim
        q, k, v = (part.reshape(c.kv_heads, c.head_dim, -1, *x.shape[1:]) for part in jnp.split(mixed, split))
        if c.qk_norm:
            q, k = rms_norm(q, block["q_norm"], c.norm_eps, 1), rms_norm(k, block["k_norm"], c.norm_eps, 1)
        q, k, v = rotate(q, *turn), rotate(k, *turn)[:, :, 0], v[:, :, 0]
        old_k, old_v, scratch_k, scratch_v = kv
        new_k, new_v = cache.write_rows(scratch_k, scratch_v, k.transpose(2, 0, 3, 1), v.transpose(2, 0, 1, 3), at)
        out = attention.attend(q, old_k, old_v, length, new_k, new_v, mask)
        return linear(block["o"], out.reshape(-1, *x.shape[1:])), new_k, new_v

    def mlp_part(block: dict[str, Array], x: Array) -> Array:
        gate, up = jnp.split(linear(block["gate_up"], rms_norm(x, block["mlp_norm"], c.norm_eps)), 2)
        return linear(block["down"], jax.nn.silu(gate) * up)

    # Blocks differ in values only: as jitted functions they are traced and lowered once a pass shape, not once a layer.
    @jax.jit
    def run_block(block: dict[str, Array], x: Array, kv: tuple[Array, ...], *seen: Any) -> tuple[Array, Array, Array]:
        out, k, v = attention_part(block, x, kv, *seen)
        x = x + out
        return x + mlp_part(block, x), k, v

    @jax.jit
    def run_gated(gates: tuple[Array, Array], block: dict[str, Array], x: Array, kv: tuple[Array, ...], *seen: Any) -> tuple[Array, Array, Array]:
        out, k, v = jax.lax.cond(gates[0], lambda: attention_part(block, x, kv, *seen), lambda: (jnp.zeros_like(x), kv[2], kv[3]))
        x = x + out
        return x + jax.lax.cond(gates[1], lambda: mlp_part(block, x), lambda: jnp.zeros_like(x)), k, v

    def run_layers(params: Any, state: cache.Cache, work: cache.KeyValues, x: Array, rows: Rows, lo: int, hi: int,
                   gates: tuple[Array, Array] | None = None, taps: tuple[int, ...] = ()
                   ) -> tuple[Array, cache.KeyValues, dict[int, Array]]:
        """Blocks lo..hi-1 on x f[D,B,T]; `gates` = (attention bool[L], mlp bool[L]), data, shared by the batch."""
        seen = (state.length, rows.mask, jnp.asarray(rows.at, jnp.int32), angles(state, rows, x.dtype))
        ks, vs, tapped = list(work.k), list(work.v), {}
        for i in range(lo, hi):
            if i in taps:
                tapped[i] = x
            block, kv = params["blocks"][i], (state.k[i], state.v[i], ks[i], vs[i])
            if gates is None:
                x, ks[i], vs[i] = run_block(block, x, kv, *seen)
            else:
                x, ks[i], vs[i] = run_gated((gates[0][i], gates[1][i]), block, x, kv, *seen)
        if hi in taps:
            tapped[hi] = x
        return x, cache.KeyValues(tuple(ks), tuple(vs)), tapped

    def normed(params: Any, x: Array) -> Array:
        return rms_norm(x, params["final_norm"], c.norm_eps)

    def readout(params: Any, x: Array, ids: Array | None = None) -> Array:
        head = params["embedding"] if c.tied else params["head"]
        return linear(head if ids is None else head[ids], normed(params, x)).transpose(1, 2, 0)

    def finish(params: Any, x: Array, tapped: dict[int, Array], want: tuple[str, ...]) -> dict[str, Array]:
        rows_first = lambda y: y.transpose(1, 2, 0)  # noqa: E731
        logits = functools.cache(lambda: readout(params, x))
        makers: dict[str, Callable[[], Array]] = {
            "logits": logits, "top8": lambda: sampling.top_ids(logits(), 8),
            "top8_log_p": lambda: jnp.take_along_axis(sampling.log_normalize(logits()), sampling.top_ids(logits(), 8), axis=-1),
            "final": lambda: rows_first(x), "normed": lambda: rows_first(normed(params, x)),
            **{f"layer.{n}": functools.partial(rows_first, y) for n, y in tapped.items()}}
        unknown = [name for name in want if name not in makers]
        if unknown:
            raise ValueError(f"features {unknown} are not made by this target; it makes {sorted(makers)} and layer.0 .. layer.{c.layers}")
        return {name: makers[name]() for name in want}

    def forward(params: Any, state: cache.Cache, work: cache.KeyValues, rows: Rows, want: tuple[str, ...],
                resume: tuple[Array, int] | None = None) -> tuple[dict[str, Array], cache.KeyValues]:
        """All blocks, or those after `resume` = (hidden f[D,B,T], blocks already run)."""
        taps = tuple(int(name[6:]) for name in want if name.startswith("layer.") and name[6:].isdigit())
        x, lo = (embed(params, rows.tokens), 0) if resume is None else resume
        x, work, tapped = run_layers(params, state, work, x, rows, lo, c.layers, taps=taps)
        return finish(params, x, tapped, want), work

    return Target(init, scratch, forward, cache.select, cache.commit, c.vocab, c.context, c.layers, c.width, embed, run_layers, readout)


def shrink(config: LlamaConfig, params: dict[str, Any], layers: tuple[int, ...]) -> tuple[LlamaConfig, dict[str, Any]]:
    """A smaller model made of some blocks of a larger one; embedding, head and blocks are shared, not copied.

    Args:
      config, params: the larger model. layers: which blocks, in order.

    Returns:
      (config, params) of the smaller one.
    """
    blocks = {i: params["blocks"][layer] for i, layer in enumerate(layers)}
    return dataclasses.replace(config, layers=len(layers)), {**params, "blocks": blocks}
