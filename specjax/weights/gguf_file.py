"""GGUF files: llama (SmolLM2 and Mistral are stored as llama too), qwen2 and qwen3, dequantized one tensor at a time.

The file is mapped, not read; a tensor is dequantized when it is asked for. Two things differ from Hugging Face's form.
Tensors have other names. And the "llama" architecture stores the rows of q and k in the order that interleaved rotation
wants (pairs are neighbours: HF rows 0, d/2, 1, d/2 + 1, ...), which is undone here; the qwen ones keep HF's order.
"""
from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specjax.targets.config import LlamaConfig, RopeScaling
from specjax.weights import tokenizer as tokenizers_
from specjax.weights.chat import ChatTemplate
from specjax.weights.checkpoint import Checkpoint, CheckpointError, check_names, expected_names

_Type = gguf.GGMLQuantizationType
_READABLE = (_Type.F32, _Type.F16, _Type.BF16, _Type.Q4_0, _Type.Q4_1, _Type.Q8_0)
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_PERMUTED = ("llama",)

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def open_gguf(path: str | Path, name: str | None = None) -> Checkpoint:
    """Open a GGUF file.

    Args:
      path: the file.
      name: how to call the checkpoint; the file's stem by default.

    Returns:
      The checkpoint; its tensors are read and dequantized to float32 on demand.

    Raises:
      CheckpointError: the file is damaged, of an unknown architecture or quantisation, or its tensors do not fit its
        sizes.
    """
    path = Path(path)
    reader = _open_reader(path)
    try:
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not a readable GGUF file (damaged or cut short?): {error}") from error
    try:
        return _checkpoint(reader, metadata, name or path.stem)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _checkpoint(reader: gguf.GGUFReader, metadata: Mapping[str, Any], name: str) -> Checkpoint:
    if metadata.get("split.count", 1) > 1:
        parts = metadata["split.count"]
        raise CheckpointError(f"one of {parts} parts of a split GGUF: join the parts first (gguf-split --merge)")
    raw = {tensor.name: tensor for tensor in reader.tensors}
    for tensor in reader.tensors:
        if tensor.tensor_type not in _READABLE:
            readable = ", ".join(kind.name for kind in _READABLE)
            raise CheckpointError(f"tensor {tensor.name} is {tensor.tensor_type.name}; readable are {readable}")
    divisors = raw.pop("rope_freqs.weight", None)
    config = _config(metadata, raw, None if divisors is None else tuple(_read(divisors).ravel().tolist()))
    check_names(config, {_hugging_face_name(n): tuple(int(x) for x in reversed(t.shape)) for n, t in raw.items()})
    by_name = {_hugging_face_name(n): t for n, t in raw.items()}
    tokenizer = tokenizers_.from_gguf(metadata) if metadata.get("tokenizer.ggml.model", "none") != "none" else None
    key = "tokenizer.ggml.{}_token_id".format
    stops = tokenizers_.stop_ids(tokenizer, (metadata.get(key(part)) for part in ("eos", "eot", "eom")))
    tokenizers_.check_ids(tokenizer, stops, config.vocab)
    return Checkpoint(
        config=config,
        tensors={name: _loader(by_name[name], config, name) for name in expected_names(config)},
        tokenizer=tokenizer,
        chat=_chat(metadata),
        bos=metadata.get(key("bos")),
        eos=stops,
        name=name,
        fingerprint=tokenizers_.fingerprint(tokenizer),
    )


def _config(metadata: Mapping[str, Any], tensors: Mapping[str, Any], divisors: tuple[float, ...] | None) -> LlamaConfig:
    family = metadata.get("general.architecture")
    if family not in _ARCHITECTURES:
        raise CheckpointError(f"architecture {family!r} is not known; known are {', '.join(_ARCHITECTURES)}")

    def get(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{family}.{key}", default)
        if isinstance(value, list):  # some architectures give a number for each layer
            if len(set(value)) != 1:
                raise CheckpointError(f"{family}.{key} differs from layer to layer: {value}")
            value = value[0]
        return value

    def size(key: str, default: int | None = None) -> int:
        value = get(key, default)
        if not isinstance(value, int) or value <= 0:
            raise CheckpointError(f"{family}.{key} is {value!r}, but must be a positive whole number")
        return value

    if get("expert_count", 0):
        raise CheckpointError(f"{family}.expert_count is {get('expert_count')}: mixtures of experts are not supported")
    heads, width = size("attention.head_count"), size("embedding_length")
    head_dim = size("attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if get(key, head_dim) != head_dim:
            raise CheckpointError(f"{family}.{key} is {get(key)}, but must equal the head size {head_dim}")
    context = size("context_length")
    if get("attention.sliding_window", 0):
        context = min(context, size("attention.sliding_window"))  # within the window, plain attention is exact
    if divisors is not None and len(divisors) != head_dim // 2:
        raise CheckpointError(f"rope_freqs.weight has {len(divisors)} numbers, but the head size is {head_dim}")
    if "token_embd.weight" not in tensors:
        raise CheckpointError("missing tensor: token_embd.weight (model.embed_tokens.weight)")
    if "blk.0.attn_output.bias" in tensors:
        raise CheckpointError("tensor blk.0.attn_output.bias: a bias on the attention's output is not supported")
    try:
        return LlamaConfig(
            vocab=size("vocab_size", int(tensors["token_embd.weight"].shape[-1])),
            layers=size("block_count"),
            width=width,
            heads=heads,
            kv_heads=size("attention.head_count_kv", heads),
            head_dim=head_dim,
            ffn=size("feed_forward_length"),
            context=context,
            rope_theta=float(get("rope.freq_base", 10_000.0)),
            rope_scaling=_rope_scaling(family, get),
            rope_divisors=divisors,
            # The file holds it as float32: back to the decimal number that was meant.
            norm_eps=float(str(np.float32(get("attention.layer_norm_rms_epsilon", 1e-5)))),
            tied="output.weight" not in tensors,
            qkv_bias="blk.0.attn_q.bias" in tensors or family == "qwen2",
            qk_norm=family == "qwen3",
            family=family,
        )
    except CheckpointError:
        raise
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"the sizes of the file contradict each other: {error}") from error


def _rope_scaling(family: str, get: Callable[..., Any]) -> RopeScaling | None:
    kind, factor = get("rope.scaling.type"), get("rope.scaling.factor", get("rope.scale_linear"))
    if kind is None:
        kind = "none" if factor in (None, 1.0) else "linear"  # files without the type are older than the other rules
    if kind not in ("none", "linear"):
        raise CheckpointError(f"{family}.rope.scaling.type is {kind!r}; known are none, linear")
    if kind == "none":
        return None
    if not factor or not factor > 0:
        raise CheckpointError(f"{family}.rope.scaling.factor is {factor!r}, but linear scaling needs a positive number")
    return RopeScaling("linear", float(factor))


def _hugging_face_name(name: str) -> str:
    """Hugging Face's name of a tensor; an unknown name is left as it is, for the strict check to report."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    table = _TOP if match is None or match[1] is None else _IN_LAYER
    if match is None or match[2] not in table:
        return name
    prefix = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{prefix}{table[match[2]]}.{match[3]}"


def _loader(tensor: gguf.ReaderTensor, config: LlamaConfig, name: str) -> Callable[[], np.ndarray]:
    permuted = config.family in _PERMUTED and re.search(r"\.([qk])_proj\.", name)
    # Keys have fewer heads than queries in grouped attention: each is un-permuted with its own count.
    heads = (config.heads if permuted[1] == "q" else config.kv_heads) if permuted else None
    return functools.partial(_read, tensor, heads)


def _read(tensor: gguf.ReaderTensor, heads: int | None = None) -> np.ndarray:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    # F32 comes as a view of the mapped file: copied, lest a device buffer alias a file that someone then replaces.
    values = values.astype(np.float32, copy=tensor.tensor_type == _Type.F32)
    values = values.reshape([int(x) for x in reversed(tensor.shape)])
    return values if heads is None else unpermute(values, heads)


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k from the interleaved order of a llama GGUF back to Hugging Face's half-split order.

    Args:
      rows: [heads * d, ...], a weight or a bias.
      heads: of this projection: H for q, G for k.

    Returns:
      [heads * d, ...].

    >>> unpermute(np.asarray([0, 4, 1, 5, 2, 6, 3, 7]), 1).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    half = rows.shape[0] // heads // 2
    return np.ascontiguousarray(rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2)).reshape(rows.shape)


def _chat(metadata: Mapping[str, Any]) -> ChatTemplate | None:
    source, tokens = metadata.get("tokenizer.chat_template"), metadata.get("tokenizer.ggml.tokens", ())
    if source is None:
        return None
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return ChatTemplate(source, {name: tokens[i] for name, i in ids.items() if i is not None and i < len(tokens)})


class _Reader(gguf.GGUFReader):
    """The library's reader with its arrays of metadata read in one go.

    The base class makes several slices of a NumPy memory map for each token and merge: 5 s for a vocabulary of 49,152.
    Slicing a plain array, and arrays without a slice an entry, take 0.2 s and give fields of the same form.
    """

    @property
    def data(self) -> np.ndarray:
        return self._plain

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._plain = np.asarray(mapped)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        array, string = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING
        if raw_type != array:
            return super()._get_field_parts(orig_offs, raw_type)
        kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        start, entries = orig_offs + 12, int(count[0])
        item = gguf.GGUFValueType(int(kind[0]))
        if item == string:
            strings, end = self._strings(start, entries)
            return end - orig_offs, [kind, count, *strings], list(range(2, 2 + entries)), [array, item]
        if item == array:
            return super()._get_field_parts(orig_offs, raw_type)
        dtype = self.gguf_scalar_to_np[item]
        values = self._get(start, dtype, entries)
        if len(values) != entries:
            raise ValueError(f"an array of {entries} entries runs over the end of the file")
        return 12 + values.nbytes, [kind, count, values], [2], [array, item]

    def _strings(self, start: int, entries: int) -> tuple[list[memoryview], int]:
        whole, length, out, at = memoryview(self._plain), struct.Struct("<Q"), [], start
        for _ in range(entries):
            (size,) = length.unpack_from(whole, at)
            at += 8 + size
            if at > len(whole):
                raise ValueError("a string runs over the end of the file")
            out.append(whole[at - size : at])
        return out, at


def _open_reader(path: Path) -> _Reader:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        reader = _Reader(path)
    # A damaged file breaks the library wherever it happens to be reading.
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError, struct.error) as error:
        raise CheckpointError(f"{path}: not a readable GGUF file (damaged or cut short?): {error}") from error
    if reader.byte_order != "I":
        raise CheckpointError(f"{path}: the byte order of the file is not this machine's")
    return reader
