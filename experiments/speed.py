"""What a pass costs on this machine: milliseconds by rows, used length and batch; plain decoding beside a bare loop and the bound.

    python -m experiments.speed            # the whole table, about ten minutes on two cores
    python -m experiments.speed --quick    # rows 1, 4, 16 at one length
    python -m experiments.speed --json     # one JSON line on stdout and nothing else
"""
from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import time
from typing import Any

from absl import flags

from experiments import command

_TARGET = flags.DEFINE_string("target", "smollm2-135m-instruct", "Model: a known name, a .gguf file, or a safetensors folder.")
_ROWS = flags.DEFINE_list("rows", ["1", "4", "8", "16", "32", "64"], "Rows of a pass.")
_USED = flags.DEFINE_list("used", ["128", "256", "512", "1024", "2048"], "Cache slots in use.")
_BATCH = flags.DEFINE_list("batch", ["1", "4", "8"], "Sequences of a pass.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed repetitions; medians are printed.", lower_bound=1)
_TOKENS = flags.DEFINE_integer("tokens", 100, "Tokens of the plain loop and of the bare loop beside it.", lower_bound=8)
_QUICK = flags.DEFINE_bool("quick", False, "Rows 1, 4, 16 at 256 slots and batch 1 only.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON line on stdout, nothing else.")


def plain_beside_bare(model: Any, tokens: int, repeats: int) -> dict[str, Any]:
    """Plain decoding through the round, the bare loop and the reading bound, interleaved; used length about 256."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import specjax
    from specjax import decode, pass_cost
    m, params = specjax.methods.get("plain").build(model)
    prompt = [[1 + i % 1000 for i in range(max(1, 256 - tokens // 2))]]
    plain, bare, read = [], [], []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(pass_cost._read_all(params["target"], 8))
        read.append((time.perf_counter() - start) / 8)
        state = decode.begin(m, params, prompt, max_new_tokens=tokens)
        copy = jax.block_until_ready((jax.tree.map(jnp.copy, state.cache), jnp.copy(state.root)))
        start = time.perf_counter()
        out = jax.block_until_ready(pass_cost.bare_loop(m.target, params["target"], *copy, tokens)[2])
        bare.append((time.perf_counter() - start) / tokens)
        start = time.perf_counter()
        state = jax.block_until_ready(decode.finish(m, params, state))
        plain.append((time.perf_counter() - start) / tokens)
        if not np.array_equal(np.asarray(out)[0], np.asarray(state.tokens)[0, :tokens]):
            raise RuntimeError("the bare loop and plain decoding gave different tokens")
    p, b, r = (1e3 * statistics.median(x[1:]) for x in (plain, bare, read))
    moved = sum(x.nbytes for x in jax.tree.leaves(params["target"]) if x.ndim == 2)
    return {"plain_ms": p, "bare_ms": b, "read_ms": r, "plain_over_bare": p / b, "share_of_bound": r / p, "plain_tokens_per_second": 1e3 / p,
            "parameter_megabytes": moved / 1e6, "bandwidth_gigabytes_per_second": moved / r / 1e6}


def main(argv: list[str]) -> None:
    """Measures and prints."""
    del argv
    import jax

    import specjax
    from specjax import pass_cost
    with command.checking():
        if min(int(x) for x in (*_ROWS.value, *_USED.value, *_BATCH.value)) < 1:
            raise ValueError("rows, used and batch must each be 1 or more")
        model = specjax.load(_TARGET.value)
    say = (lambda *a: None) if _JSON.value else (lambda *a: print(*a, flush=True))
    rows, used, batch = ((1, 4, 16), (256,), (1,)) if _QUICK.value else ([int(x) for x in f.value] for f in (_ROWS, _USED, _BATCH))
    record = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "dtype": "float32", "jax": jax.__version__,
              "date": datetime.date.today().isoformat(), "target": model.name, "plain": plain_beside_bare(model, _TOKENS.value, _REPEATS.value)}
    say("\n".join(f"{k:>32}  {v:.3f}" for k, v in record["plain"].items()))
    say(f"\n{'batch':>6}{'rows':>6}" + "".join(f"{u:>9}" for u in used) + "   median ms at used length; first call, s")
    table, capacity = [], 256 * -(-(max(used) + 256) // 256)
    for b in batch:
        for r in rows:
            costs = [pass_cost.pass_cost(model.target, model.params, r, b, u, repeats=_REPEATS.value, capacity=capacity) for u in used]
            table += [{"batch": b, "rows": r, "used": u, **c._asdict()} for u, c in zip(used, costs, strict=True)]
            say(f"{b:>6}{r:>6}" + "".join(f"{c.median_ms:>9.1f}" for c in costs) + f"   {costs[0].first_s:.1f}")
    record["passes"] = table
    if _JSON.value:
        print(json.dumps(record))


if __name__ == "__main__":
    command.run(main)
