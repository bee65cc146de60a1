"""The bytes that each token id stands for, for grammars: special tokens stand for none."""
from __future__ import annotations

import re
from typing import Any


def byte_letters() -> dict[str, int]:
    """GPT-2's letters for the 256 bytes: printable bytes are themselves, the others follow 255 in order.

    >>> letters = byte_letters()
    >>> len(letters), letters["A"], letters["Ġ"]
    (256, 65, 32)
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def token_bytes(tokenizer: Any, vocab: int) -> list[bytes | None]:
    """The bytes of every id below `vocab`; None for special tokens and for ids that the tokenizer does not know.

    Args:
      tokenizer: a `tokenizers.Tokenizer`, byte-level BPE or SentencePiece-like. vocab: V of the target.

    Returns:
      One entry an id.
    """
    added = tokenizer.get_added_tokens_decoder()
    byte_level = "ByteLevel" in repr(tokenizer.decoder)
    letters = byte_letters()

    def one(i: int) -> bytes | None:
        if i in added:
            return None if added[i].special else added[i].content.encode()
        text = tokenizer.id_to_token(i)
        if text is None:
            return None
        if byte_level:
            return bytes(letters[c] for c in text) if all(c in letters for c in text) else text.encode()
        byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text)
        return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()

    return [one(i) for i in range(vocab)]
