"""Tokenizers: read from a `tokenizer.json`, or built from the metadata of a GGUF file; encoding; fingerprints.

A GGUF file stores a tokenizer as data: the tokens in id order, a kind for each, the merges, and the *name* of the rule
that splits text before merging. A wrong rule still gives tokens, only other ones than the model was trained on, so an
unknown name is an error here.
"""
from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from specjax.weights.checkpoint import CheckpointError

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # GGUF token types; 1 is a normal token, 6 a byte

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Tokens that end a generation although some files declare only one of them as such (or none).
_TEXT_ENDS = ("<|endoftext|>", "<|end_of_text|>")
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<EOT>")


def _digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _byte_level() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _splits(*patterns: str) -> Any:
    parts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# The rule that splits text before merging, by the name in the file. "default" is what llama.cpp does without a name.
_PRE_TOKENIZERS = {
    "smollm": _digits,
    "starcoder": _digits,
    "gpt-2": _byte_level,
    "llama-bpe": lambda: _splits(_WORDS_SPLIT % "{1,3}"),
    "qwen2": lambda: _splits(_WORDS_SPLIT % ""),
    "deepseek-r1-qwen": lambda: _splits(_WORDS_SPLIT % ""),
    "default": lambda: _splits(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_SPLIT, r"\p{N}+", "[0-9][0-9][0-9]"),
}


def from_file(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`.

    Args:
      path: the file.

    Returns:
      The tokenizer, without the padding and cutting that a training job may have left in the file.

    Raises:
      CheckpointError: the file is not a tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} is not a readable tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Args:
      metadata: the file's keys, ``tokenizer.ggml.*`` among them; arrays as lists.

    Returns:
      The tokenizer: each control and user-defined token has exactly one id, and a BOS goes before each prompt if the
      file asks for it.

    Raises:
      CheckpointError: the kind of tokenizer or its splitting rule is unknown, or its tables do not fit together.
    """
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise CheckpointError("the file has no tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise CheckpointError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    builders = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    if kind not in builders:
        raise CheckpointError(f"tokenizer.ggml.model is {kind!r}; known are {', '.join(builders)}")
    try:
        tokenizer = builders[kind](metadata, tokens, types)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"the file's {kind} tokenizer cannot be built: {error}") from error
    pre = metadata.get("tokenizer.ggml.pre")
    add = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or pre == "llama-bpe")
    return set_bos(tokenizer, add, metadata.get("tokenizer.ggml.bos_token_id"))


def _byte_level_bpe(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        raise CheckpointError(f"tokenizer.ggml.pre is {pre!r}; known are {', '.join(_PRE_TOKENIZERS)}")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", ())]
    # Llama 3's rule: a piece that is a token is taken whole, merges or not.
    tokenizer = Tokenizer(models.BPE(_vocabulary(tokens, types), merges, ignore_merges=pre == "llama-bpe"))
    if pre in ("qwen2", "deepseek-r1-qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, tokens, types)
    return tokenizer


def _sentencepiece_bpe(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    # SentencePiece keeps no merges: it joins the neighbours whose union scores best. A merge for every way to cut a
    # token in two tokens, in the order of the scores, says the same.
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise CheckpointError(f"tokenizer.ggml.scores must have one entry for each of the {len(tokens)} tokens")
    vocabulary = _vocabulary(tokens, types)
    words = {token: i for token, i in vocabulary.items() if types[i] in (1, _USER_DEFINED)}
    merges = [
        (-scores[i], vocabulary[token[:cut]], vocabulary[token[cut:]], token[:cut], token[cut:])
        for token, i in words.items()
        for cut in range(1, len(token))
        if token[:cut] in words and token[cut:] in words
    ]
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(vocabulary, [m[3:] for m in sorted(merges)], unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*undo, decoders.Strip(" ", 1, 0)] if prefix else undo)
    _add_special(tokenizer, tokens, types)
    return tokenizer


def _vocabulary(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    # Unused entries only pad the embedding table to a round size; no other form of the same tokenizer has them.
    vocabulary = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED}
    if len(vocabulary) != sum(kind != _UNUSED for kind in types):
        twice = next(token for i, token in enumerate(tokens) if types[i] != _UNUSED and vocabulary[token] != i)
        raise CheckpointError(f"tokenizer.ggml.tokens has {twice!r} twice")
    return vocabulary


def _add_special(tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    # In id order and one kind after the other: tokens that are in the vocabulary keep their ids.
    control = [token for token, kind in zip(tokens, types, strict=True) if kind in (_UNKNOWN, _CONTROL)]
    users = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in users])


def set_bos(tokenizer: Tokenizer, add: bool, bos: int | None) -> Tokenizer:
    """Make the tokenizer put a begin-of-text token before each prompt, or none.

    Args:
      tokenizer: changed in place.
      add: whether there is to be one.
      bos: id of the token; not read when `add` is False.

    Returns:
      The same tokenizer.

    Raises:
      CheckpointError: one is to be added, but `bos` is no token of the vocabulary.
    """
    if not add:
        if _prefix(tokenizer):
            tokenizer.post_processor = None
        return tokenizer
    token = None if bos is None else tokenizer.id_to_token(bos)
    if token is None:
        raise CheckpointError(f"the tokenizer is to add a BOS, but BOS id {bos} is no token of its vocabulary")
    if _prefix(tokenizer) != [bos]:
        # Under a name of our own: a token's text may hold characters that the template language reads as its own.
        tokenizer.post_processor = processors.TemplateProcessing(
            single="BOS $A", special_tokens=[{"id": "BOS", "ids": [bos], "tokens": [token]}]
        )
    return tokenizer


def _prefix(tokenizer: Tokenizer) -> list[int]:
    """Ids that the tokenizer puts before every text."""
    if not tokenizer.num_special_tokens_to_add(False):
        return []
    plain, full = tokenizer.encode("a", add_special_tokens=False).ids, tokenizer.encode("a").ids
    start = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0)
    return full[:start]


def encode(tokenizer: Tokenizer, text: str, add_bos: bool = True) -> list[int]:
    """Ids of a prompt, with one begin-of-text token if the checkpoint asks for it and never two.

    Special tokens written out in the text (as a chat template does) become their one id. A text that already begins
    with the BOS keeps just that one. No end-of-text token is ever appended: a prompt is to be continued.

    Args:
      tokenizer: from a `Checkpoint`.
      text: the prompt, rendered or raw.
      add_bos: False leaves the BOS out even where the checkpoint asks for it.

    Returns:
      The ids, len >= 0.

    >>> tokenizer = from_gguf({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
    ...                        "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.merges": ["a b"],
    ...                        "tokenizer.ggml.bos_token_id": 3, "tokenizer.ggml.add_bos_token": True})
    >>> encode(tokenizer, "aba"), encode(tokenizer, "<s>aba"), encode(tokenizer, "aba", add_bos=False)
    ([3, 2, 0], [3, 2, 0], [2, 0])
    """
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    prefix = _prefix(tokenizer) if add_bos else []
    return ids if ids[: len(prefix)] == prefix else prefix + ids


def fingerprint(tokenizer: Tokenizer | None) -> str:
    """Identity of a vocabulary: two tokenizers with equal fingerprints give every id the same meaning.

    Args:
      tokenizer: or None.

    Returns:
      sha256 in hex over (id, token) in id order; "" for None.
    """
    if tokenizer is None:
        return ""
    digest = hashlib.sha256()
    for token, i in sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1]):
        digest.update(f"{i}\t{len(token)}\t{token}\n".encode())
    return digest.hexdigest()


def first_difference(a: Tokenizer, b: Tokenizer) -> tuple[int, str | None, str | None] | None:
    """Find the first id to which two tokenizers give different tokens.

    Equal sizes are no proof: two vocabularies of one size in another order run together without an error and accept
    nothing.

    Args:
      a: one tokenizer.
      b: the other.

    Returns:
      (id, token in a or None, token in b or None), or None when the vocabularies are equal.
    """
    left, right = ({i: token for token, i in t.get_vocab(with_added_tokens=True).items()} for t in (a, b))
    differing = [i for i in left.keys() | right.keys() if left.get(i) != right.get(i)]
    return (min(differing), left.get(min(differing)), right.get(min(differing))) if differing else None


def stop_ids(tokenizer: Tokenizer | None, declared: Iterable[int | None]) -> tuple[int, ...]:
    """All ids that end a generation.

    Args:
      tokenizer: or None.
      declared: the ids that the checkpoint's files name, None for an absent one.

    Returns:
      The declared ids and those of the well-known end-of-text and end-of-turn tokens, sorted. A well-known name counts
      only where the tokenizer holds it as a special token.
    """
    stops = {i for i in declared if i is not None}
    if tokenizer is not None:
        special = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}
        stops |= {special[name] for name in _TEXT_ENDS + _TURN_ENDS if name in special}
    return tuple(sorted(stops))


def check_ids(tokenizer: Tokenizer | None, stops: Iterable[int], vocab: int) -> None:
    """Refuse a tokenizer or stop ids that reach beyond the embedding: a gather would clamp them without a word.

    Args:
      tokenizer: or None.
      stops: ids that end a generation.
      vocab: rows of the embedding.

    Raises:
      CheckpointError: naming the first such id.
    """
    ids = set(stops) | (set() if tokenizer is None else set(tokenizer.get_vocab(with_added_tokens=True).values()))
    beyond = [i for i in ids if not 0 <= i < vocab]
    if beyond:
        raise CheckpointError(f"token id {min(beyond)} is outside the embedding, which has {vocab} rows")
