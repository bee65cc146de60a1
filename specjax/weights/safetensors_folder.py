"""Folders in Hugging Face's form: config.json, one model.safetensors, and the tokenizer's files where there are any."""
from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy, which lets the library hand out BF16 tensors bit by bit)
import numpy as np
import safetensors

from specjax.targets.config import LlamaConfig, RopeScaling
from specjax.weights import tokenizer as tokenizers_
from specjax.weights.chat import ChatTemplate
from specjax.weights.checkpoint import Checkpoint, CheckpointError, check_names, expected_names

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_DTYPES = ("F32", "F16", "BF16")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def open_folder(path: str | Path, name: str | None = None) -> Checkpoint:
    """Open a folder with a config.json and a model.safetensors.

    Args:
      path: the folder.
      name: how to call the checkpoint; the folder's name by default.

    Returns:
      The checkpoint; its tensors are read and widened to float32 on demand.

    Raises:
      CheckpointError: a file is missing or damaged, the family or one of its switches is unknown, or the tensors do not
        fit.
    """
    path = Path(path)
    try:
        return _checkpoint(path, name or path.resolve().name)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _checkpoint(path: Path, name: str) -> Checkpoint:
    settings = _json(path / "config.json")
    if settings is None:
        raise CheckpointError("no config.json in the folder")
    file, shapes = _open_tensors(path)
    config = _config(settings, shapes)
    check_names(config, shapes)
    tokenizer_settings = _json(path / "tokenizer_config.json") or {}
    generation = _json(path / "generation_config.json") or {}
    tokenizer = tokenizers_.from_file(path / "tokenizer.json") if (path / "tokenizer.json").is_file() else None
    special = {key: _token_text(tokenizer_settings[key]) for key in _SPECIAL if tokenizer_settings.get(key)}
    ids = {key: tokenizer.token_to_id(text) for key, text in special.items()} if tokenizer else {}
    bos = ids.get("bos_token", settings.get("bos_token_id"))
    if tokenizer is not None and isinstance(tokenizer_settings.get("add_bos_token"), bool):
        tokenizers_.set_bos(tokenizer, tokenizer_settings["add_bos_token"], bos)
    declared = [i for source in (settings, generation) for i in _as_list(source.get("eos_token_id"))]
    stops = tokenizers_.stop_ids(tokenizer, [*declared, ids.get("eos_token")])
    tokenizers_.check_ids(tokenizer, stops, config.vocab)
    return Checkpoint(
        config=config,
        tensors={n: functools.partial(_read, file, n) for n in expected_names(config)},
        tokenizer=tokenizer,
        chat=_chat(path, tokenizer_settings, special),
        bos=bos,
        eos=stops,
        name=name,
        fingerprint=tokenizers_.fingerprint(tokenizer),
    )


def _open_tensors(path: Path) -> tuple[Any, dict[str, tuple[int, ...]]]:
    weights = path / "model.safetensors"
    if not weights.is_file():
        if (path / "model.safetensors.index.json").is_file():
            raise CheckpointError("model.safetensors.index.json: sharded indexes are not supported yet")
        raise CheckpointError("no model.safetensors in the folder")
    try:
        file = safetensors.safe_open(weights, framework="numpy")
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"model.safetensors is not readable (damaged or cut short?): {error}") from error
    for name, part in slices.items():
        if part.get_dtype() not in _DTYPES:
            raise CheckpointError(f"tensor {name} is {part.get_dtype()}; readable are {', '.join(_DTYPES)}")
    return file, {name: tuple(part.get_shape()) for name, part in slices.items()}


def _read(file: Any, name: str) -> np.ndarray:
    return file.get_tensor(name).astype(np.float32)


def _config(settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> LlamaConfig:
    family = settings.get("model_type")
    if family not in _FAMILIES:
        raise CheckpointError(f"model_type {family!r} is not known; known are {', '.join(_FAMILIES)}")
    _refuse_unknown_switches(settings, shapes)

    def size(key: str, default: int | None = None) -> int:
        value = settings.get(key)
        value = default if value is None else value  # an explicit null means the default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise CheckpointError(f"config.json: {key} is {value!r}, but must be a positive whole number")
        return value

    heads, width = size("num_attention_heads"), size("hidden_size")
    theta, scaling = _rotation(settings)
    context = size("max_position_embeddings")
    # Mistral's window is on whenever it is given, Qwen's has a switch. Within the window, plain attention is exact.
    if settings.get("sliding_window") and settings.get("use_sliding_window", family == "mistral"):
        context = min(context, size("sliding_window"))
    try:
        return LlamaConfig(
            vocab=size("vocab_size"),
            layers=size("num_hidden_layers"),
            width=width,
            heads=heads,
            kv_heads=size("num_key_value_heads", heads),
            head_dim=size("head_dim", width // heads),
            ffn=size("intermediate_size"),
            context=context,
            rope_theta=theta,
            rope_scaling=scaling,
            norm_eps=float(settings.get("rms_norm_eps", 1e-6)),
            # A head in the file is that model's own, whatever the configuration says.
            tied=bool(settings.get("tie_word_embeddings", False)) and "lm_head.weight" not in shapes,
            qkv_bias=family == "qwen2" or bool(settings.get("attention_bias", False)),
            qk_norm=family == "qwen3",
            family=family,
        )
    except CheckpointError:
        raise
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"config.json contradicts itself: {error}") from error


def _refuse_unknown_switches(settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse what would change the forward pass in a way that the model here does not know."""
    only = {"hidden_act": "silu", "mlp_bias": False, "quantization_config": None, "partial_rotary_factor": 1.0}
    for key, value in only.items():
        if settings.get(key, value) != value:
            raise CheckpointError(f"config.json: {key} is {settings[key]!r}; only {value!r} is supported")
    bias = "model.layers.0.self_attn.o_proj.bias"
    if bias in shapes:
        raise CheckpointError(f"tensor {bias}: a bias on the attention's output is not supported, only on q, k and v")


def _rotation(settings: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    # Newer files gather everything in rope_parameters; older ones have rope_theta and rope_scaling side by side.
    rule = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if not isinstance(rule, Mapping) or any(isinstance(value, Mapping) for value in rule.values()):
        raise CheckpointError(f"config.json: a rotation that differs from layer to layer is not supported: {rule!r}")
    if rule.get("partial_rotary_factor", 1.0) != 1.0:
        part = rule["partial_rotary_factor"]
        raise CheckpointError(f"config.json: partial_rotary_factor is {part!r}; only 1.0 is supported")
    theta = float(rule.get("rope_theta") or settings.get("rope_theta") or 10_000.0)
    kind = rule.get("rope_type", rule.get("type", "default"))
    keys = {"default": (), "linear": ("factor",), "llama3": ("factor", *_LLAMA3.values())}
    if kind not in keys:
        raise CheckpointError(f"config.json: rope scaling {kind!r} is not known; known are {', '.join(keys)}")
    for key in keys[kind]:
        if not isinstance(rule.get(key), int | float) or not rule[key] > 0:
            raise CheckpointError(f"config.json: rope scaling {kind} needs a positive {key}, not {rule.get(key)!r}")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", float(rule["factor"]))
    return theta, RopeScaling("llama3", float(rule["factor"]), **{field: rule[key] for field, key in _LLAMA3.items()})


_LLAMA3 = {"low": "low_freq_factor", "high": "high_freq_factor", "original": "original_max_position_embeddings"}


def _chat(path: Path, settings: Mapping[str, Any], special: Mapping[str, str]) -> ChatTemplate | None:
    source = settings.get("chat_template")
    if isinstance(source, list):  # several under names: the one for plain chat
        source = next((entry.get("template") for entry in source if entry.get("name") == "default"), None)
    if (path / "chat_template.jinja").is_file():  # newer folders keep it in a file of its own, which then counts
        source = (path / "chat_template.jinja").read_text(encoding="utf-8")
    return None if source is None else ChatTemplate(source, special)


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path.name} is not readable JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path.name} must hold an object, not {type(content).__name__}")
    return content


def _token_text(value: Any) -> str:
    return value["content"] if isinstance(value, Mapping) else str(value)


def _as_list(value: Any) -> list[int | None]:
    return list(value) if isinstance(value, list) else [value]
