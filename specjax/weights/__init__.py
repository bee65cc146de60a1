"""Pretrained weights: one `open_checkpoint` for GGUF files, safetensors folders, hub ids and the default target.

Importing this package is cheap: the libraries behind a kind of file are imported when one is opened.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from specjax.weights.checkpoint import Checkpoint, CheckpointError, check_names, expected_names

__all__ = ["Checkpoint", "CheckpointError", "check_names", "expected_names", "open_checkpoint"]


def _default_target(_: str) -> Checkpoint:
    from specjax.weights.default_target import open_default_target

    return open_default_target()


def _gguf(path: str) -> Checkpoint:
    from specjax.weights.gguf_file import open_gguf

    return open_gguf(path)


def _folder(path: str) -> Checkpoint:
    from specjax.weights.safetensors_folder import open_folder

    return open_folder(path)


def _hub(repository: str) -> Checkpoint:
    from specjax.weights.hub import open_hub

    return open_hub(repository)


_NAMES: dict[str, Callable[[str], Checkpoint]] = {"smollm2-135m-instruct": _default_target}

# The first form that fits opens it: a folder that exists wins over a hub id of the same spelling.
_FORMS: tuple[tuple[str, Callable[[str], bool], Callable[[str], Checkpoint]], ...] = (
    ("a folder with config.json and model.safetensors", lambda name: Path(name).is_dir(), _folder),
    ("a .gguf file", lambda name: name.lower().endswith(".gguf"), _gguf),
    ("a hub id organisation/name", lambda name: re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) is not None, _hub),
)


def open_checkpoint(name_or_path: str) -> Checkpoint:
    """Open a pretrained model by name, file, folder or hub id.

    Args:
      name_or_path: a known name ("smollm2-135m-instruct"), the path of a .gguf file or of a folder, or a hub id
        "organisation/name".

    Returns:
      The checkpoint; no tensor is read yet.

    Raises:
      CheckpointError: nothing of that name, or it cannot be used; the message says why.

    >>> try:
    ...     open_checkpoint("gpt-17")
    ... except CheckpointError as error:
    ...     print(str(error)[:70])
    'gpt-17' is no checkpoint; known names: smollm2-135m-instruct; also ac
    """
    name = str(name_or_path)
    if name in _NAMES:
        return _NAMES[name](name)
    for _, fits, opener in _FORMS:
        if fits(name):
            return opener(name)
    forms = ", ".join(form for form, _, _ in _FORMS)
    raise CheckpointError(f"{name!r} is no checkpoint; known names: {', '.join(_NAMES)}; also accepted: {forms}")
