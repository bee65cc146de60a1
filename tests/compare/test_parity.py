"""Logits of tiny random models of every family equal Hugging Face transformers', in one forward and through the cache.

Needs the extra `compare` (torch and transformers); skipped without.
"""
from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import decode, tree
from specjax.model import Model

torch = pytest.importorskip("torch", reason="the extra `compare` is not installed")
transformers = pytest.importorskip("transformers", reason="the extra `compare` is not installed")

SIZES = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
         "max_position_embeddings": 512, "rms_norm_eps": 1e-5}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
          "rope_theta": 5e5}
CASES = {
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, own head, wide heads": ("Llama", {"tie_word_embeddings": False, "head_dim": 16}),
    "llama, as many key heads as query heads": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    "llama, linear scaling": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "llama, llama3 scaling": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


def pair(folder: Path, family: str, changes: dict) -> tuple[object, Model]:
    """(the transformers model, the same weights loaded by specjax)."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(SIZES | changes))
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for name, weight in theirs.named_parameters():  # norms and biases start at constants, which would hide a missing one
            weight.add_(torch.randn_like(weight) * (0.1 if "norm" in name or "bias" in name else 0.05))
    theirs.save_pretrained(folder)
    return theirs, specjax.load(str(folder))


def wanted(theirs: object, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return theirs(torch.tensor(tokens)).logits.numpy()


@pytest.mark.parametrize("name", CASES)
def test_W06_logits_equal_transformers(tmp_path, name):
    theirs, ours = pair(tmp_path, *CASES[name])
    tokens = np.random.default_rng(1).integers(0, 97, (2, 150)).astype(np.int32)
    want = wanted(theirs, tokens)
    assert np.ptp(want) > 1, "flat logits would prove nothing"
    read = decode.forced_read(ours.target, ours.params, jnp.asarray(tokens), jnp.full(2, 150, jnp.int32), _logits, 150, 256, ())
    np.testing.assert_allclose(np.asarray(read), want, atol=2e-4)
    chunked = decode.forced_read(ours.target, ours.params, jnp.asarray(tokens), jnp.full(2, 150, jnp.int32), _logits, 16, 256, ())
    np.testing.assert_allclose(np.asarray(chunked), want, atol=2e-4)


def _logits(logits, following, at, extra):
    return logits


def test_a_verify_pass_of_a_tree_after_a_prefix_equals_transformers_on_each_path(tmp_path):
    theirs, ours = pair(tmp_path, *CASES["llama, tied"])
    text = np.random.default_rng(2).integers(0, 97, 140).tolist()
    t, params = ours.target, ours.params
    cache = t.init(params, 1, 256)
    for at in range(0, 139, 20):
        block = text[at:min(at + 20, 139)]
        draft = tree.chain(jnp.asarray([block[0]]), jnp.asarray([block[1:]]), jnp.asarray([len(block) - 1]))
        _, work = t.forward(params, cache, t.scratch(params, 1, len(block)), tree.rows(draft), ("logits",))
        cache = t.commit(cache, t.select(work, jnp.arange(len(block))[None]), jnp.asarray([len(block)]))
    draft = tree.chain(jnp.asarray([text[139]]), jnp.asarray([[5, 6, 7, 8]]), jnp.asarray([4]))
    draft = draft._replace(parents=jnp.asarray([[0, 0, 0, 2, 1]]))  # 5 and 6 below the root, 7 below 6, 8 below 5
    features, _ = t.forward(params, cache, t.scratch(params, 1, 5), tree.rows(draft), ("logits",))
    for row, path in ((0, []), (1, [5]), (2, [6]), (3, [6, 7]), (4, [5, 8])):
        np.testing.assert_allclose(np.asarray(features["logits"][0, row]), wanted(theirs, np.asarray([[*text, *path]]))[0, -1], atol=2e-4)
