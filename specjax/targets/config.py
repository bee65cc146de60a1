"""What a decoder-only transformer of the LLaMA line is: sizes, rotation and the few switches between families.

Rotary frequencies are ``theta ** (-2 i / d)`` for ``i`` in ``0 .. d/2 - 1``; a scaling rule then divides some of them.
"""
from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """A rule that stretches the rotary frequencies for contexts longer than those of the first training.

    Attributes:
      kind: "linear" divides every frequency by `factor`; "llama3" divides the slow ones, keeps the fast ones and
        interpolates between (Llama 3.1).
      factor: the divisor.
      low, high: llama3 only: wavelengths above ``original / low`` are slow, below ``original / high`` fast.
      original: llama3 only: context length of the first training.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low: float = 1.0
    high: float = 4.0
    original: int = 8192


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Sizes and switches of a LLaMA-like decoder (LLaMA, SmolLM2, Mistral, Qwen2, Qwen3).

    Attributes:
      vocab: V, rows of the embedding. layers: L. width: D. heads: H. kv_heads: G. head_dim: d. ffn: width inside the MLP.
      context: longest sequence the model was made for.
      rope_theta, rope_scaling, rope_divisors: rotation; `rope_divisors` (d/2 numbers) comes from files that carry them.
      norm_eps: added to the mean square in RMSNorm.
      tied: the head is the embedding.
      qkv_bias: Qwen2's bias on q, k and v. qk_norm: Qwen3's RMSNorm on each head of q and k.
      family: the name the checkpoint gave, for messages only.
    """

    vocab: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    context: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rope_divisors: tuple[float, ...] | None = None
    norm_eps: float = 1e-5
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    family: str = "llama"

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even: rotation works on pairs")


def rope_frequencies(config: LlamaConfig) -> np.ndarray:
    """Angular frequency of each rotated pair, after the scaling rule of the checkpoint.

    Args:
      config: the model.

    Returns:
      f64[d/2]; position p rotates pair i by ``p * frequencies[i]`` radians.

    >>> config = LlamaConfig(vocab=8, layers=1, width=8, heads=1, kv_heads=1, head_dim=8, ffn=8, context=64, rope_theta=5e5,
    ...                      rope_scaling=RopeScaling("llama3", 8.0))
    >>> plain = rope_frequencies(dataclasses.replace(config, rope_scaling=None))
    >>> [round(float(x), 4) for x in rope_frequencies(config) / plain]
    [1.0, 1.0, 0.3711, 0.125]
    """
    frequencies = config.rope_theta ** (-np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    if config.rope_divisors is not None:
        frequencies = frequencies / np.asarray(config.rope_divisors, np.float64)
    rule = config.rope_scaling
    if rule is None:
        return frequencies
    if rule.kind == "linear":
        return frequencies / rule.factor
    wavelength = 2 * math.pi / frequencies
    keep = np.clip((rule.original / wavelength - rule.low) / (rule.high - rule.low), 0.0, 1.0)
    return keep * frequencies + (1 - keep) * frequencies / rule.factor
