"""The README's Python blocks run as they stand, and it names commands and files that exist."""
from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python([^\n]*)\n(.*?)^```$", README, re.M | re.S)


def test_there_is_a_block_to_run():
    assert [mark.strip() for mark, _ in BLOCKS].count("") >= 1


@pytest.mark.parametrize("block", [text for mark, text in BLOCKS if not mark.strip()])
def test_block_runs(block):
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("block", [text for mark, text in BLOCKS if mark.strip() == "no-run"])
def test_other_blocks_call_what_exists(block):
    """A block that needs the real model is not run; every name it takes from specjax is there, and so is every argument."""
    import inspect

    import specjax
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("specjax."):
            found = specjax
            for name in ast.unparse(node.func).split(".")[1:]:
                found = getattr(found, name)
            inspect.signature(found).bind(*node.args, **{k.arg: k.value for k in node.keywords})


def test_commands_and_files_exist():
    for module in re.findall(r"python -m ([\w.]+)", README):
        assert (ROOT / Path(*module.split(".")).with_suffix(".py")).is_file(), module
    for name in re.findall(r"`((?:specjax|tests|experiments|configs)/[\w/.]*)`", README):
        assert (ROOT / name).exists(), name
