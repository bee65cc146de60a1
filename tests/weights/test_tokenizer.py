"""Tokenizers from GGUF metadata: splitting rules, special tokens, the BOS, fingerprints."""
from __future__ import annotations

import pytest
from tiny_checkpoints import MERGES, TINY, TOKEN_TYPES, TOKENS, random_tensors, tiny_tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from specjax.weights import CheckpointError, open_checkpoint
from specjax.weights.tokenizer import check_ids, encode, fingerprint, first_difference, from_file, from_gguf, stop_ids

BYTES = sorted(ByteLevel.alphabet())


def metadata(**changes):
    base = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": TOKENS,
        "token_type": TOKEN_TYPES,
        "merges": MERGES,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in {**base, **changes}.items() if value is not None}


def byte_level(pre):
    """All bytes, every pair of digits or letters merged: the splits show in which merges happen."""
    pairs = [(a, b) for a in "123ab'sĠ" for b in "123ab'sĠ"]
    tokens = [*BYTES, *(a + b for a, b in pairs)]
    return from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": [f"{a} {b}" for a, b in pairs],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.add_bos_token": False,
        }
    )


def pieces(pre, text):
    tokenizer = byte_level(pre)
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "ab 1234 b", ["ab", "Ġ", "1", "2", "3", "4", "Ġb"]),
        ("starcoder", "ab 1234", ["ab", "Ġ", "1", "2", "3", "4"]),
        ("gpt-2", "ab 1234 b", ["ab", "Ġ1234", "Ġb"]),
        ("llama-bpe", "ab 1234 b", ["ab", "Ġ", "123", "4", "Ġb"]),
        ("qwen2", "ab 1234 b", ["ab", "Ġ", "1", "2", "3", "4", "Ġb"]),
        ("qwen2", "A'S\n\n b", ["A", "'S", "ĊĊ", "Ġb"]),
        ("llama-bpe", "(ab)  b", ["(ab", ")", "Ġ", "Ġb"]),
        ("gpt-2", "(ab)  b's", ["(", "ab", ")", "Ġ", "Ġb", "'s"]),
        ("default", "ab 12345!", ["ab", "Ġ", "123", "45", "!"]),
    ],
)
def test_W09_each_pre_tokenizer_splits_as_its_model_was_trained(pre, text, expected):
    assert pieces(pre, text) == expected


@pytest.mark.parametrize("pre", ["smollm", "starcoder", "gpt-2", "llama-bpe", "qwen2", "default"])
@pytest.mark.parametrize("text", ["", " ", "ab 123  1's\n\n\tb", "héllo 日本語 🙂👩‍👩‍👧", "\r\n x  "])
def test_round_trip(pre, text):
    tokenizer = byte_level(pre)
    assert tokenizer.decode(encode(tokenizer, text)) == text


def test_W09_specials_have_one_id_and_bos_comes_once():
    plain, adding = from_gguf(metadata()), from_gguf(metadata(add_bos_token=True))
    chat = "<|im_start|>ab<think>a1<|im_end|><|endoftext|>"
    ids = [1, 5, 10, 3, 8, 2, 0]
    assert encode(plain, chat) == ids
    assert encode(adding, chat) == ids  # begins with the BOS already
    assert encode(plain, "ab") == [5]
    assert encode(adding, "ab") == [1, 5]
    assert encode(adding, "") == [1]
    assert encode(adding, "ab", add_bos=False) == [5]


def test_W09_bos_by_default_where_the_family_always_has_one():
    assert encode(from_gguf(metadata(add_bos_token=None)), "a") == [3]
    assert encode(from_gguf(metadata(add_bos_token=None, pre="llama-bpe")), "a") == [1, 3]


def test_W09_a_bos_whose_text_looks_like_template_syntax():
    tokens = ["$A:1", *TOKENS[1:]]
    assert encode(from_gguf(metadata(tokens=tokens, add_bos_token=True, bos_token_id=0)), "ab") == [0, 5]


def test_W09_control_tokens_are_dropped_and_user_tokens_kept_when_decoding():
    assert from_gguf(metadata()).decode([1, 5, 10, 2]) == "ab<think>"


def test_padding_entries_are_not_part_of_the_vocabulary():
    padded = from_gguf(metadata(tokens=[*TOKENS, "[PAD12]"], token_type=[*TOKEN_TYPES, 5]))
    assert fingerprint(padded) == fingerprint(from_gguf(metadata()))
    assert encode(padded, "ab") == [5]


def test_V02_fingerprints_follow_the_order_of_ids_not_the_size():
    swapped = [*TOKENS[:-2], TOKENS[-1], TOKENS[-2]]
    types = [*TOKEN_TYPES[:-2], TOKEN_TYPES[-1], TOKEN_TYPES[-2]]
    a, b = from_gguf(metadata()), from_gguf(metadata(tokens=swapped, token_type=types))
    assert a.get_vocab_size() == b.get_vocab_size()
    assert fingerprint(a) != fingerprint(b)
    assert first_difference(a, b) == (10, "<think>", "c")
    assert first_difference(a, from_gguf(metadata())) is None
    assert fingerprint(None) == ""


def test_the_same_tokenizer_from_gguf_and_from_json_is_equal(tmp_path, write_gguf):
    path = tmp_path / "tokenizer.json"
    tiny_tokenizer().save(str(path))
    from_json, checkpoint = from_file(path), open_checkpoint(str(write_gguf(TINY, random_tensors(TINY))))
    assert fingerprint(from_json) == checkpoint.fingerprint
    for text in ("ab a1 2", "<|im_start|>ab<|im_end|>"):
        assert encode(from_json, text) == encode(checkpoint.tokenizer, text)


def test_W09_stop_ids():
    tokenizer = from_gguf(metadata())
    assert stop_ids(tokenizer, [None, 7]) == (0, 2, 7)
    normal = from_gguf(metadata(token_type=[1] * len(TOKENS)))  # a name alone does not make a token special
    assert stop_ids(normal, [2]) == (2,)
    assert stop_ids(None, [None]) == ()


def test_W09_a_gguf_file_stops_at_end_of_text_and_end_of_turn(write_gguf):
    declared = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 11}
    checkpoint = open_checkpoint(str(write_gguf(TINY, random_tensors(TINY), metadata=declared)))
    assert checkpoint.eos == (0, 2, 11)


def test_V06_ids_beyond_the_embedding_are_refused():
    tokenizer = from_gguf(metadata())
    check_ids(tokenizer, (0, 2), 12)
    with pytest.raises(CheckpointError, match="token id 11 is outside the embedding, which has 11 rows"):
        check_ids(tokenizer, (), 11)
    with pytest.raises(CheckpointError, match="token id 12 is outside"):
        check_ids(tokenizer, (12,), 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "t5"}, "tokenizer.ggml.model is 't5'; known are gpt2, llama"),
        ({"pre": "tekken"}, "tokenizer.ggml.pre is 'tekken'; known are smollm, starcoder, gpt-2, llama-bpe"),
        ({"tokens": None}, "the file has no tokenizer.ggml.tokens"),
        ({"token_type": [1]}, "token_type has 1 entries for 12 tokens"),
        ({"tokens": [*TOKENS[:-1], "a"]}, "tokenizer.ggml.tokens has 'a' twice"),
        ({"merges": ["a z"]}, "gpt2 tokenizer cannot be built"),
        ({"merges": ["ab"]}, "gpt2 tokenizer cannot be built"),
        ({"add_bos_token": True, "bos_token_id": 99}, "BOS id 99 is no token"),
        ({"add_bos_token": True, "bos_token_id": None}, "BOS id None is no token"),
        ({"model": "llama"}, "scores must have one entry for each of the 12 tokens"),
    ],
)
def test_tables_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        from_gguf(metadata(**changes))


def test_a_broken_tokenizer_json_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a readable tokenizer"):
        from_file(tmp_path / "tokenizer.json")


SPM = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "ab", "▁a", "▁ab", "ba", "<tool>"]
SPM_TYPES = [2, 3, 3, *[6] * 256, *[1] * 7, 4]


def sentencepiece(best="ab", **changes):
    scores = {"ab": -2.0, "▁a": -2.5, "▁ab": -3.0, "ba": -4.0, best: -1.0}
    values = {
        "model": "llama",
        "tokens": SPM,
        "token_type": SPM_TYPES,
        "scores": [scores.get(token, -100.0) for token in SPM],
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return from_gguf({f"tokenizer.ggml.{key}": value for key, value in values.items()})


def test_sentencepiece_joins_by_score_and_falls_back_to_bytes():
    tokenizer = sentencepiece()
    name = {token: i for i, token in enumerate(SPM)}
    assert encode(tokenizer, "ab") == [1, name["▁ab"]]
    # "ab" scores best, so "bab" is b + ab, not ba + b.
    assert encode(tokenizer, "bab") == [1, name["▁"], name["b"], name["ab"]]
    assert encode(sentencepiece("ba"), "bab") == [1, name["▁"], name["ba"], name["b"]]
    assert encode(tokenizer, "<s>aé") == [1, name["▁a"], name["<0xC3>"], name["<0xA9>"]]
    assert encode(tokenizer, "<tool>") == [1, name["<tool>"]]
    assert encode(sentencepiece(add_bos_token=False, add_space_prefix=False), "ab") == [name["ab"]]


@pytest.mark.parametrize("text", ["ab", " ab  ba", "aé🙂 日本"])
def test_sentencepiece_round_trip(text):
    tokenizer = sentencepiece()
    assert tokenizer.decode(encode(tokenizer, text)) == text
