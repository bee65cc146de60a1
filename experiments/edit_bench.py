"""What an edit costs when the answer is the one a person made: `edit` beside the suffix match and plain decoding, by class of text.

    python -m experiments.edit_bench --replay                  # no model: passes are counted, a table of costs makes a speed of them
    python -m experiments.edit_bench --per_class=4             # the real target's passes, timed in alternation
    python -m experiments.edit_bench --canitedit=test.jsonl    # beside the bundled samples; --arxivedits takes that set

The real forward runs on the real rows; only the law is replaced by the known answer. The figures say what a model that makes exactly this
edit would gain, not what the model at hand would write.
"""
from __future__ import annotations

import dataclasses
import datetime
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments import command

_REPLAY = flags.DEFINE_bool("replay", False, "Count passes without a model.")
_BUNDLED = flags.DEFINE_bool("bundled", True, "Run the samples of the package.")
_SAMPLES = flags.DEFINE_string("samples", None, "More samples, in the layout of the bundled ones.")
_CANITEDIT = flags.DEFINE_string("canitedit", None, "CanItEdit's test.jsonl.")
_ARXIVEDITS = flags.DEFINE_string("arxivedits", None, "A JSON file of arXivEdits.")
_COEDIT = flags.DEFINE_string("coedit", None, "A JSON Lines file of CoEdIT.")
_TARGET = flags.DEFINE_string("target", "smollm2-135m-instruct", "Model whose passes run; with --replay only its tokenizer, \"\" = words and signs.")
_PER_CLASS = flags.DEFINE_integer("per_class", 0, "Samples of each class, evenly spread; 0 = all.", lower_bound=0)
_LONGEST = flags.DEFINE_integer("longest", 1024, "Samples whose prompt or answer has more tokens are left out, and counted.", lower_bound=16)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed repetitions, in alternation; medians count.", lower_bound=1)
_BY = flags.DEFINE_enum("by", "form", ["form", "kind", "family"], "Class of a bundled sample.")
_OUT = flags.DEFINE_string("out", None, "Write the record here as JSON.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON line on stdout, nothing else.")


def classes() -> dict[str, list[Any]]:
    """The chosen samples by class."""
    from specjax.data import edit_samples
    found: dict[str, list[Any]] = {}
    for path, read in ((_CANITEDIT.value, edit_samples.read_canitedit), (_ARXIVEDITS.value, edit_samples.read_arxivedits),
                       (_COEDIT.value, edit_samples.read_coedit)):
        if path:
            made = read(path)
            found[made[0].family if made else path] = made
    for s in [*(edit_samples.bundled() if _BUNDLED.value else []), *(edit_samples.read(_SAMPLES.value) if _SAMPLES.value else [])]:
        found.setdefault(getattr(s, _BY.value), []).append(s)
    if not found:
        raise ValueError("no samples: --nobundled needs another set")
    return {name: s[::max(1, len(s) // _PER_CLASS.value)][:_PER_CLASS.value] if _PER_CLASS.value else s for name, s in found.items()}


def main(argv: Sequence[str]) -> None:
    """Runs all samples and prints a table."""
    del argv
    from specjax import compile_cache
    from specjax.drafters.edit import COSTS, edit
    from specjax.drafters.lookup import lookup
    from specjax.model import load, outline
    from specjax.testing import edit_replay
    from specjax.weights import open_checkpoint
    with command.checking():
        chosen = classes()
        if not (_TARGET.value or _REPLAY.value):
            raise ValueError("--target is empty: only --replay can do without one")
        model = None if not _TARGET.value else outline(open_checkpoint(_TARGET.value)) if _REPLAY.value else load(_TARGET.value)
        compile_cache.keep_compiled()
        named = [(name, t) for name, s in chosen.items() for t in (edit_replay.crude(s) if model is None else edit_replay.tokenize(model, s))]
    kept = [(n, t) for n, t in named if max(len(t.prompt), len(t.answer)) <= _LONGEST.value]
    of, texts = [n for n, _ in kept], [t for _, t in kept]
    drafters = {"lookup": lookup(), "edit": edit()}
    if _REPLAY.value:
        runs = {name: edit_replay.replay(d, texts) for name, d in drafters.items()}
        plain = [float(len(t.answer)) for t in texts]
        seconds = {name: [edit_replay.cost(r, dict(COSTS)) for r in x] for name, x in runs.items()}
    else:
        show = (lambda n: print(f"\r{n} of {len(texts)} texts", end="" if n < len(texts) else "\n", file=sys.stderr, flush=True)) \
            if sys.stderr.isatty() else (lambda n: None)
        base, *mine = edit_replay.measure(model, list(drafters.values()), texts, _REPEATS.value, show)
        runs, plain = dict(zip(drafters, mine, strict=True)), [r.seconds for r in base]
        seconds = {name: [r.seconds for r in x] for name, x in runs.items()}
    of_text = dict(zip(map(id, (t.sample for t in texts)), of, strict=True))
    tables = {name: edit_replay.table(texts, plain, x, seconds[name], lambda s: of_text[id(s)]) for name, x in runs.items()}
    record = {"answers": "replayed human targets, not the model's", "passes": f"simulated from {COSTS}" if _REPLAY.value else "real, timed",
              "target": _TARGET.value, "left_out": len(named) - len(kept), "repeats": _REPEATS.value, "cores": os.cpu_count(),
              "date": datetime.date.today().isoformat(),
              "classes": {n: {m: dataclasses.asdict(t[n]) for m, t in tables.items()} for n in dict.fromkeys(of)}}
    if _OUT.value:
        part = Path(_OUT.value + ".part")
        part.write_text(json.dumps(record, indent=1))
        part.replace(_OUT.value)
    if _JSON.value:
        print(json.dumps(record))
        return
    print(f"human targets replayed; passes {record['passes']}; {record['left_out']} samples longer than {_LONGEST.value} tokens left out")
    print(f"{'class':>12}{'texts':>7}{'tokens':>8}" + "".join(f"{m + ' tau':>13}{'speedup':>9}{'nodes':>7}" for m in tables))
    for n in dict.fromkeys(of):
        first = next(iter(tables.values()))[n]
        print(f"{n:>12}{first.texts:>7}{first.tokens:>8}" + "".join(
            f"{t[n].tau:>13.2f}{t[n].speedup:>9.2f}{t[n].nodes:>7.1f}" for t in tables.values()))


if __name__ == "__main__":
    command.run(main)
