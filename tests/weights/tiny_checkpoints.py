"""Tiny random models for the loaders: configurations, values, a tokenizer, and the names and row order of GGUF."""
from __future__ import annotations

import dataclasses

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specjax.targets.config import LlamaConfig
from specjax.weights import expected_names

TINY = LlamaConfig(vocab=12, layers=2, width=32, heads=4, kv_heads=2, head_dim=8, ffn=64, context=128, rope_theta=5e5)
FAMILIES = {
    "llama": TINY,
    "mistral": dataclasses.replace(TINY, family="mistral"),
    "qwen2": dataclasses.replace(TINY, family="qwen2", qkv_bias=True),
    "qwen3": dataclasses.replace(TINY, family="qwen3", qk_norm=True, head_dim=16),
}
# Byte-level tokens: G-with-dot is a space.
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ", "Ġa", "1", "2", "<think>", "c"]
TOKEN_TYPES = [3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 4, 1]
MERGES = ["a b", "Ġ a"]

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def random_tensors(config: LlamaConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Hugging Face name -> f32 values that float16 holds exactly."""
    rng = np.random.default_rng(seed)
    names = expected_names(config).items()
    return {name: rng.standard_normal(shape).astype(np.float16).astype(np.float32) for name, shape in names}


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{_GGUF_NAMES.get(stem, stem)}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES.get(part, part)}.{kind}"


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """The converter's permutation of q and k: rows 0, d/2, 1, d/2 + 1, ... of each head, spelled out row by row."""
    d = rows.shape[0] // heads
    order = [head * d + offset + i for head in range(heads) for i in range(d // 2) for offset in (0, d // 2)]
    return rows[order]


def tiny_tokenizer() -> Tokenizer:
    """The tokenizer of the tiny GGUF files, built directly with the library."""
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, merges))
    digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(TOKENS[:3])
    return tokenizer
