"""Lets a model edit a file: a diff appears as the answer is made, and the unchanged parts are copied, not decoded token by token.

    python -m experiments.edit --file=notes.txt --instruction="Correct the spelling."
    python -m experiments.edit --file=stock.py --instruction="Rename qty to quantity." --write

Without --write the file is only read. With it the file is replaced as a whole once the answer is complete, and the old one is kept beside
it with ".bak". What the edit is worth is up to the model: the default one is small.
"""
from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

from absl import flags

from experiments import command

_FILE = flags.DEFINE_string("file", None, "The text file to edit.")
_INSTRUCTION = flags.DEFINE_string("instruction", None, "What to change.")
_WRITE = flags.DEFINE_bool("write", False, "Replace the file, keeping a backup.")
_METHOD = flags.DEFINE_string("method", "edit", "Name in METHODS.md.")
_TARGET = flags.DEFINE_string("target", "smollm2-135m-instruct", "Model: a known name, a .gguf file, or a safetensors folder.")
_TOKENS = flags.DEFINE_integer("max_new_tokens", 0, "Most tokens of the answer; 0 = a quarter more than the file has, and 128.", lower_bound=0)
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "0 takes the likeliest token each time.")
_SEED = flags.DEFINE_integer("seed", 0, "Of all random draws.")
_FENCED = flags.DEFINE_bool("fenced", None, "Put the text between fences in the request; default: unless its name ends like prose.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON document on stdout and nothing else.")

_COLOURS = {"+": "\x1b[32m", "-": "\x1b[31m", " ": ""}
INCOMPLETE = 1


def main(argv: list[str]) -> None:
    """Checks everything, streams the diff, writes."""
    del argv
    with command.checking():
        if not _FILE.value:
            raise ValueError("which file? --file names the text to edit")
        if not (_INSTRUCTION.value or "").strip():
            raise ValueError("what is to change? --instruction says it")
        import specjax
        from specjax import compile_cache, console
        from specjax.applications import editing
        from specjax.sampling import check_temperature
        source = editing.read_source(_FILE.value)
        check_temperature(_TEMPERATURE.value)
        entry = specjax.methods.get(_METHOD.value)
        compile_cache.keep_compiled()
        model = specjax.load(_TARGET.value)
        method, params = entry.build(model)
        fenced = Path(_FILE.value).suffix.lower() not in editing.PROSE if _FENCED.value is None else _FENCED.value
        plain = source.replace("\r\n", "\n")
        r = editing.request(model, _INSTRUCTION.value, plain, fenced, rows=method.rows, limit=_TOKENS.value)
        params = editing.with_source(model, params, r)
        state = editing.begin(model, method, params, r, temperature=_TEMPERATURE.value, seed=_SEED.value)
    colour, started = console.wants_colour(sys.stdout) and not _JSON.value, time.perf_counter()
    diff, shown, marks = editing.LineDiff(plain.splitlines(keepends=True)), 0, []

    def show(pairs: list[tuple[str, str]]) -> None:
        marks.extend(pairs)
        for mark, line in [] if _JSON.value else pairs:
            text = f"{mark} {line.rstrip()}"
            print(f"{_COLOURS[mark]}{text}\x1b[0m" if colour and mark != " " else text, flush=True)

    for e in editing.stream(model, method, params, state, r.fence):
        lines = e.text.splitlines(keepends=True)
        whole = len(lines) if e.over else max(len(lines) - 1, 0)
        for line in lines[shown:whole]:
            show(diff.push(line))
        shown = max(shown, whole)
    show(diff.end())
    text, seconds, backup = editing.like(e.text, source), time.perf_counter() - started, None
    if _WRITE.value and e.done and text != source:
        with command.checking():
            backup = str(editing.write_back(_FILE.value, text))
    made = {"file": _FILE.value, "text": text, "complete": e.done, "changed": text != source, "tokens": e.tokens, "drafted": e.drafted, "own": e.own,
            "rounds": e.rounds, "tau": e.tokens / max(e.rounds, 1), "seconds": seconds, "tokens_per_second": e.tokens / seconds,
            "written": backup is not None, "backup": backup, "method": entry.name, "target": model.name,
            "diff": [f"{m}{line.rstrip()}" for m, line in marks if m != " "]}
    if _JSON.value:
        print(json.dumps(made, ensure_ascii=False))
    else:
        parts = ", ".join(f"{n} {name}" for name, n in e.drafted.items()) or "0 drafted"
        print(f"\n{e.tokens} tokens: {parts}, {e.own} by the model alone; {e.rounds} passes, "
              f"tau {made['tau']:.2f}, {made['tokens_per_second']:.1f} tokens/s")
        print(f"written; the old text is {backup}" if backup else "nothing changed" if text == source else "not written" +
              ("" if e.done else ": the answer is not complete"))
    if _WRITE.value and not e.done:
        sys.exit(INCOMPLETE)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the reader of a pipe may have gone
        command.run(main)
