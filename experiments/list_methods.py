"""Prints the table of named methods; with --write, writes it to METHODS.md.

    python -m experiments.list_methods
    python -m experiments.list_methods --write
"""
from __future__ import annotations

from pathlib import Path

from absl import flags

from experiments import command

_WRITE = flags.DEFINE_bool("write", False, "Write METHODS.md at the root of the repository instead of printing.")

FILE = Path(__file__).resolve().parent.parent / "METHODS.md"
_HEAD = """# Methods

Written by `python -m experiments.list_methods --write` from `specjax/methods.py`; do not edit.

*text*: the same seed gives the same text as plain decoding, token for token. *law*: the output has the target's law, another text.
Each is proven by `python -m experiments.lossless`. Any of them runs with `python -m experiments.decode --method=NAME`.

"""


def document() -> str:
    """METHODS.md as it should be."""
    from specjax import methods
    rows = [("name", "from", "what", "lossless"), ("---",) * 4]
    rows += [(f"`{e.name}`", e.origin, e.what, e.lossless) for e in methods.TABLE.values()]
    return _HEAD + "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def main(argv: list[str]) -> None:
    """Prints or writes."""
    del argv
    if _WRITE.value:
        FILE.write_text(document(), encoding="utf-8")
        print(f"wrote {FILE.name}")
    else:
        print(document(), end="")


if __name__ == "__main__":
    command.run(main)
