"""Folders in Hugging Face's form: families, dtypes, rotation, switches, strictness."""
from __future__ import annotations

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest
from tiny_checkpoints import FAMILIES, TINY, random_tensors, tiny_tokenizer

from specjax.targets.config import RopeScaling, rope_frequencies
from specjax.weights import CheckpointError, expected_names, open_checkpoint
from specjax.weights.tokenizer import encode

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_family_and_dtype_gives_the_tensors_that_were_written(write_folder, family, dtype):
    config = FAMILIES[family]
    tensors = {name: values.astype(dtype) for name, values in random_tensors(config).items()}
    checkpoint = open_checkpoint(str(write_folder(config, tensors)))
    assert checkpoint.config == config
    assert list(checkpoint.tensors) == list(expected_names(config))
    for name, read in checkpoint.tensors.items():
        assert read().dtype == np.float32
        np.testing.assert_array_equal(read(), tensors[name].astype(np.float32), err_msg=name)
    assert (checkpoint.tokenizer, checkpoint.chat, checkpoint.fingerprint, checkpoint.eos) == (None, None, "", ())


def test_W07_bf16_keeps_every_bit(write_folder):
    tensors = random_tensors(TINY)
    bits = np.random.default_rng(1).integers(0, 0x7F00, (TINY.vocab, TINY.width)).astype(np.uint16)
    stored = {**tensors, "lm_head.weight": bits.view(ml_dtypes.bfloat16)}
    loaded = open_checkpoint(str(write_folder(TINY, stored))).tensors["lm_head.weight"]()
    np.testing.assert_array_equal(loaded.view(np.uint32), bits.astype(np.uint32) << 16)


def test_other_dtypes_are_refused(write_folder):
    tensors = {**random_tensors(TINY), "model.norm.weight": np.ones(32, np.int8)}
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is I8; readable are F32, F16, BF16"):
        open_checkpoint(str(write_folder(TINY, tensors)))


def test_W04_tied_head(write_folder):
    tied = dataclasses.replace(TINY, tied=True)
    checkpoint = open_checkpoint(str(write_folder(tied, random_tensors(tied))))
    assert checkpoint.config.tied
    assert "lm_head.weight" not in checkpoint.tensors
    both = random_tensors(TINY)
    checkpoint = open_checkpoint(str(write_folder(tied, both)))  # says tied, has a head of its own: the head counts
    assert not checkpoint.config.tied
    np.testing.assert_array_equal(checkpoint.tensors["lm_head.weight"](), both["lm_head.weight"])


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
@pytest.mark.parametrize("newer", [False, True])
def test_W06_llama3_scaling_under_both_spellings_and_places(write_folder, spelling, newer):
    rule = {spelling: "llama3", **LLAMA3}
    settings = {"rope_parameters": {**rule, "rope_theta": 5e5}, "rope_theta": None} if newer else {"rope_scaling": rule}
    config = open_checkpoint(str(write_folder(TINY, random_tensors(TINY), settings))).config
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    ratios = rope_frequencies(config) / rope_frequencies(dataclasses.replace(config, rope_scaling=None))
    np.testing.assert_allclose(ratios, [1, 1, 0.3711, 0.125], atol=5e-5)


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
def test_W06_other_scalings(write_folder, spelling):
    def config(rule):
        return open_checkpoint(str(write_folder(TINY, random_tensors(TINY), {"rope_scaling": rule}))).config

    assert config({spelling: "linear", "factor": 2.0}).rope_scaling == RopeScaling("linear", 2.0)
    assert config({spelling: "default"}).rope_scaling is None
    with pytest.raises(CheckpointError, match=r"rope scaling 'yarn' is not known; known are default, linear, llama3"):
        config({spelling: "yarn", "factor": 2.0})
    with pytest.raises(CheckpointError, match=r"rope scaling llama3 needs a positive low_freq_factor, not None"):
        config({spelling: "llama3", "factor": 2.0})


def test_defaults_of_absent_and_null_keys(write_folder):
    settings = {"head_dim": None, "num_key_value_heads": None}
    full = dataclasses.replace(TINY, kv_heads=4)
    config = open_checkpoint(str(write_folder(full, random_tensors(full), settings))).config
    assert (config.head_dim, config.kv_heads) == (8, 4)


@pytest.mark.parametrize(
    ("family", "settings", "context"),
    [
        ("mistral", {"sliding_window": 48}, 48),
        ("mistral", {"sliding_window": None}, 128),
        ("mistral", {"sliding_window": 4096}, 128),
        ("qwen2", {"sliding_window": 48, "use_sliding_window": False}, 128),
        ("qwen2", {"sliding_window": 48, "use_sliding_window": True}, 48),
        ("qwen3", {"sliding_window": 48}, 128),
    ],
)
def test_the_context_stays_within_a_sliding_window(write_folder, family, settings, context):
    config = FAMILIES[family]
    assert open_checkpoint(str(write_folder(config, random_tensors(config), settings))).config.context == context


def test_biases(write_folder):
    config = dataclasses.replace(TINY, qkv_bias=True)
    assert open_checkpoint(str(write_folder(config, random_tensors(config), {"attention_bias": True}))).config.qkv_bias
    tensors = {**random_tensors(config), "model.layers.0.self_attn.o_proj.bias": np.ones(32, np.float32)}
    with pytest.raises(CheckpointError, match=r"o_proj\.bias: a bias on the attention's output is not supported"):
        open_checkpoint(str(write_folder(config, tensors, {"attention_bias": True})))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "gemma"}, r"model_type 'gemma' is not known; known are llama, mistral, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, r"hidden_act is 'gelu'; only 'silu'"),
        ({"mlp_bias": True}, r"mlp_bias is True"),
        ({"quantization_config": {"bits": 4}}, r"quantization_config is"),
        ({"num_hidden_layers": "2"}, r"num_hidden_layers is '2', but must be a positive whole number"),
        ({"num_key_value_heads": 3}, r"heads \(4\) must be a multiple of kv_heads \(3\)"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, r"differs from layer to layer"),
        ({"num_hidden_layers": 10**9}, r"1000000000 layers, but the file has 21 tensors"),
    ],
)
def test_what_cannot_be_honoured_is_refused(write_folder, settings, message):
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(write_folder(TINY, random_tensors(TINY), settings)))


def test_W10_missing_surplus_and_misshapen_tensors_are_named(write_folder):
    tensors = random_tensors(TINY)
    lacking = {name: values for name, values in tensors.items() if name != "lm_head.weight"}
    with pytest.raises(CheckpointError, match=r"missing tensor.*: lm_head\.weight"):
        open_checkpoint(str(write_folder(TINY, lacking)))
    extra = {"model.layers.2.mlp.up_proj.weight": np.ones((64, 32), np.float32)}
    with pytest.raises(CheckpointError, match=r"surplus tensor.*: model\.layers\.2\.mlp\.up_proj\.weight"):
        open_checkpoint(str(write_folder(TINY, {**tensors, **extra})))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight has shape \(11, 32\), but .* needs \(12, 32\)"):
        open_checkpoint(str(write_folder(TINY, {**tensors, "lm_head.weight": np.ones((11, 32), np.float32)})))
    buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32) for i in range(2)}
    assert set(open_checkpoint(str(write_folder(TINY, {**tensors, **buffers}))).tensors) == set(expected_names(TINY))


def test_incomplete_folders(write_folder):
    folder = write_folder(TINY, random_tensors(TINY))
    weights = (folder / "model.safetensors").read_bytes()
    for size in (0, 5, 200, len(weights) - 1):
        (folder / "model.safetensors").write_bytes(weights[:size])
        with pytest.raises(CheckpointError, match=r"model\.safetensors is not readable"):
            open_checkpoint(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors in the folder"):
        open_checkpoint(str(folder))
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"sharded indexes are not supported yet"):
        open_checkpoint(str(folder))
    (folder / "config.json").write_text("{broken")
    with pytest.raises(CheckpointError, match=r"config\.json is not readable JSON"):
        open_checkpoint(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json in the folder"):
        open_checkpoint(str(folder))


def test_W09_tokenizer_files_are_honoured(write_folder):
    tokenizer = json.loads(tiny_tokenizer().to_str())
    own = {
        "bos_token": {"content": "<|im_start|>"},
        "eos_token": "<|im_end|>",
        "chat_template": [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}],
        "add_bos_token": True,
    }
    settings, generation = {"eos_token_id": 3}, {"eos_token_id": [4, 5]}
    files = {"tokenizer": tokenizer, "tokenizer_config": own, "generation_config": generation}
    checkpoint = open_checkpoint(str(write_folder(TINY, random_tensors(TINY), settings, **files)))
    # 3, 4, 5 are declared; 0 and 2 are the well-known end of text and end of turn.
    assert checkpoint.eos == (0, 2, 3, 4, 5)
    assert checkpoint.bos == 1
    assert checkpoint.chat.source == "D"
    assert checkpoint.chat.special == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert encode(checkpoint.tokenizer, "ab") == [1, 5]
    own["add_bos_token"] = False
    files["tokenizer"] = json.loads(checkpoint.tokenizer.to_str())  # this one adds a BOS by itself
    checkpoint = open_checkpoint(str(write_folder(TINY, random_tensors(TINY), settings, **files)))
    assert encode(checkpoint.tokenizer, "ab") == [5]


def test_the_template_file_counts_before_the_setting(write_folder):
    folder = write_folder(TINY, random_tensors(TINY), tokenizer_config={"chat_template": "old"})
    (folder / "chat_template.jinja").write_text("new")
    assert open_checkpoint(str(folder)).chat.source == "new"


def test_token_ids_beyond_the_embedding_are_refused(write_folder):
    with pytest.raises(CheckpointError, match=r"token id 12 is outside the embedding, which has 12 rows"):
        open_checkpoint(str(write_folder(TINY, random_tensors(TINY), {"eos_token_id": [2, 12]})))
