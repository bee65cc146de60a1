"""The record of what was proved: every check by name, in the order in which they run."""
from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence

from specjax.model import Model
from specjax.testing import checks, sampled
from specjax.testing.cases import chain_cases, exact_cases, settings_cases, wrong_cases
from specjax.testing.checks import Found

QUICK = ("chain of 3, independent", "k-ary (2, 2) of the likeliest", "independent (2, 2)", "without replacement (2, 2)",
         "deterministic beside without replacement", "merge of two sampled drafters", "void nodes in a chain")
"""Cases of the quick run: one of each kind of draw, a mix, a merge and a void."""

Named = tuple[str, Callable[[], Found]]


def law_checks(quick: bool) -> list[Named]:
    """Exact laws of drafts and of settings, forced texts and controls by enumeration; in full also the counted laws of the real loop."""
    exact, wrong = exact_cases(), wrong_cases()
    if quick:
        exact, wrong = [c for c in exact if c.name in QUICK], wrong[:2]
    out: list[Named] = [(c.name, lambda c=c: checks.exact_law(c)) for c in exact]
    out += [(c.name, lambda c=c: checks.exact_law(c)) for c in (settings_cases()[-2:] if quick else settings_cases())]
    out += [(c.name, lambda c=c: checks.chain_walk(c)) for c in (chain_cases()[:1] if quick else chain_cases())]
    out += [(c.name, lambda c=c: checks.match_text(c)) for c in (exact[2:4] if quick else exact) if c.vocab ** (c.depth + 1) <= 400]
    out += [(c.name, lambda c=c: checks.biased_law(c)) for c in wrong]
    if quick:
        name, composition = next(iter(sampled.compositions().items()))
        return [*out, (name, lambda: checks.counted_law(name, composition))]
    out += [(n, lambda n=n, c=c: checks.counted_law(n, c)) for n, c in sampled.compositions().items()]
    return out + [(n, lambda n=n, c=c: checks.counted_bias(n, c)) for n, c in sampled.wrong_compositions().items()]


def text_checks(model: Model, prompts: Sequence[Sequence[int]], tokens: int, temperatures: Sequence[float] = (0.0, 0.8)) -> list[Named]:
    """Token equality of every `match` method with plain sampling: the first prompt alone, then all in ragged batches of five."""
    groups, plain = [prompts[:1], *(prompts[i:i + 5] for i in range(0, len(prompts), 5))], {}

    def one(name: str) -> Found:
        found = []
        for i, group in enumerate(groups):
            if i not in plain:
                plain[i] = checks.plain_texts(model, group, tokens, temperatures)
            found.append(checks.same_text(model, name, group, plain[i]))
        note = " | ".join(f"batch {len(group)}: {f.note}" for group, f in zip(groups, found, strict=True))
        return Found(found[0].name, all(f.ok for f in found), sum(f.value for f in found), note)

    return [(n, lambda n=n: one(n)) for n in checks.text_methods()]


def run(named: Sequence[Named]) -> Iterator[tuple[Found, float]]:
    """Yields (verdict, seconds) of each check; an AssertionError is a red check, not the end."""
    for name, check in named:
        start = time.perf_counter()
        try:
            found = check()
        except AssertionError as error:
            found = Found(name, False, float("nan"), str(error))
        yield found, time.perf_counter() - start


def record(found: Sequence[tuple[Found, float]], target: str, prompts: int, tokens: int) -> dict:
    """A JSON document of a run: its date, its checks and whether all are green."""
    import jax
    return {"date": datetime.date.today().isoformat(), "jax": jax.__version__, "target": target, "prompts": prompts, "tokens": tokens,
            "ok": all(f.ok for f, _ in found), "checks": [{**f._asdict(), "seconds": round(s, 2)} for f, s in found]}
