"""GGUF files: values, names, row order, sizes, and one clear error for a file that cannot be used."""
from __future__ import annotations

import dataclasses

import gguf
import ml_dtypes
import numpy as np
import pytest
from tiny_checkpoints import FAMILIES, TINY, gguf_name, random_tensors

from specjax.targets.config import RopeScaling, rope_frequencies
from specjax.weights import CheckpointError, expected_names, open_checkpoint
from specjax.weights.gguf_file import unpermute


def read_all(checkpoint):
    return {name: read() for name, read in checkpoint.tensors.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_tensors_that_were_written(write_gguf, family):
    config = FAMILIES[family]
    tensors = random_tensors(config)
    checkpoint = open_checkpoint(str(write_gguf(config, tensors)))
    assert dataclasses.replace(checkpoint.config, family=family) == config
    assert list(checkpoint.tensors) == list(expected_names(config))
    for name, values in read_all(checkpoint).items():
        assert values.dtype == np.float32
        assert values.flags.writeable, name  # its own memory, no view of the file
        np.testing.assert_array_equal(values, tensors[name], err_msg=name)


def test_W01_gguf_q_and_k_are_unpermuted(write_gguf):
    # Each row of q and k holds its own Hugging Face row number: 0,4,1,5,2,6,3,7 in the file, 0..7 when loaded.
    tensors = random_tensors(TINY)
    for name in tensors:
        if "q_proj" in name or "k_proj" in name:
            rows = tensors[name].shape[0]
            tensors[name] = np.broadcast_to(np.arange(rows, dtype=np.float32)[:, None], tensors[name].shape).copy()
    path = write_gguf(TINY, tensors)
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    assert stored["blk.0.attn_q.weight"][:8, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    loaded = open_checkpoint(str(path)).tensors
    assert loaded["model.layers.0.self_attn.q_proj.weight"]()[:, 0].tolist() == list(range(32))
    assert loaded["model.layers.1.self_attn.k_proj.weight"]()[:, 0].tolist() == list(range(16))


def test_W02_k_is_unpermuted_with_its_own_number_of_heads():
    rows = np.arange(16).reshape(2, 2, 4).swapaxes(1, 2).reshape(16, 1)  # 2 key heads of 8, as converted
    assert unpermute(rows, 2).ravel().tolist() == list(range(16))
    assert unpermute(rows, 4).ravel().tolist() != list(range(16))  # what the number of query heads would give


def test_W01_a_llama_bias_is_unpermuted_too(write_gguf):
    config = dataclasses.replace(TINY, qkv_bias=True)
    tensors = random_tensors(config)
    loaded = read_all(open_checkpoint(str(write_gguf(config, tensors))))
    for part in "qkv":
        name = f"model.layers.1.self_attn.{part}_proj.bias"
        np.testing.assert_array_equal(loaded[name], tensors[name], err_msg=name)


@pytest.mark.parametrize(
    ("kind", "worst"), [("F16", 0.0), ("BF16", 2**-8), ("Q8_0", 0.02), ("Q4_1", 0.3), ("Q4_0", 0.4)]
)
def test_each_quantisation_is_read(write_gguf, kind, worst):
    tensors = random_tensors(TINY)
    loaded = read_all(open_checkpoint(str(write_gguf(TINY, tensors, kind))))
    for name, values in loaded.items():
        assert values.dtype == np.float32, name
        assert values.shape == tensors[name].shape, name
        bound = worst * np.maximum(np.abs(tensors[name]), 1 if kind[0] == "Q" else 0)
        assert (np.abs(values - tensors[name]) <= bound).all(), name


def test_Q4_1_blocks_follow_their_definition(write_gguf):
    """A block is scale d, minimum m and 32 codes: value = d * code + m; low halves of the bytes come first."""
    tensors = random_tensors(TINY)
    path = write_gguf(TINY, tensors, "Q4_1")
    raw = next(t.data for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.ffn_up.weight")
    d, m = raw[:, :2].copy().view(np.float16).astype(np.float32), raw[:, 2:4].copy().view(np.float16).astype(np.float32)
    codes = np.concatenate([raw[:, 4:20] & 15, raw[:, 4:20] >> 4], axis=1)
    loaded = open_checkpoint(str(path)).tensors["model.layers.0.mlp.up_proj.weight"]()
    np.testing.assert_array_equal(loaded, d * codes + m)


def test_W07_bf16_keeps_shape_and_bits(write_gguf):
    tensors = random_tensors(TINY)
    bits = np.random.default_rng(1).integers(0, 0x7F00, tensors["model.embed_tokens.weight"].shape).astype(np.uint16)
    tensors["model.embed_tokens.weight"] = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    loaded = open_checkpoint(str(write_gguf(TINY, tensors, "BF16"))).tensors["model.embed_tokens.weight"]()
    assert loaded.shape == bits.shape
    np.testing.assert_array_equal(loaded.astype(ml_dtypes.bfloat16).view(np.uint16), bits)


def test_an_unknown_quantisation_is_refused_by_tensor_and_type(write_gguf):
    path = write_gguf(TINY, random_tensors(TINY), "Q5_0")
    with pytest.raises(CheckpointError, match=r"token_embd\.weight is Q5_0; readable are F32, F16, BF16, Q4_0, Q4_1"):
        open_checkpoint(str(path))


def test_W04_head_absent_is_tied_and_present_is_kept(write_gguf):
    own = random_tensors(TINY)
    checkpoint = open_checkpoint(str(write_gguf(TINY, own)))
    assert not checkpoint.config.tied
    np.testing.assert_array_equal(checkpoint.tensors["lm_head.weight"](), own["lm_head.weight"])
    tied = {name: values for name, values in own.items() if name != "lm_head.weight"}
    checkpoint = open_checkpoint(str(write_gguf(TINY, tied)))
    assert checkpoint.config.tied
    assert "lm_head.weight" not in checkpoint.tensors


def test_W05_rope_freqs_are_divisors(write_gguf):
    divisors = np.asarray([1.0, 1.5, 4.0, 8.0], np.float32)
    checkpoint = open_checkpoint(str(write_gguf(TINY, random_tensors(TINY), extra={"rope_freqs.weight": divisors})))
    assert checkpoint.config.rope_divisors == (1.0, 1.5, 4.0, 8.0)
    np.testing.assert_allclose(rope_frequencies(TINY) / rope_frequencies(checkpoint.config), divisors)
    wrong = write_gguf(TINY, random_tensors(TINY), extra={"rope_freqs.weight": divisors[:3]})
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight has 3 numbers, but the head size is 8"):
        open_checkpoint(str(wrong))


def test_W06_rope_scaling(write_gguf):
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    checkpoint = open_checkpoint(str(write_gguf(TINY, random_tensors(TINY), metadata=linear)))
    assert checkpoint.config.rope_scaling == RopeScaling("linear", 4.0)
    yarn = write_gguf(TINY, random_tensors(TINY), metadata={**linear, "llama.rope.scaling.type": "yarn"})
    with pytest.raises(CheckpointError, match=r"rope\.scaling\.type is 'yarn'"):
        open_checkpoint(str(yarn))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.dimension_count": 4}, r"llama\.rope\.dimension_count is 4, but must equal the head size 8"),
        ({"llama.expert_count": 8}, r"expert_count is 8: mixtures of experts"),
        ({"llama.attention.head_count_kv": [2, 1]}, r"head_count_kv differs from layer to layer"),
        ({"llama.attention.head_count_kv": 3}, r"heads \(4\) must be a multiple of kv_heads \(3\)"),
        ({"llama.block_count": 0}, r"block_count is 0, but must be a positive whole number"),
        ({"llama.block_count": 4_000_000_000}, r"4000000000 layers, but the file has 21 tensors"),
        ({"llama.vocab_size": 13}, r"model\.embed_tokens\.weight has shape \(12, 32\), but .* needs \(13, 32\)"),
        ({"general.architecture": "mamba"}, r"architecture 'mamba' is not known; known are llama, qwen2, qwen3"),
        ({"split.count": 3}, r"one of 3 parts of a split GGUF"),
    ],
)
def test_sizes_and_switches_that_cannot_be_honoured_are_refused(write_gguf, metadata, message):
    path = write_gguf(TINY, random_tensors(TINY), metadata=metadata)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(path))


def test_sliding_window_bounds_the_context(write_gguf):
    path = write_gguf(TINY, random_tensors(TINY), metadata={"llama.attention.sliding_window": 48})
    assert open_checkpoint(str(path)).config.context == 48


def test_W10_missing_surplus_and_misshapen_tensors_are_named(write_gguf):
    tensors = random_tensors(TINY)
    lacking = {name: values for name, values in tensors.items() if "1.mlp.up_proj" not in name}
    with pytest.raises(CheckpointError, match=r"missing tensor.*model\.layers\.1\.mlp\.up_proj\.weight"):
        open_checkpoint(str(write_gguf(TINY, lacking)))
    extra = {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    with pytest.raises(CheckpointError, match=r"surplus tensor.*blk\.0\.attn_sinks\.weight"):
        open_checkpoint(str(write_gguf(TINY, tensors, extra=extra)))
    misshapen = {**tensors, "model.norm.weight": np.ones(31, np.float32)}
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \(31,\)"):
        open_checkpoint(str(write_gguf(TINY, misshapen)))
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_output\.bias: a bias on the attention's output"):
        open_checkpoint(str(write_gguf(TINY, tensors, extra={"blk.0.attn_output.bias": np.ones(32, np.float32)})))


def test_a_file_cut_anywhere_gives_one_clear_error(write_gguf, tmp_path):
    whole = write_gguf(TINY, random_tensors(TINY)).read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 1700, 41), *np.linspace(1700, len(whole) - 1, 20).astype(int)]:
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            open_checkpoint(str(cut))


def test_a_damaged_header_never_gives_another_kind_of_error(write_gguf, tmp_path):
    whole = write_gguf(TINY, random_tensors(TINY)).read_bytes()
    header = len(whole) - sum(values.nbytes for values in random_tensors(TINY).values())
    rng, broken, refused = np.random.default_rng(0), tmp_path / "broken.gguf", 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(header)] = rng.integers(256)
        broken.write_bytes(damaged)
        try:
            open_checkpoint(str(broken))
        except CheckpointError:
            refused += 1
    assert refused > 100


def test_memory_stays_lean(write_gguf):
    """Opening reads no tensor: the values of a file changed after opening are the changed ones."""
    path = write_gguf(TINY, random_tensors(TINY))
    checkpoint = open_checkpoint(str(path))
    start = next(t.data_offset for t in gguf.GGUFReader(path).tensors if t.name == gguf_name("model.norm.weight"))
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(np.float32(17).tobytes())
    assert checkpoint.tensors["model.norm.weight"]()[0] == 17
