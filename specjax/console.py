"""What the experiments share on a terminal: kept compilations, one-line errors, text that streams in colour."""
from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

_COLOURS = ("\033[32m", "\033[36m", "\033[35m", "\033[33m")
_RESET = "\033[0m"


def keep_compiled() -> Path:
    """Keeps compiled programs in the cache folder, so that a second start need not compile; returns the folder."""
    import jax

    from specjax.weights.default_target import cache_folder
    folder = cache_folder() / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    return folder


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Bad input becomes one line on stderr and exit code 2; Ctrl-C one line and 130. Bugs keep their traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def colourful(out: TextIO) -> bool:
    """Whether to colour: a terminal, and NO_COLOR not set."""
    return out.isatty() and not os.environ.get("NO_COLOR")


class Stream:
    """Prints tokens as they come: whole characters only, drafted tokens in the colour of their source.

    Args:
      tokenizer: of the model, or None (then ids are printed). out: where to. colour: None = as `colourful` says.
    """

    def __init__(self, tokenizer: Any, out: TextIO = sys.stdout, colour: bool | None = None):
        from tokenizers.decoders import DecodeStream
        self._tokenizer, self._out = tokenizer, out
        self._colour = colourful(out) if colour is None else colour
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._tokens: list[int] = []
        self.text = ""

    def write(self, tokens: Sequence[int], sources: Sequence[int]) -> None:
        """Adds tokens; `sources` is 0 for the target's own, s + 1 for source s. A character that is not complete yet waits."""
        for token, source in zip(tokens, sources, strict=True):
            self._tokens.append(int(token))
            piece = f"{token} " if self._tokenizer is None else self._decoder.step(self._tokenizer, int(token))
            if piece:
                self._print(piece, source)
        self._out.flush()

    def close(self) -> str:
        """Prints what waited (an incomplete character becomes a replacement mark) and returns the whole text."""
        if self._tokenizer is not None:
            whole = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
            if whole.startswith(self.text):
                self._print(whole[len(self.text):], 0)
        self._out.write("\n")
        self._out.flush()
        return self.text

    def _print(self, piece: str, source: int) -> None:
        self.text += piece
        if self._colour and source and piece:
            piece = _COLOURS[(source - 1) % len(_COLOURS)] + piece + _RESET
        self._out.write(piece)


def read_prompts(path: str) -> list[str]:
    """Prompts of a file: JSONL objects with "prompt", "text" or "turns" (the first), or one prompt a line.

    A file whose first line is not empty and starts with "{" is JSONL. Empty lines are left out.

    Raises:
      ValueError: a broken line, named by its number; a file without prompts. OSError: no such file.
    """
    import json
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    structured = any(lines) and next(line for line in lines if line.strip()).lstrip().startswith("{")
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if structured:
            try:
                entry = json.loads(line)
                value = entry.get("prompt", entry.get("text", (entry.get("turns") or [None])[0]))
            except (ValueError, AttributeError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: not a JSON object ({error})") from None
            if not isinstance(value, str) or not value:
                raise ValueError(f"{path}, line {number}: needs a text under \"prompt\", \"text\" or \"turns\"")
            prompts.append(value)
        else:
            prompts.append(line)
    if not prompts:
        raise ValueError(f"{path}: holds no prompt")
    return prompts
