"""Editing a text: the request that a model gets, a line diff that grows with its answer, and a file that is replaced whole or not at all.

The answer is copied from the text by the `edit` drafter wherever the model agrees, so an edit costs about as much as its changes.
"""
from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specjax import decode
from specjax import round as rounds
from specjax.drafters import copy_model
from specjax.model import Model
from specjax.types import Method

PROSE = ("", ".txt", ".text", ".eml")
"""Endings of files that are put into the request as they are; others stand between fences."""

NEAR = 3
"""A line that is short or occurs twice is only taken for unchanged this near to where it is awaited."""


class Request(NamedTuple):
    """An edit in tokens: `prompt`, `source` as it would stand in the answer, `limit` of new tokens, `fence` that ends the answer or ""."""

    prompt: list[int]
    source: list[int]
    limit: int
    fence: str


class Edited(NamedTuple):
    """An answer so far.

    Attributes:
      text: without a closing fence. tokens: of the answer. drafted: tokens by the drafter's sources. own: those of the model alone.
      rounds: target passes. done: the model ended the text itself. over: nothing more will come.
    """

    text: str
    tokens: int
    drafted: dict[str, int]
    own: int
    rounds: int
    done: bool
    over: bool


def read_source(path: str | Path) -> str:
    """The text of a file that is to be edited.

    Raises:
      ValueError: it is empty, or not UTF-8 text. OSError: it cannot be read.
    """
    data = Path(path).read_bytes()
    if not data.strip():
        raise ValueError(f"{path} is empty: there is nothing to edit")
    if b"\0" in data:
        raise ValueError(f"{path} is a binary file: only text can be edited")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start + 1})") from None


def fence_for(source: str) -> str:
    """Back quotes, more than stand anywhere in the source.

    >>> fence_for("a ``` b")
    '````'
    """
    return "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", source)), default=0))


def prompt_text(instruction: str, source: str, fence: str = "", context: str = "") -> str:
    """What the user's turn says: the instruction, what else there is to know, the text."""
    body = f"{fence}\n{source.rstrip()}\n{fence}" if fence else source
    return "\n\n".join(part for part in (instruction, context, body) if part)


def prompt_ids(model: Model, instruction: str, source: str, fenced: bool, context: str = "") -> list[int]:
    """Token ids of a request; the answer begins right behind them with the rewritten text."""
    from specjax.weights.chat import render
    from specjax.weights.tokenizer import encode
    if model.tokenizer is None:
        raise ValueError(f"{model.name} has no tokenizer: an edit needs one")
    fence = fence_for(source) if fenced else ""
    text = prompt_text(instruction, source, fence, context)
    opening = f"{fence}\n" if fence else ""
    if model.chat is None:
        return encode(model.tokenizer, f"{text}\n\n{opening}")
    return encode(model.tokenizer, render(model.chat, [{"role": "user", "content": text}]) + opening, add_bos=False)


def request(model: Model, instruction: str, source: str, fenced: bool, *, rows: int, limit: int = 0) -> Request:
    """Checks an edit and puts it into tokens.

    Args:
      model: of the edit; an outline will do. instruction, source: texts. fenced: put the source between fences. rows: of a pass.
      limit: most new tokens; 0 = a quarter more than the source has, and 128.

    Returns:
      A Request.

    Raises:
      ValueError: no instruction, an empty source, or more tokens than the context holds.
    """
    from specjax.weights.tokenizer import encode
    if not instruction.strip():
        raise ValueError("the instruction is empty: say what to change")
    if not source.strip():
        raise ValueError("the source is empty: there is nothing to edit")
    fence = fence_for(source) if fenced else ""
    prompt = prompt_ids(model, instruction, source, fenced)
    ids = encode(model.tokenizer, f"{source.rstrip()}\n{fence}" if fence else source, add_bos=False)
    room = model.target.context - len(prompt) - rows
    if room < len(ids):
        raise ValueError(f"the source has {len(ids)} tokens and the request {len(prompt)}; with an answer as long as the source that is more than "
                         f"the context of {model.target.context}")
    return Request(prompt, ids, limit or min(room, len(ids) * 5 // 4 + 128), fence)


def with_source(model: Model, params: dict[str, Any], r: Request) -> dict[str, Any]:
    """The parameters of a method for one edit: one that copies gets the source, one that does not has it in the prompt."""
    return params | {"source": copy_model.spans([r.source], end=model.eos[0] if model.eos else None)} if "source" in params else params


def begin(model: Model, method: Method, params: dict[str, Any], r: Request, *, temperature: float = 0.0, seed: int = 0) -> rounds.State:
    """The prefilled state of an edit; `params` are those of `with_source`."""
    return decode.begin(method, params, [r.prompt], max_new_tokens=r.limit, temperature=temperature, seed=seed, stop_ids=model.eos)


def stream(model: Model, method: Method, params: dict[str, Any], state: rounds.State, fence: str, rounds_per_chunk: int = 1) -> Iterator[Edited]:
    """The answer as it grows, until the model ends it, closes the fence, or reaches the limit."""
    for now in decode.stream(method, params, state, rounds_per_chunk):
        count = int(now.index[0]) + 1
        tokens, by = np.asarray(now.tokens)[0, :count].tolist(), np.asarray(now.source)[0, :count]
        reason = int(now.reason[0])
        text, closed = until_fence(model.decode(tokens), fence)
        names = {name: int((by == i + 1).sum()) for i, name in enumerate(method.drafter.sources)}
        over = closed or reason != rounds.RUNNING
        yield Edited(text, count, names, count - sum(names.values()), int(now.statistics.rounds[0]), closed or reason == rounds.STOPPED, over)
        if over:
            return


def until_fence(text: str, fence: str) -> tuple[str, bool]:
    """The text before a line that closes the fence, and whether there is one.

    >>> until_fence("a\\n```\\nSo I did", "```"), until_fence("a\\nb", "```")
    (('a\\n', True), ('a\\nb', False))
    """
    found = re.search(rf"^{fence}[ \t]*$", text, re.MULTILINE) if fence else None
    return (text[:found.start()], True) if found else (text, False)


def like(text: str, source: str) -> str:
    """The text with the line ends of the source, and its last one."""
    text = text.rstrip("\r\n") + ("\n" if source.endswith("\n") else "") if text.strip() else text
    return text.replace("\r\n", "\n").replace("\n", "\r\n") if "\r\n" in source else text


class LineDiff:
    """A diff that grows line by line: each new line is either where the source is awaited to go on, or new.

    >>> d = LineDiff(["a\\n", "b\\n", "c\\n"])
    >>> [d.push("a\\n"), d.push("X\\n"), d.push("c\\n")], d.end()
    ([[(' ', 'a\\n')], [('+', 'X\\n')], [('-', 'b\\n'), (' ', 'c\\n')]], [])
    """

    def __init__(self, source: list[str]):
        self._source, self._at = source, 0

    def push(self, line: str) -> list[tuple[str, str]]:
        """(mark, line) pairs to show for a line of the new text: " " unchanged, "-" gone, "+" new."""
        bare = line.rstrip("\r\n")
        ahead = [i for i in range(self._at, len(self._source)) if self._source[i].rstrip("\r\n") == bare]
        common = len(bare.strip()) < 4 or len(ahead) > 1
        if not ahead or (common and ahead[0] - self._at > NEAR):
            return [("+", line)]
        gone = [("-", x) for x in self._source[self._at:ahead[0]]]
        self._at = ahead[0] + 1
        return [*gone, (" ", line)]

    def end(self) -> list[tuple[str, str]]:
        """What is left of the source is gone."""
        gone = [("-", x) for x in self._source[self._at:]]
        self._at = len(self._source)
        return gone


def write_back(path: str | Path, text: str) -> Path:
    """Replaces a file's text at once and keeps what was there.

    Args:
      path: an existing file; a link is followed. text: the whole new text.

    Returns:
      The backup: the file's name with ".bak", or ".bak1", ... where that is taken.

    Raises:
      OSError: nothing was changed.
    """
    path = Path(path).resolve(strict=True)
    names = (path.with_name(path.name + ".bak" + (str(i) if i else "")) for i in range(10_000))
    backup = next(name for name in names if not name.exists())
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(path, part)
        shutil.copy2(path, backup)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return backup
