"""What a loaded checkpoint is, and the strict check of its tensor names and shapes.

Every reader of this package (safetensors folder, GGUF file, hub) returns the same `Checkpoint`, so nothing above has to
know which file the weights came from: names and row order are those of Hugging Face, values are float32.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specjax.targets.config import LlamaConfig

if TYPE_CHECKING:
    import tokenizers

    from specjax.weights.chat import ChatTemplate


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the offending value and the rule it breaks."""


class Checkpoint(NamedTuple):
    """A pretrained model, opened but not yet read.

    Attributes:
      config: sizes and switches of the model.
      tensors: Hugging Face name -> function that reads that one tensor, f32[out, in] for a matrix, with the rows of q
        and k in half-split rotation order. The keys are those of `expected_names`. Nothing is read before a function is
        called, and nothing is kept after: read one, place it on the device, drop it.
      tokenizer: None when the checkpoint has none. Use `specjax.weights.tokenizer.encode`, which minds the BOS.
      chat: the chat template, None when the checkpoint has none.
      bos: id of the begin-of-text token, whether or not the tokenizer puts it before a prompt.
      eos: all ids that end a generation: end of text and end of turn.
      name: how messages and reports call the checkpoint.
      fingerprint: sha256 (hex) of the vocabulary in id order, "" without a tokenizer. Equal fingerprints mean that
        token ids can pass from one model to another.
    """

    config: LlamaConfig
    tensors: Mapping[str, Callable[[], np.ndarray]]
    tokenizer: tokenizers.Tokenizer | None
    chat: ChatTemplate | None
    bos: int | None
    eos: tuple[int, ...]
    name: str
    fingerprint: str


def expected_names(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors that a model of this configuration has.

    Args:
      config: the model.

    Returns:
      Hugging Face name -> shape, ``(out, in)`` for a matrix; without ``lm_head.weight`` when the head is tied.

    >>> config = LlamaConfig(vocab=8, layers=1, width=4, heads=2, kv_heads=1, head_dim=2, ffn=6, context=64)
    >>> names = expected_names(config)
    >>> names["model.layers.0.self_attn.k_proj.weight"], names["lm_head.weight"], len(names)
    ((2, 4), (8, 4), 12)
    """
    names: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab, config.width)}
    for layer in range(config.layers):
        names |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_names(config)}
    names["model.norm.weight"] = (config.width,)
    if not config.tied:
        names["lm_head.weight"] = (config.vocab, config.width)
    return names


def _layer_names(config: LlamaConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield "input_layernorm.weight", (config.width,)
    for part, out in (("q", queries), ("k", keys), ("v", keys)):
        yield f"self_attn.{part}_proj.weight", (out, config.width)
        if config.qkv_bias:
            yield f"self_attn.{part}_proj.bias", (out,)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)
    yield "self_attn.o_proj.weight", (config.width, queries)
    yield "post_attention_layernorm.weight", (config.width,)
    yield "mlp.gate_proj.weight", (config.ffn, config.width)
    yield "mlp.up_proj.weight", (config.ffn, config.width)
    yield "mlp.down_proj.weight", (config.width, config.ffn)


def check_names(config: LlamaConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a file that misses a tensor, has one too many, or has one of another shape.

    A missing tensor left at its random start and a surplus one silently dropped both give a model that runs and talks
    nonsense, or a drafter that is never accepted; so both are errors. Only the rotary frequency buffers that old files
    carry are let pass: they follow from the configuration.

    Args:
      config: the model, with `tied` as the file has it.
      shapes: Hugging Face name -> shape of every tensor in the file.

    Raises:
      CheckpointError: naming the tensors.

    >>> config = LlamaConfig(vocab=8, layers=1, width=4, heads=2, kv_heads=1, head_dim=2, ffn=6, context=64)
    >>> check_names(config, expected_names(config))
    >>> try:
    ...     check_names(config, expected_names(config) | {"adapter.weight": (4,)})
    ... except CheckpointError as error:
    ...     print(error)
    surplus tensor, not part of a llama model of 1 layers: adapter.weight
    """
    # A damaged layer count could ask for billions of names: the file's own number of tensors bounds it.
    if config.layers > len(shapes):
        raise CheckpointError(f"the configuration says {config.layers} layers, but the file has {len(shapes)} tensors")
    expected = expected_names(config)
    kind = f"a {config.family} model of {config.layers} layers"
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise CheckpointError(f"missing tensor, needed by {kind}: {_some(missing)}")
    surplus = [name for name in shapes if name not in expected and not is_rotary_buffer(name)]
    if surplus:
        raise CheckpointError(f"surplus tensor, not part of {kind}: {_some(surplus)}")
    for name, shape in expected.items():
        if tuple(shapes[name]) != shape:
            raise CheckpointError(f"tensor {name} has shape {tuple(shapes[name])}, but {kind} needs {shape}")


def is_rotary_buffer(name: str) -> bool:
    """Whether a tensor is the rotary frequency table that old files carry: bool, by name.

    >>> is_rotary_buffer("model.layers.0.self_attn.rotary_emb.inv_freq")
    True
    """
    return name.endswith("rotary_emb.inv_freq")


def _some(names: list[str], limit: int = 4) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
