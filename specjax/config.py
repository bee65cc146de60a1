"""What the files of `configs/` return: one frozen dataclass a command, whose fields are the command's flags.

A config is a Python file with ``get_config()``; it is data, and the same file works from a command line (``--config``), a notebook or a job.
"""
from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Decode:
    """`experiments.decode` and `experiments.serve`: which method on which target.

    Attributes:
      method: name in `specjax.methods`. target: a known name, a folder, a file or a hub id. max_new_tokens, temperature, seed, batch: as the flags.
    """

    method: str
    target: str = "smollm2-135m-instruct"
    max_new_tokens: int = 200
    temperature: float = 0.0
    seed: int = 0
    batch: int = 1


def read(path: str) -> dict[str, Any]:
    """The fields of a config file's dataclass.

    Args:
      path: a Python file that defines ``get_config()``.

    Raises:
      ValueError: no such file, no `get_config`, or one that returns no frozen dataclass.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no config file {path}")
    made = runpy.run_path(path).get("get_config")
    config = made() if callable(made) else None
    if not dataclasses.is_dataclass(config) or isinstance(config, type) or not type(config).__dataclass_params__.frozen:
        raise ValueError(f"{path} must define get_config(), which returns a frozen dataclass")
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
