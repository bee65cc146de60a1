"""A method against plain decoding on prompts sorted by task, in one run: medians, tau, and the same for the text before any loop.

    python -m experiments.bench_tasks --data=question.jsonl --method=lookup --per_task=8

The file has one JSON object a line with "category" and "turns" (Spec-Bench's format); its thirteen MT-bench categories count as one
task. For each prompt plain decoding and the method run in alternation; then both run again up to the first repeat loop.
"""
from __future__ import annotations

import collections
import datetime
import json
import os
import statistics
from pathlib import Path

from absl import app, flags

_DATA = flags.DEFINE_string("data", None, "JSONL file with one question a line: category, turns.", required=True)
_METHOD = flags.DEFINE_string("method", "lookup", "Name in specjax.methods.")
_TARGET = flags.DEFINE_string("target", "smollm2-135m-instruct", "Model: a known name, a .gguf file, or a safetensors folder.")
_PER_TASK = flags.DEFINE_integer("per_task", 8, "Prompts of each task, evenly spread.", lower_bound=1)
_TOKENS = flags.DEFINE_integer("max_new_tokens", 200, "Tokens to generate.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 1, "Prompts of a task generated together; their summed tokens count.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed repetitions of each side, alternating; medians count.", lower_bound=1)
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "0 is greedy.")
_OUT = flags.DEFINE_string("out", None, "Write the record of every prompt here as JSON.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON line on stdout, nothing else.")

_ALONE = ("translation", "summarization", "qa", "math_reasoning", "rag")


def read_tasks(path: str, per_task: int) -> dict[str, list[str]]:
    """First turns by task, `per_task` of each, evenly spread over the file."""
    tasks = collections.defaultdict(list)
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            question = json.loads(line)
            tasks[question["category"] if question["category"] in _ALONE else "mt_bench"].append(question["turns"][0])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{path}, line {number}: needs a JSON object with category and turns ({error})") from None
    return {task: turns[::max(1, len(turns) // per_task)][:per_task] for task, turns in tasks.items()}


def main(argv: list[str]) -> None:
    """Runs every task and prints a table."""
    del argv
    import jax

    import specjax
    from specjax import console, methods
    from specjax.measure import first_loop, side_by_side
    with console.one_line_errors():
        tasks = read_tasks(_DATA.value, _PER_TASK.value)
        entry = methods.get(_METHOD.value)
        console.keep_compiled()
        model = specjax.load(_TARGET.value)
    sides = (methods.get("plain").build(model), entry.build(model))
    say = (lambda *a: None) if _JSON.value else (lambda *a: print(*a, flush=True))
    say(f"{'task':>16}{'prompts':>8}{'tokens':>8}{'speedup':>9}{'tau':>6}{'  before the first loop':>24}{'same text':>11}")
    records, table = [], {}
    for task, texts in tasks.items():
        prompts = [model.encode(t, chat=model.chat is not None) for t in texts]
        mine = []
        for i in range(0, len(prompts), _BATCH.value):
            ids = prompts[i:i + _BATCH.value]
            settings = {"repeats": _REPEATS.value, "temperature": _TEMPERATURE.value}
            whole = side_by_side(model, *sides, ids, limits=_TOKENS.value, **settings)
            cut = [max(1, first_loop(t)) for t in whole.made.tokens]
            clean = cut == [len(t) for t in whole.made.tokens]
            free = whole if clean else side_by_side(model, *sides, ids, limits=cut, **settings)
            mine.append({"task": task, "tokens": whole.made.tokens, "same_as_plain": whole.same, "plain_s": whole.plain_s, "method_s": whole.method_s,
                         "speedup": whole.plain_s / whole.method_s, "tau": whole.made.stats.tau, "before_loop": cut,
                         "speedup_before_loop": free.plain_s / free.method_s, "tau_before_loop": free.made.stats.tau})
        mean = lambda key: statistics.fmean(r[key] for r in mine)  # noqa: E731
        row = {"prompts": len(prompts), "tokens": sum(len(t) for r in mine for t in r["tokens"]), "speedup": mean("speedup"), "tau": mean("tau"),
               "speedup_before_loop": mean("speedup_before_loop"), "loop_share": 1 - sum(sum(r["before_loop"]) for r in mine)
               / sum(len(t) for r in mine for t in r["tokens"]), "same_as_plain": all(r["same_as_plain"] for r in mine)}
        table[task], records = row, records + mine
        say(f"{task:>16}{row['prompts']:>8}{row['tokens']:>8}{row['speedup']:>9.2f}{row['tau']:>6.2f}{row['speedup_before_loop']:>24.2f}"
            f"{str(row['same_as_plain']):>11}")
    mean = lambda key: statistics.fmean(r[key] for r in table.values())  # noqa: E731
    summary = {"method": _METHOD.value, "target": model.name, "batch": _BATCH.value, "temperature": _TEMPERATURE.value, "speedup": mean("speedup"),
               "speedup_before_loop": mean("speedup_before_loop"), "tau": mean("tau"), "least_task": min(r["speedup"] for r in table.values()),
               "tasks": table, "dtype": "float32", "cores": os.cpu_count(), "jax": jax.__version__, "date": datetime.date.today().isoformat()}
    say(f"{'mean':>16}{'':>16}{summary['speedup']:>9.2f}{summary['tau']:>6.2f}{summary['speedup_before_loop']:>24.2f}")
    if _OUT.value:
        part = Path(_OUT.value + ".part")
        part.write_text(json.dumps({**summary, "records": [{k: v for k, v in r.items() if k != "tokens"} for r in records]}, indent=1))
        part.replace(_OUT.value)
    if _JSON.value:
        print(json.dumps(summary))


if __name__ == "__main__":
    app.run(main)
