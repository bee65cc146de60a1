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

from absl import flags

from experiments import command

_DATA = flags.DEFINE_string("data", None, "JSONL file with one question a line: category, turns.", required=True)
_METHOD = flags.DEFINE_string("method", "lookup", "Name in specjax.methods.")
_TARGET = flags.DEFINE_string("target", "smollm2-135m-instruct", "Model: a known name, a .gguf file, or a safetensors folder.")
_PER_TASK = flags.DEFINE_integer("per_task", 8, "Prompts of each task, evenly spread.", lower_bound=1)
_TOKENS = flags.DEFINE_integer("max_new_tokens", 200, "Tokens to generate.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 1, "Prompts of a task generated together; their summed tokens count.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed repetitions of each side, alternating; medians count.", lower_bound=1)
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "0 is greedy.")
_OUT = flags.DEFINE_string("out", None, "Write the record of every prompt here as JSON.")
_IGNORE_EOS = flags.DEFINE_bool("ignore_eos", False, "Generate all tokens asked for; small models then loop at the end of many answers.")
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
    from specjax import compare, compile_cache, methods
    from specjax.measure import first_loop
    with command.checking():
        tasks = read_tasks(_DATA.value, _PER_TASK.value)
        entry = methods.get(_METHOD.value)
        model = specjax.load(_TARGET.value)
    compile_cache.keep_compiled()
    sides = [compare.Side(*e.build(model)) for e in (methods.get("plain"), entry)]
    settings = compare.Settings(_TOKENS.value, _TEMPERATURE.value, 0, _REPEATS.value, not _IGNORE_EOS.value)
    say = (lambda *a: None) if _JSON.value else (lambda *a: print(*a, flush=True))
    say(f"{'task':>16}{'prompts':>8}{'tokens':>8}{'speedup':>9}{'tau':>6}{'  before the first loop':>24}{'same text':>11}")
    records, table = [], {}
    for task, texts in tasks.items():
        prompts = [model.encode(t, chat=model.chat is not None) for t in texts]
        mine = []
        for i in range(0, len(prompts), _BATCH.value):
            ids = prompts[i:i + _BATCH.value]
            requests = range(i, i + len(ids))
            plain, fast = compare.compare(model, sides, ids, requests, settings)
            cut = [max(1, first_loop(t)) for t in fast.result.tokens]
            free = plain.decode_s / fast.decode_s, fast.result.stats.tau
            if cut != [len(t) for t in fast.result.tokens]:
                p, f = compare.compare(model, sides, ids, requests, settings._replace(max_new_tokens=cut))
                free = p.decode_s / f.decode_s, f.result.stats.tau
            mine.append({"task": task, "tokens": fast.result.tokens, "same_as_plain": plain.result.tokens == fast.result.tokens,
                         "plain_s": plain.decode_s, "method_s": fast.decode_s, "speedup": plain.decode_s / fast.decode_s,
                         "tokens_per_second": fast.tokens / fast.decode_s, "tau": fast.result.stats.tau, "before_loop": cut,
                         "speedup_before_loop": free[0], "tau_before_loop": free[1]})
        made = sum(len(t) for r in mine for t in r["tokens"])
        row = {"prompts": len(prompts), "tokens": made, "loop_share": 1 - sum(sum(r["before_loop"]) for r in mine) / made,
               "same_as_plain": all(r["same_as_plain"] for r in mine),
               **{key: statistics.fmean(r[key] for r in mine) for key in ("speedup", "tau", "speedup_before_loop", "tokens_per_second")}}
        table[task], records = row, records + mine
        say(f"{task:>16}{row['prompts']:>8}{row['tokens']:>8}{row['speedup']:>9.2f}{row['tau']:>6.2f}{row['speedup_before_loop']:>24.2f}"
            f"{str(row['same_as_plain']):>11}")
    mean = lambda key: statistics.fmean(r[key] for r in table.values())  # noqa: E731
    summary = {"method": _METHOD.value, "target": model.name, "batch": _BATCH.value, "ignore_eos": _IGNORE_EOS.value,
               "temperature": _TEMPERATURE.value, "speedup": mean("speedup"),
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
    command.run(main)
