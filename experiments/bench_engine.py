"""The engine under load: tokens per second and latency at several concurrencies, beside speculation off and solo decoding, in one run.

    python -m experiments.bench_engine                    # 1, 4, 8 and 16 requests at a time
    python -m experiments.bench_engine --quick --json
    python -m experiments.bench_engine --soak=10000       # short requests on a tiny random model: memory and compilations stay flat

Every request asks for the same number of tokens. Each concurrency runs with the method and with drafts of length 0, in alternation, through one
engine; "bare" is the same request by the jitted loop alone, without an engine.
"""
from __future__ import annotations

import datetime
import json
import os
import statistics
import time
from typing import Any

from absl import flags

from experiments import command

_TARGET = flags.DEFINE_string("target", "smollm2-135m-instruct", "Model: a known name, a .gguf file, or a safetensors folder.")
_METHOD = flags.DEFINE_string("method", "lookup", "Name in specjax.methods.")
_LEVELS = flags.DEFINE_list("concurrency", ["1", "4", "8", "16"], "Requests at a time.")
_TOKENS = flags.DEFINE_integer("max_new_tokens", 100, "Tokens of each answer.", lower_bound=2)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed repetitions of each, in alternation.", lower_bound=1)
_QUICK = flags.DEFINE_bool("quick", False, "Concurrency 1 and 4, one repetition.")
_SOAK = flags.DEFINE_integer("soak", 0, "Instead: this many short requests on a tiny random model.", lower_bound=0)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON line on stdout, nothing else.")

PROMPTS = ("Write a short story about a lighthouse keeper.", "List ten fruits and the colour of each.", "Explain how rain forms, step by step.",
           "Write a Python function that counts the words of a text.", "Translate into French: the cat sleeps on the old sofa.",
           "Give three reasons to plant trees, and repeat them in short.", "Write a letter to a friend about a journey.",
           "What is 12 times 34? Show the steps.")


def one_level(engine: Any, prompts: list[list[int]], settings: list[Any]) -> dict[str, float]:
    """All requests at once through the engine: seconds, tokens per second, latencies."""
    begun = time.perf_counter()
    tickets = [engine.submit(p, s) for p, s in zip(prompts, settings, strict=True)]
    engine.run()
    seconds = time.perf_counter() - begun
    made = sum(len(t.tokens) for t in tickets)
    latency = sorted(t.finished - t.arrived for t in tickets)
    return {"tokens_per_second": made / seconds, "p50_s": statistics.median(latency),
            "p95_s": latency[min(len(latency) - 1, int(0.95 * len(latency)))],
            "first_token_s": statistics.median(t.first - t.arrived for t in tickets)}


def levels(model: Any, entry: Any, counts: list[int], say: Any) -> dict[str, Any]:
    """The table of concurrencies."""
    from specjax import api, compare
    from specjax.serving.engine import Engine
    from specjax.serving.tickets import Limits
    from specjax.settings import Settings
    tokens, prompts = _TOKENS.value, [model.encode(p, chat=model.chat is not None) for p in PROMPTS]
    method, params = api.bind(model, entry)
    engine = Engine(model, method, params, Limits(slots=max(counts), capacity=512, new_tokens=tokens))
    engine.warm_up()
    side, ask = compare.Side(method, params), compare.Settings(tokens, 0.0, 0, 1)
    say(f"{'requests':>9}{'':>12}{'tokens/s':>10}{'p50 s':>8}{'p95 s':>8}{'first s':>9}")
    table: dict[str, Any] = {}
    for count in counts:
        some = [prompts[i % len(prompts)] for i in range(count)]
        runs: dict[str, list[dict[str, float]]] = {"method": [], "plain": [], "bare": []}
        for repeat in range(_REPEATS.value + 1):  # the first is not counted
            for name, draft in (("method", None), ("plain", 0)):
                found = one_level(engine, some, [Settings(max_new_tokens=tokens, draft=draft, request_id=i) for i in range(count)])
                runs[name] += [found] if repeat else []
            if count == 1:
                begun = time.perf_counter()
                compare.advance(side, compare.begin(model, side, [some[0]], [0], ask), 2**31 - 1)
                runs["bare"] += [{"tokens_per_second": tokens / (time.perf_counter() - begun)}] if repeat else []
        table[str(count)] = {name: {k: statistics.median(r[k] for r in found) for k in found[0]} for name, found in runs.items() if found}
        for name, row in table[str(count)].items():
            say(f"{count:>9}{name:>12}" + "".join(f"{row[k]:>{w}.{d}f}" for k, w, d in
                (("tokens_per_second", 10, 1), ("p50_s", 8, 2), ("p95_s", 8, 2), ("first_token_s", 9, 2)) if k in row))
    return table


def soak(requests: int) -> dict[str, Any]:
    """Many short requests on a tiny random model: live arrays and compilations before and after."""
    import gc

    import jax

    from specjax import methods
    from specjax.model import Model
    from specjax.serving.engine import Engine
    from specjax.serving.tickets import Limits
    from specjax.settings import Settings
    from specjax.targets import llama
    from specjax.targets.config import LlamaConfig
    from specjax.testing.retrace import compilations
    config = LlamaConfig(vocab=64, layers=2, width=32, heads=4, kv_heads=2, head_dim=8, ffn=48, context=512, tied=True)
    model = Model(llama.target(config), llama.random_params(config, 3), config, "tiny")
    engine = Engine(model, *methods.get("lookup").build(model), Limits(slots=8, capacity=192, new_tokens=16))
    engine.warm_up()

    def some(count: int, first: int) -> None:
        for i in range(first, first + count, 32):
            for j in range(i, min(i + 32, first + count)):
                engine.submit([1 + j % 60, 2, 3][:1 + j % 3], Settings(max_new_tokens=1 + j % 16, temperature=0.5 * (j % 3), seed=j))
            engine.run()
    some(min(requests, 200), 0)
    gc.collect()
    before = len(jax.live_arrays())
    begun = time.perf_counter()
    with compilations() as counts:
        some(requests, 200)
    gc.collect()
    return {"requests": requests, "live_arrays_before": before, "live_arrays_after": len(jax.live_arrays()), "compilations": counts.compiled,
            "seconds": time.perf_counter() - begun}


def main(argv: list[str]) -> None:
    """Measures and prints."""
    del argv
    import jax

    import specjax
    from specjax import compile_cache
    say = (lambda *a: None) if _JSON.value else (lambda *a: print(*a, flush=True))
    with command.checking():
        counts = [1, 4] if _QUICK.value else [int(c) for c in _LEVELS.value]
        if min(counts) < 1:
            raise ValueError(f"concurrency is {min(counts)}: it must be at least 1")
        entry = specjax.methods.get(_METHOD.value)
        model = None if _SOAK.value else specjax.load(_TARGET.value)
    compile_cache.keep_compiled()
    if _SOAK.value:
        found = {"soak": soak(_SOAK.value)}
    else:
        found = {"method": _METHOD.value, "target": model.name, "levels": levels(model, entry, counts, say)}
    print(json.dumps({**found, "dtype": "float32", "cores": os.cpu_count(), "jax": jax.__version__, "date": datetime.date.today().isoformat()}))


if __name__ == "__main__":
    command.run(main)
