"""The figures of a comparison as one JSON-ready record."""
from __future__ import annotations

import datetime
import os
import platform
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import specjax
from specjax.compare import Settings, Timed, total
from specjax.cost_split import CostSplit
from specjax.measure import bytes_per_token, loop_share
from specjax.methods import Entry
from specjax.model import Model


def machine() -> dict[str, Any]:
    """Machine, cores, versions and date, for every record.

    Returns:
      machine, cores, backend, versions, date, peak_memory_mb (of this process so far).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    versions = {"specjax": specjax.__version__, "jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version()}
    return {"machine": _device(), "cores": cores, "backend": jax.default_backend(), "versions": versions,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "peak_memory_mb": peak}


def _device() -> str:
    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] if info.is_file() else []
    return names[0] if names else platform.processor() or platform.machine()


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token in which two texts differ, None when they are equal.

    >>> first_difference([1, 2], [1, 2]), first_difference([1, 2], [1, 3]), first_difference([1], [1, 2])
    (None, 1, 1)
    """
    if list(a) == list(b):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def prompt_entries(plain: Timed, fast: Timed, first: int) -> list[dict[str, Any]]:
    """One entry a prompt of a batch whose first prompt has index `first`."""
    entries = []
    for b, tokens in enumerate(fast.result.tokens):
        differs, stats = first_difference(plain.result.tokens[b], tokens), fast.result.row_stats[b]
        entries.append({"index": first + b, "text": fast.result.text[b], "tokens": tokens, "drafted_by": fast.result.drafted[b],
                        "reason": fast.result.reasons[b], "same_as_plain": differs is None, "first_difference": differs,
                        "plain_token_count": len(plain.result.tokens[b]), "rounds": stats.rounds, "tau": stats.tau,
                        "acceptance": stats.acceptance, "acceptance_at": stats.acceptance_at, "loop_share": loop_share(tokens)})
    return entries


def record(model: Model, entry: Entry, sources: tuple[str, ...], settings: Settings, batch: int, pairs: Sequence[tuple[Timed, Timed]],
           cost: CostSplit, bandwidth: float, start: dict[str, float]) -> dict[str, Any]:
    """The whole run.

    Args:
      model, entry: what ran. sources: names of the method's drafters. settings, batch: as asked. pairs: (plain, method) of each
      batch. cost: of the first batch. bandwidth: gigabytes a second. start: seconds to the first text and their parts.

    Returns:
      A dict of JSON values. "text" and "tokens" are those of the prompt, or lists over prompts when there are several.
    """
    entries: list[dict[str, Any]] = []
    for plain, fast in pairs:
        entries += prompt_entries(plain, fast, len(entries))
    plains, fasts = zip(*pairs, strict=True)
    several, needed = len(entries) > 1, bytes_per_token(model.params)
    counts = [len(e["tokens"]) for e in entries]
    stats = total(fasts, sources)
    plain_rate, rate = (sum(s.tokens for s in sides) / sum(s.decode_s for s in sides) for sides in (plains, fasts))
    return {
        "text": [e["text"] for e in entries] if several else entries[0]["text"],
        "tokens": [e["tokens"] for e in entries] if several else entries[0]["tokens"],
        "same_as_plain": all(e["same_as_plain"] for e in entries), "lossless": entry.lossless, "speedup": rate / plain_rate,
        "tau": stats.tau, "plain_tokens_per_second": plain_rate, "tokens_per_second": rate,
        "plain_prefill_seconds": sum(s.prefill_s for s in plains), "prefill_seconds": sum(s.prefill_s for s in fasts),
        "rounds": stats.rounds, "drafted": stats.drafted, "accepted": stats.accepted, "accepted_by_source": stats.by_source,
        "acceptance": stats.acceptance, "acceptance_at": stats.acceptance_at,
        "passes": {rows: sum(f.passes[rows] for f in fasts) for rows in fasts[0].passes}, "cost": cost._asdict(),
        "bandwidth": bandwidth, "bytes_per_token": needed, "bound_tokens_per_second": min(batch, len(entries)) * bandwidth * 1e9 / needed,
        "loop_share": sum(e["loop_share"] * len(e["tokens"]) for e in entries) / max(1, sum(counts)), "token_counts": counts,
        "method": entry.name, "target": model.name, "temperature": settings.temperature, "seed": settings.seed, "batch": batch,
        "max_new_tokens": settings.max_new_tokens, "repeats": settings.repeats, "dtype": str(jax.tree.leaves(model.params)[0].dtype),
        "start": start, **machine(), "prompts": entries}
