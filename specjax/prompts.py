"""Prompts from a file: one a line, or JSON objects one a line."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KEYS = ("prompt", "text", "turns", "tokens")
"""Keys of a JSON object that hold the prompt: a text, a text, a list of texts of which the first counts, a list of token ids."""


def read_prompts(path: str | Path) -> list[str | list[int]]:
    """Reads a file of prompts.

    Args:
      path: UTF-8 text. It holds JSON objects, one a line, when its name ends in .jsonl or its first line begins with "{"; each needs
        one of the keys "prompt", "text", "turns" (the first counts) or "tokens". Otherwise each line is a prompt. Blank lines are
        passed over.

    Returns:
      Texts, or lists of token ids.

    Raises:
      ValueError: a broken line, which is named, or no prompt at all. OSError: the file cannot be read.
    """
    path = Path(path)
    lines = [(number, _utf8(path, number, raw)) for number, raw in enumerate(path.read_bytes().split(b"\n"), 1) if raw.strip()]
    if not lines:
        raise ValueError(f"{path} holds no prompt")
    if path.suffix.lower() != ".jsonl" and not lines[0][1].lstrip().startswith("{"):
        return [line.rstrip("\r") for _, line in lines]
    return [_from_json(path, number, line) for number, line in lines]


def _utf8(path: Path, number: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {number}: not UTF-8 text ({error.reason} at byte {error.start + 1})") from None


def _from_json(path: Path, number: int, line: str) -> str | list[int]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
    key = next((k for k in KEYS if isinstance(entry, dict) and k in entry), None)
    if key is None:
        raise ValueError(f"{path}, line {number}: needs a JSON object with one of {', '.join(KEYS)}")
    value: Any = entry[key]
    if key == "turns":
        value = value[0] if isinstance(value, list) and value else None
    good = _are_ids(value) if key == "tokens" else isinstance(value, str) and bool(value)
    if not good:
        raise ValueError(f"{path}, line {number}: {key!r} must hold {'whole numbers' if key == 'tokens' else 'a text that is not empty'}")
    return value


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(t) is int for t in value)
