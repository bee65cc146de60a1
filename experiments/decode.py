"""Generates with a method and with plain decoding in one run: the answer streams, then a table says what the method was worth.

    python -m experiments.decode
    python -m experiments.decode --prompt="Explain gravity." --method=model_tree --temperature=0.8 --seed=1
    python -m experiments.decode --prompts_file=prompts.jsonl --batch=4 --json
"""
from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
from typing import Any

from absl import app, flags

_PROMPT = flags.DEFINE_string("prompt", "Write a short poem about the sea, then explain each line of the poem.", "What to answer.")
_FILE = flags.DEFINE_string("prompts_file", None, "Prompts instead of --prompt: one a line, or JSONL with prompt, text or turns.")
_METHOD = flags.DEFINE_string("method", "lookup", "Name in METHODS.md.")
_NEW = flags.DEFINE_integer("max_new_tokens", 200, "Most tokens to generate a prompt.")
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "0 is greedy.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of all coins: the same seed gives the same text, whatever the method (match methods).")
_BATCH = flags.DEFINE_integer("batch", 1, "Prompts generated together.")
_TARGET = flags.DEFINE_string("target", "smollm2-135m-instruct", "Model: a known name, a .gguf file, a safetensors folder, or a hub id.")
_CHAT = flags.DEFINE_bool("chat", True, "Render prompts as a user's turn where the model has a chat template.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed runs of each side, alternating; medians are reported.")
_SPLIT = flags.DEFINE_bool("split", True, "Time drafting and target passes alone, for the cost split.")
_JSON = flags.DEFINE_bool("json", False, "One JSON document on stdout and nothing else.")


def stream_answer(model: Any, method: tuple[Any, Any], ids: list[int]) -> None:
    """Prints one answer as it is made, drafted tokens coloured."""
    import numpy as np

    from specjax import console, decode
    m, params = method
    state = decode.begin(m, params, [ids], max_new_tokens=_NEW.value, temperature=_TEMPERATURE.value, seed=_SEED.value, stop_ids=model.eos)
    printer, done = console.Stream(model.tokenizer), 0
    for state in decode.stream(m, params, state):
        new = slice(done, int(state.index[0]) + 1)
        printer.write(np.asarray(state.tokens)[0, new], np.asarray(state.source)[0, new])
        done = new.stop
    printer.close()


def measure_all(model: Any, entry: Any, prompts: list[list[int]]) -> dict[str, Any]:
    """The document that is printed: totals over all prompts, and an entry for each."""
    import jax

    from specjax import measure, methods, pass_cost
    plain, method = methods.get("plain").build(model), entry.build(model)
    runs = [measure.side_by_side(model, plain, method, prompts[i:i + _BATCH.value], repeats=_REPEATS.value, limits=_NEW.value,
                                 temperature=_TEMPERATURE.value, seed=_SEED.value) for i in range(0, len(prompts), _BATCH.value)]
    rows = [{"text": r.made.text[b], "tokens": r.made.tokens[b], "same_as_plain": r.plain.tokens[b] == r.made.tokens[b], "finish": r.made.reasons[b],
             "tau": r.made.row_stats[b].tau, "loop_share": measure.loop_share(r.made.tokens[b])} for r in runs for b in range(len(r.made.tokens))]
    plain_s, method_s = sum(r.plain_s for r in runs), sum(r.method_s for r in runs)
    made, own = sum(r.made.stats.tokens for r in runs), sum(r.plain.stats.tokens for r in runs)
    stats, count = runs[0].made.stats, sum(r.made.stats.rounds for r in runs)
    read = pass_cost.read_cost(model.params)
    megabytes = sum(x.nbytes for x in jax.tree.leaves(model.params) if x.ndim == 2) / 1e6
    split = measure.cost_split(method, prompts[:_BATCH.value], _NEW.value, runs[0].buckets, runs[0].method_s) if _SPLIT.value else {}
    first = rows[0] if len(rows) == 1 else {"text": [r["text"] for r in rows], "tokens": [r["tokens"] for r in rows]}
    return {
        "text": first["text"], "tokens": first["tokens"], "same_as_plain": all(r["same_as_plain"] for r in rows), "lossless": entry.lossless,
        "speedup": (made / method_s) / (own / plain_s), "tau": made / count, "plain_tokens_per_second": own / plain_s,
        "tokens_per_second": made / method_s, "prefill_seconds": sum(r.prefill_s for r in runs), "rounds": count, "acceptance": stats.acceptance,
        "acceptance_at": stats.acceptance_at, "accepted_by_source": stats.by_source, "passes_by_rows": runs[0].buckets, "cost_split_seconds": split,
        "bound_tokens_per_second": 1e3 / read.median_ms, "bandwidth_gigabytes_per_second": megabytes / read.median_ms,
        "parameter_megabytes": megabytes, "loop_share": statistics.fmean(r["loop_share"] for r in rows), "method": entry.name, "target": model.name,
        "temperature": _TEMPERATURE.value, "seed": _SEED.value, "batch": _BATCH.value, "dtype": "float32", "machine": platform.machine(),
        "cores": os.cpu_count(), "jax": jax.__version__, "date": datetime.date.today().isoformat(), "prompts": rows}


def table(d: dict[str, Any]) -> str:
    """The document as lines for a person."""
    same = {True: "yes, token for token", False: "NO" if d["lossless"] == "text" else "no: this method promises the law, not the text"}
    split, total = d["cost_split_seconds"], sum(d["cost_split_seconds"].values())
    lines = [("plain", f"{d['plain_tokens_per_second']:.1f} tokens/s   (bound {d['bound_tokens_per_second']:.1f}: {d['parameter_megabytes']:.0f} MB a token "
              f"at {d['bandwidth_gigabytes_per_second']:.1f} GB/s)"),
             (d["method"], f"{d['tokens_per_second']:.1f} tokens/s   prefill {d['prefill_seconds']:.2f} s"), ("speedup", f"{d['speedup']:.2f}x"),
             ("tau", f"{d['tau']:.2f} tokens a round, {d['rounds']} rounds; passes by rows "
              + ", ".join(f"{r}: {n}" for r, n in d["passes_by_rows"].items())),
             ("acceptance", f"{d['acceptance']:.2f}; by depth " + (" ".join(f"{a:.2f}" for a in d["acceptance_at"]) or "-")),
             ("cost split", ", ".join(f"{k} {v / total:.0%}" for k, v in split.items()) if total else "not measured"),
             ("in repeat loops", f"{d['loop_share']:.0%} of the tokens"), ("same as plain", same[d["same_as_plain"]])]
    return "\n".join(f"{name:>16}  {text}" for name, text in lines)


def main(argv: list[str]) -> None:
    """Checks the flags, streams, measures, prints."""
    from specjax import console
    with console.one_line_errors():
        if len(argv) > 1:
            raise ValueError(f"unexpected argument {argv[1]!r}: every setting is a flag, see --help")
        for flag, least in ((_NEW, 1), (_BATCH, 1), (_REPEATS, 1)):
            if flag.value < least:
                raise ValueError(f"{flag.name} is {flag.value}: it must be at least {least}")
        from specjax.sampling import check_temperature
        check_temperature(_TEMPERATURE.value)
        texts = console.read_prompts(_FILE.value) if _FILE.value else [_PROMPT.value]
        import specjax
        entry = specjax.methods.get(_METHOD.value)
        console.keep_compiled()
        model = specjax.load(_TARGET.value)
        prompts = [model.encode(t, chat=_CHAT.value and model.chat is not None) for t in texts]
        if not _JSON.value:
            stream_answer(model, entry.build(model), prompts[0])
            print("\nmeasuring plain decoding and the method in alternation ...", file=sys.stderr, flush=True)
        document = measure_all(model, entry, prompts)
        print(json.dumps(document) if _JSON.value else table(document))


if __name__ == "__main__":
    app.run(main)
