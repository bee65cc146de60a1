"""Fixtures that write the tiny models of `tiny_checkpoints` in each form that the loaders read."""
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy

from specjax.targets.config import LlamaConfig

sys.path.insert(0, str(Path(__file__).parent))  # for tiny_checkpoints, under every import mode of pytest

from tiny_checkpoints import MERGES, TOKEN_TYPES, TOKENS, gguf_name, interleave


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes one GGUF file and returns its path."""

    def write(
        config: LlamaConfig,
        tensors: Mapping[str, np.ndarray],
        kind: str = "F32",
        metadata: Mapping[str, Any] | None = None,
        extra: Mapping[str, np.ndarray] | None = None,
        tokenizer: bool = True,
    ) -> Path:
        path = tmp_path / "tiny.gguf"
        arch = "llama" if config.family == "mistral" else config.family
        writer = gguf.GGUFWriter(path, arch)
        keys: dict[str, Any] = {
            f"{arch}.block_count": config.layers,
            f"{arch}.context_length": config.context,
            f"{arch}.embedding_length": config.width,
            f"{arch}.feed_forward_length": config.ffn,
            f"{arch}.attention.head_count": config.heads,
            f"{arch}.attention.head_count_kv": config.kv_heads,
            f"{arch}.attention.key_length": config.head_dim,
            f"{arch}.attention.layer_norm_rms_epsilon": config.norm_eps,
            f"{arch}.rope.freq_base": config.rope_theta,
            f"{arch}.vocab_size": config.vocab,
        }
        if tokenizer:
            keys |= {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "smollm",
                "tokenizer.ggml.tokens": TOKENS,
                "tokenizer.ggml.token_type": TOKEN_TYPES,
                "tokenizer.ggml.merges": MERGES,
                "tokenizer.ggml.bos_token_id": 1,
                "tokenizer.ggml.eos_token_id": 2,
                "tokenizer.ggml.add_bos_token": False,
            }
        for key, value in {**keys, **(metadata or {})}.items():
            _add(writer, key, value)
        for name, values in {**tensors, **(extra or {})}.items():
            heads = {"q": config.heads, "k": config.kv_heads}.get(name.rsplit("_proj", 1)[0][-1])
            if arch == "llama" and "_proj." in name and heads:
                values = interleave(values, heads)
            type_ = gguf.GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, type_), raw_dtype=type_)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders.get(type(value), writer.add_array)(key, value)


@pytest.fixture
def write_folder(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes one folder in Hugging Face's form and returns its path."""

    def write(
        config: LlamaConfig, tensors: Mapping[str, np.ndarray], settings: Mapping[str, Any] | None = None, **files: Any
    ) -> Path:
        folder = tmp_path / "tiny"
        folder.mkdir(exist_ok=True)
        base = {
            "model_type": config.family,
            "vocab_size": config.vocab,
            "num_hidden_layers": config.layers,
            "hidden_size": config.width,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "intermediate_size": config.ffn,
            "max_position_embeddings": config.context,
            "rope_theta": config.rope_theta,
            "rms_norm_eps": config.norm_eps,
            "tie_word_embeddings": config.tied,
        }
        (folder / "config.json").write_text(json.dumps({**base, **(settings or {})}))
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        safetensors.numpy.save_file(dict(tensors), folder / "model.safetensors")
        return folder

    return write
