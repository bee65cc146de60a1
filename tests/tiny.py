"""A tiny random model that tests share: V 64, D 32, 4 query heads on 2 key heads, sharpened so that laws are not flat."""
import functools

import jax

from specjax.model import Model
from specjax.targets import llama
from specjax.targets.config import LlamaConfig


@functools.cache
def model(layers: int = 2, seed: int = 3, vocab: int = 64, **switches: object) -> Model:
    config = LlamaConfig(vocab=vocab, layers=layers, width=32, heads=4, kv_heads=2, head_dim=8, ffn=48, context=1024, tied=True, **switches)
    params = jax.tree.map(lambda x: x * 1.5, llama.random_params(config, seed))
    return Model(llama.target(config), params, config, "tiny")
