"""Every proof as a named check with a verdict: what the tests assert, the lossless experiment prints, and mutations turn red."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import api, decode, methods
from specjax.controllers.fixed import fixed
from specjax.drafters.combine import beside
from specjax.drafters.model import model as model_drafter
from specjax.expand.static import chain
from specjax.model import Model
from specjax.round import compose
from specjax.targets import llama
from specjax.targets.config import LlamaConfig
from specjax.testing import exact, forced, sampled
from specjax.testing.draws import Case, blank_context, some_draws
from specjax.testing.table_lm import table_target
from specjax.types import Array, Draft, Method, Scores, Verdict
from specjax.verifiers.match import match
from specjax.verifiers.rejection import rejection, rejection_chain

EXACT, BIASED = 1e-9, 1e-3
"""Largest error of an exact law in float64; least error at which a biased one counts as noticed."""


class Found(NamedTuple):
    """A check's verdict: `ok`, the number it looked at, and a sentence."""

    name: str
    ok: bool
    value: float
    note: str


def exact_law(case: Case) -> Found:
    """Recursive rejection gives the target's law on a case, accepts what it says, and no more than any rule could."""
    law = exact.rejection_law(case)
    fits = abs(law.total - 1) < EXACT and law.acceptance < law.bound + EXACT and abs(law.stated - law.acceptance) < 1e-6
    note = f"acceptance {law.acceptance:.4f}, stated {law.stated:.4f}, optimum {law.bound:.4f}, {law.cells} outcomes"
    return Found(f"rejection: {case.name}", law.error < EXACT and fits, law.error, note)


def chain_walk(case: Case, keys: int = 4096) -> Found:
    """`rejection_chain` gives the verdicts of the walk, coin for coin, on drafts made with real coins."""
    drawn = some_draws(case, keys)
    ctx = blank_context({}, None, None, keys, jnp.float32(case.at), None)

    @jax.jit
    def both(draft: Draft, logits: Array) -> tuple[Verdict, Verdict]:
        scores = Scores(logits)
        return rejection().verify(ctx, draft, scores), rejection_chain().verify(ctx, draft, scores)

    a, b = both(drawn.draft, drawn.logits)
    wrong = sum(int((x != y).sum()) for x, y in ((a.count, b.count), (a.next_token, b.next_token), (a.path, b.path)))
    apart = float(jnp.abs(a.go_on - b.go_on).max())
    lengths = len(set(a.count.tolist()))
    return Found(f"rejection_chain: {case.name}", wrong == 0 and apart < 2e-6 and lengths > 1, float(wrong), f"{keys} keys, {lengths} lengths")


def biased_law(case: Case) -> Found:
    """The proof notices that a case is biased."""
    law = exact.rejection_law(case)
    return Found(f"control: {case.name}", law.error > BIASED, law.error, "must be red")


def match_text(case: Case) -> Found:
    """`match` emits plain sampling's text on every draft of a case, whatever the text."""
    wrong, total = exact.match_misses(case)
    return Found(f"match: {case.name}", wrong == 0, float(wrong), f"{total} outcomes")


def counted_law(name: str, composition: tuple[Any, ...], keys: int = sampled.KEYS) -> Found:
    """The real loop's law over several rounds passes the z test."""
    c = sampled.count(*composition, keys=keys)
    return Found(f"sampled: {name}", c.z < sampled.LIMIT, c.z, f"largest |z| of {keys} keys; tau {c.tau:.2f}")


def counted_bias(name: str, composition: tuple[Any, ...], keys: int = sampled.KEYS) -> Found:
    """The z test notices that a composition is biased."""
    c = sampled.count(*composition, keys=keys)
    return Found(f"control: {name}", c.z > sampled.LIMIT, c.z, "must be red")


@functools.cache
def tiny_model(layers: int = 2) -> Model:
    """A random model of V 64, D 32, sharpened so that its laws are not flat."""
    c = LlamaConfig(vocab=64, layers=layers, width=32, heads=4, kv_heads=2, head_dim=8, ffn=48, context=1024, tied=True)
    return Model(llama.target(c), jax.tree.map(lambda x: x * 1.5, llama.random_params(c, 3)), c, "tiny")


def fresh(m: Method, label: str) -> Method:
    """The same Method under another name, so that it is traced again: a patched function is then really run."""
    return m._replace(verifier=m.verifier._replace(name=f"{m.verifier.name} [{label}]")) if label else m


def generate(model: Model, method: Method, params: dict[str, Any], prompts: Sequence[Sequence[int]], tokens: int, temperature: float,
             request_ids: Sequence[int] | None = None, seed: int = 5) -> api.Result:
    """A generation of exactly `tokens` tokens a prompt, stop ids ignored."""
    state = decode.begin(method, params, [list(p) for p in prompts], max_new_tokens=tokens, temperature=temperature, seed=seed,
                         request_ids=None if request_ids is None else list(request_ids))
    return api.collect(model, method, decode.finish(method, params, state))


def plain_texts(model: Model, prompts: Sequence[Sequence[int]], tokens: int, temperatures: Sequence[float], seed: int = 5
                ) -> dict[float, list[list[int]]]:
    """Plain sampling's texts by temperature, from one compiled program."""
    m, params = methods.get("plain").build(model)
    return {t: generate(model, m, params, prompts, tokens, t, seed=seed).tokens for t in temperatures}


def same_text(model: Model, name: str, prompts: Sequence[Sequence[int]], plain: dict[float, list[list[int]]], label: str = "",
              seed: int = 5) -> Found:
    """A `match` method gives plain sampling's texts; a fork counts as equal only if every token of it is equal or a near-tie."""
    m, params = methods.get(name).build(model)
    m, different, notes, tokens = fresh(m, label), 0, [], len(next(iter(plain.values()))[0])
    for t, want in plain.items():
        got = generate(model, m, params, prompts, tokens, t, seed=seed)
        notes.append(f"T {t:g}: tau {got.stats.tau:.2f}")
        if got.tokens != want:
            c = forced.check(model.target, model.params, prompts, got.tokens, temperature=t, seed=seed)
            notes.append(f"{c.near_ties} near-ties, {c.wrong} wrong")
            different += c.wrong + (c.near_ties == 0)
    return Found(f"text: {name}", different == 0, float(different), "; ".join(notes))


def text_methods() -> tuple[str, ...]:
    """Names of the methods that promise plain sampling's text, plain itself left out."""
    return tuple(n for n in methods.names() if methods.get(n).lossless == "text" and n != "plain")


def full_rounds(label: str = "", length: int = 3) -> Found:
    """A draft equal to the target is accepted whole in every round: tau = K + 1."""
    model = tiny_model()
    m = fresh(compose(model.target, model_drafter(model.target, chain(length)), match(), fixed()), label)
    r = generate(model, m, {"target": model.params, "draft": model.params}, [[1, 2, 3], [9]], 10 * (length + 1), 0.8)
    return Found("tau: draft equal to the target", r.stats.tau == length + 1, r.stats.tau, f"tau must be {length + 1}")


def equal_drafters(label: str = "") -> Found:
    """Two drafters of the same law among siblings: exact only if they throw different coins."""
    target = table_target(sampled.VOCAB, sampled.TOKENS - 1)
    one = model_drafter(target, chain(2))
    verifier = rejection()
    return counted_law("two equal drafters beside each other",
                       (beside(one, one), verifier._replace(name=f"{verifier.name} [{label}]") if label else verifier, fixed()))


def tiny_texts(name: str) -> tuple[Callable[[], Any], Callable[[Any, str], Found]]:
    """(prepare, run) of the text check of a method on the tiny model: the reference is made before anything is patched."""
    prompts = [[1, 2, 3, 4, 5], [7], [9, 8, 7] * 6]
    prepare = lambda: plain_texts(tiny_model(), prompts, 32, (0.8,))  # noqa: E731
    return prepare, lambda plain, label: same_text(tiny_model(), name, prompts, plain, label)
