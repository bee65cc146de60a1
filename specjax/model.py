"""A loaded model: a Target, its parameters, and what turns text into tokens and back."""
from __future__ import annotations

import dataclasses
from typing import Any

import jax
from flax import nnx

from specjax.targets import llama
from specjax.targets.config import LlamaConfig
from specjax.types import Target
from specjax.weights import open_checkpoint
from specjax.weights.checkpoint import Checkpoint
from specjax.weights.place import params_of

DEFAULT = "smollm2-135m-instruct"


@dataclasses.dataclass(frozen=True)
class Model:
    """A target with its parameters and tokenizer.

    Attributes:
      target: pure functions. params: their parameter tree. config: sizes. name: for messages.
      tokenizer: text <-> ids, or None. chat: template, or None. eos: ids that end a text. fingerprint: of the vocabulary.
    """

    target: Target
    params: Any
    config: LlamaConfig
    name: str
    tokenizer: Any = None
    chat: Any = None
    eos: tuple[int, ...] = ()
    fingerprint: str = ""

    def encode(self, text: str, chat: bool = False) -> list[int]:
        """Token ids of a prompt, as a user's turn of the chat template when `chat`."""
        from specjax.weights.chat import render
        from specjax.weights.tokenizer import encode
        if self.tokenizer is None:
            raise ValueError(f"{self.name} has no tokenizer: pass token ids")
        if chat and self.chat is None:
            raise ValueError(f"{self.name} has no chat template")
        if not text:
            raise ValueError("the prompt is empty: at least one token is needed")
        if chat:
            return encode(self.tokenizer, render(self.chat, [{"role": "user", "content": text}]), add_bos=False)
        return encode(self.tokenizer, text)

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids, special tokens left out; "" without a tokenizer."""
        return "" if self.tokenizer is None else self.tokenizer.decode(tokens, skip_special_tokens=True)


def load(name: str = DEFAULT) -> Model:
    """Loads a model in float32.

    Args:
      name: "smollm2-135m-instruct", a ``.gguf`` file, a safetensors folder, or a hub id.

    Returns:
      A Model.

    Raises:
      ValueError: an unknown name or family, a checksum, a missing or surplus tensor, no network and no cache.
    """
    return from_checkpoint(open_checkpoint(name))


def from_checkpoint(checkpoint: Checkpoint) -> Model:
    """The Model of an opened checkpoint; reads all tensors."""
    return Model(llama.target(checkpoint.config), params_of(checkpoint), checkpoint.config, checkpoint.name, checkpoint.tokenizer,
                 checkpoint.chat, checkpoint.eos, checkpoint.fingerprint)


def outline(checkpoint: Checkpoint) -> Model:
    """The Model of an opened checkpoint with the shapes of its parameters in place of values; reads no tensor."""
    shapes = nnx.to_pure_dict(llama.abstract(checkpoint.config)[1])
    return Model(llama.target(checkpoint.config), jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes), checkpoint.config,
                 checkpoint.name, checkpoint.tokenizer, checkpoint.chat, checkpoint.eos, checkpoint.fingerprint)


def from_layers(model: Model, layers: tuple[int, ...]) -> Model:
    """A smaller model made of some blocks of `model`, sharing its memory."""
    config, params = llama.shrink(model.config, model.params, layers)
    return dataclasses.replace(model, target=llama.target(config), params=params, config=config, name=f"{model.name}[{len(layers)} layers]")
