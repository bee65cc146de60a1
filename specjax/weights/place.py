"""From a checkpoint's tensors to the parameter tree of `specjax.targets.llama`: q, k, v and gate, up are stacked, and the query
rows take the order that the network stores (`specjax.targets.llama.queries_side_by_side`).

Tensors are read, stacked and placed one block at a time, so the peak is the model plus one block.
"""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.targets.llama import abstract, queries_side_by_side
from specjax.weights.checkpoint import Checkpoint, CheckpointError


def params_of(checkpoint: Checkpoint, dtype: Any = jnp.float32) -> dict[str, Any]:
    """Reads every tensor of a checkpoint into the parameter tree of its target.

    Args:
      checkpoint: opened, not yet read. dtype: of the parameters.

    Returns:
      The tree that ``specjax.targets.llama.target(checkpoint.config)`` takes.

    Raises:
      CheckpointError: the tree and the network disagree on a name or a shape.
    """
    c, left = checkpoint.config, dict(checkpoint.tensors)

    def take(name: str) -> np.ndarray:
        value = left.pop(name)()
        if ".q_proj." in name:
            return queries_side_by_side(value, c)
        return queries_side_by_side(value.T, c).T if ".o_proj." in name else value

    def read(*names: str) -> jax.Array:
        parts = [take(name) for name in names]
        return jnp.asarray(np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts), dtype)

    def block(i: int) -> dict[str, jax.Array]:
        at = f"model.layers.{i}."
        attention = [at + f"self_attn.{x}_proj" for x in "qkv"]
        made = {"attention_norm": read(at + "input_layernorm.weight"), "qkv": read(*(a + ".weight" for a in attention)),
                "o": read(at + "self_attn.o_proj.weight"), "mlp_norm": read(at + "post_attention_layernorm.weight"),
                "gate_up": read(at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"), "down": read(at + "mlp.down_proj.weight")}
        if c.qkv_bias:
            made["qkv_bias"] = read(*(a + ".bias" for a in attention))
        if c.qk_norm:
            made |= {"q_norm": read(at + "self_attn.q_norm.weight"), "k_norm": read(at + "self_attn.k_norm.weight")}
        return made

    params: dict[str, Any] = {"embedding": read("model.embed_tokens.weight"), "blocks": {i: block(i) for i in range(c.layers)},
                              "final_norm": read("model.norm.weight")}
    if not c.tied:
        params["head"] = read("lm_head.weight")
    if left:
        raise CheckpointError(f"{checkpoint.name}: tensors {sorted(left)[:4]} have no place in the network")
    _check(params, c, checkpoint.name)
    return params


def _check(params: dict[str, Any], config: Any, name: str) -> None:
    from flax import nnx
    wanted = nnx.to_pure_dict(abstract(config)[1])
    got = {jax.tree_util.keystr(k): v.shape for k, v in jax.tree_util.tree_leaves_with_path(params)}
    expected = {jax.tree_util.keystr(k): v.shape for k, v in jax.tree_util.tree_leaves_with_path(wanted)}
    for key in sorted(set(got) | set(expected)):
        if got.get(key) != expected.get(key):
            raise CheckpointError(f"{name}: parameter {key} has shape {got.get(key)}, the network wants {expected.get(key)}")
