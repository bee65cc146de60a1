"""Edits: an instruction, a text, and the text a person made of it. The bundled ones, and loaders for public sets that a user has.

The bundled samples were written for this project and are in the public domain (CC0): renames, fixes, insertions, deletions, reorderings
and rewrites in code, prose, JSON and Markdown, and small versions of the tasks of the editing literature (patent claims, news, claims,
scientific sentences, instructions, documents with a snippet, editing skills).
"""
from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

KINDS = ("rename", "fix", "insert", "delete", "reorder", "rewrite")
FORMS = ("code", "prose", "json", "markdown")
BUNDLED = Path(__file__).with_name("edit_samples.jsonl")


@dataclasses.dataclass(frozen=True)
class Sample:
    """One edit.

    Attributes:
      id: unique in its set. family: the task it belongs to. kind: of the change, one of KINDS in the bundled set. form: of the text,
        one of FORMS. instruction: what to do. source, target: the text before and after. context: what else the editor saw, or "".
    """

    id: str
    family: str
    kind: str
    form: str
    instruction: str
    source: str
    target: str
    context: str = ""


class Change(NamedTuple):
    """What an edit did to a sequence: `copied` share of the target that was copied, `pieces` of changed stretches, and their `operations`:
    (kind, start and end in the source, start and end in the target)."""

    copied: float
    pieces: int
    operations: tuple[tuple[str, int, int, int, int], ...]


def change(source: Sequence[Any], target: Sequence[Any]) -> Change:
    """Compares two sequences of tokens, lines or characters.

    >>> change("abcd", "abXd").operations
    (('replace', 2, 3, 2, 3),)
    """
    codes = difflib.SequenceMatcher(None, source, target, autojunk=False).get_opcodes()
    copied = sum(j2 - j1 for kind, _, _, j1, j2 in codes if kind == "equal")
    operations = tuple(code for code in codes if code[0] != "equal")
    return Change(copied / max(len(target), 1), len(operations), operations)


def bundled() -> list[Sample]:
    """The samples of the package."""
    return read(BUNDLED)


def _lines(path: Path, make: Callable[[dict[str, Any]], Sample]) -> list[Sample]:
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            sample = make(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: not an edit sample ({type(error).__name__}: {error})") from None
        if not (isinstance(sample.source, str) and isinstance(sample.target, str) and sample.source and sample.target):
            raise ValueError(f"{path}, line {number}: source and target must be texts that are not empty")
        found.append(sample)
    if not found:
        raise ValueError(f"{path} holds no edit sample")
    return found


def read(path: str | Path) -> list[Sample]:
    """Samples in the layout of the bundled ones: JSON objects, one a line, with the fields of `Sample`.

    Raises:
      ValueError: a broken line, which is named, or none at all. OSError: the file cannot be read.
    """
    names = {f.name for f in dataclasses.fields(Sample)}
    return _lines(Path(path), lambda x: Sample(**{k: v for k, v in x.items() if k in names and v is not None}))


def read_canitedit(path: str | Path) -> list[Sample]:
    """CanItEdit (Cassano et al. 2023) in its own layout: before, after, instruction_descriptive; the kind is its `change_kind`."""
    return _lines(Path(path), lambda x: Sample(str(x["full_name"]), "canitedit", x["taxonomy"]["change_kind"], "code",
                                               x["instruction_descriptive"], x["before"], x["after"]))


def read_coedit(path: str | Path) -> list[Sample]:
    """CoEdIT (Raheja et al. 2023) in its own layout: task, src ("instruction: text"), tgt."""
    def make(x: dict[str, Any]) -> Sample:
        instruction, source = x["src"].split(": ", 1)
        return Sample(str(x["_id"]), "coedit", x["task"], "prose", instruction, source, x["tgt"])
    return _lines(Path(path), make)


def read_arxivedits(path: str | Path) -> list[Sample]:
    """arXivEdits (Jiang et al. 2022) in its own layout: one JSON object of numbered pairs, sentence-1 and sentence-2.

    Raises:
      ValueError: another layout.
    """
    try:
        pairs = json.loads(Path(path).read_text(encoding="utf-8"))
        made = [Sample(key, "arxivedits", "revise", "prose", "Revise the sentence for clarity and accuracy.", x["sentence-1"], x["sentence-2"])
                for key, x in pairs.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not the layout of arXivEdits ({type(error).__name__}: {error})") from None
    return [s for s in made if s.source and s.target and s.source != s.target]
