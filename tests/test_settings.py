"""Every setting means the same with and without speculation: properties over settings, drafts and batches; twins in numpy; refusals."""
from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies

from specjax import api, decode, methods, requests, truncate
from specjax import settings as wanted
from specjax import warp as warps
from specjax.controllers.fixed import fixed
from specjax.drafters.lookup import lookup
from specjax.grammar import Automaton, from_bytes
from specjax.round import compose
from specjax.settings import Settings
from specjax.testing.settings_law import settings_law
from specjax.verifiers.match import match
from tests import tiny

BATCH, TOKENS, CAPACITY = 8, 16, 256
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
PROMPTS = [[1, 2, 3, 4, 5], [7], [9, 8, 7] * 6, [50, 51] * 10, [13] * 3, [3, 1, 4, 1, 5, 9, 2, 6], [60, 61, 60, 61, 60], [2]]
NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


# ---- twins in numpy ----

def device_law(logits: np.ndarray, s: list[Settings], prompts: list[list[int]], made: list[list[int]], paths: list[list[int]]) -> np.ndarray:
    """The same by the warp, one row each, the last tokens given as the path of a draft."""
    from specjax.testing.exact import float64
    vocab, warp = logits.shape[-1], warps.settings_warp()
    with float64():
        tokens, lengths = requests.pad_prompts(prompts, vocab)
        state = warp.init(jax.tree.map(jnp.asarray, wishes_of(s, vocab)), jnp.asarray(tokens), jnp.asarray(lengths), vocab)
        block = np.full((len(s), max(1, max(map(len, made)))), -1, np.int32)
        path = np.full((len(s), 1, max(1, max(map(len, paths)))), -1, np.int32)
        for b in range(len(s)):
            block[b, :len(made[b])], path[b, 0, :len(paths[b])] = made[b], paths[b]
        state = warp.observe(state, jnp.asarray(block), jnp.asarray([len(m) for m in made]))
        depth = jnp.asarray([[len(p)] for p in paths])
        return np.exp(np.asarray(jax.jit(warp.law)(state, jnp.asarray(logits, jnp.float64)[:, None], jnp.asarray(path), depth)))[:, 0]


def wishes_of(s: list[Settings], vocab: int) -> warps.Wishes:
    return warps.wishes(s, vocab, warps.grammar_sizes(s))


@functools.cache
def letters() -> Automaton:
    """Tokens 0..63 are one byte each; the words are (AB|C)*D, which may go on with D."""
    table = np.full((3, 256), -1)
    table[0, 65], table[1, 66], table[0, 67], table[0, 68], table[2, 68] = 1, 0, 0, 2, 2
    return from_bytes(table, np.asarray([False, False, True]), [bytes([i + 48]) for i in range(64)], "(AB|C)*D+")


def some_settings(r: Any) -> Settings:
    """Random settings; each is neutral more often than not."""
    maybe = lambda value, neutral: value if r.random() < 0.35 else neutral  # noqa: E731
    new = r.randint(1, TOKENS)
    ids = maybe(tuple(r.sample(range(17), 3)), ())
    grammar = maybe(letters(), None)
    return Settings(
        max_new_tokens=new, min_new_tokens=maybe(r.randint(0, new), 0), temperature=r.choice([0.0, 0.0, 0.5, 1.0, 1.5]),
        top_k=maybe(r.randint(1, 70), 0), top_p=maybe(r.uniform(0.2, 1.0), 1.0), min_p=maybe(r.uniform(0, 0.4), 0.0),
        typical_p=maybe(r.uniform(0.2, 1.0), 1.0),
        repetition_penalty=maybe(r.uniform(0.7, 1.6), 1.0), presence_penalty=maybe(r.uniform(-1, 2), 0.0),
        frequency_penalty=maybe(r.uniform(-1, 2), 0.0), logit_bias=maybe(tuple((t, r.uniform(-4, 4)) for t in r.sample(range(64), 3)), ()),
        banned=maybe(tuple(r.sample(range(41, 64), 2)), ()), stop_ids=(*ids, 40) if grammar else ids, grammar=grammar, seed=r.randrange(2**32),
        request_id=r.randrange(1000), draft=r.choice([None, None, 0, 1, 3]))


@given(strategies.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=UNSHRUNK)
def test_P01_the_law_of_all_settings_is_the_twins_with_history_on_the_path(r):
    rng = np.random.default_rng(r.randrange(2**31))
    s = [some_settings(r) for _ in range(BATCH)]
    words = [([19, 17, 18, 20] * 3)[:r.randint(0, 6)] for _ in s]  # inside the grammar's words for a while
    words = [[19] * len(w) if x.grammar else w for w, x in zip(words, s, strict=True)]
    cut = [r.randint(0, len(w)) for w in words]
    logits = rng.normal(size=(BATCH, 64)) * 3
    prompts = [rng.integers(0, 64, 5).tolist() for _ in s]
    mine = device_law(logits, s, prompts, [w[:c] for w, c in zip(words, cut, strict=True)], [w[c:] for w, c in zip(words, cut, strict=True)])
    for b, x in enumerate(s):
        state = None
        if x.grammar is not None:
            state = functools.reduce(x.grammar.advance, words[b], x.grammar.init())
        np.testing.assert_allclose(mine[b], settings_law(logits[b], x, prompts[b], words[b], state), atol=1e-9, err_msg=str(x))


@given(strategies.integers(0, 2**32 - 1), strategies.sampled_from([3, 64, 65, 300, 2100]))
@settings(max_examples=60, deadline=None)
def test_truncation_equals_sorting_with_ties_and_wide_k(seed, vocab):
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(size=(4, vocab)) * rng.uniform(0.1, 3), rng.integers(0, 4)).astype(np.float32)
    k, p, m = rng.integers(0, vocab + 3, (4, 1)), rng.uniform(0.05, 1, (4, 1)).astype(np.float32), rng.uniform(0, 0.3, (4, 1)).astype(np.float32)
    got = np.isfinite(np.asarray(truncate.cut(jnp.asarray(x), jnp.asarray(k, jnp.int32), jnp.asarray(p), jnp.asarray(m))))
    for b in range(4):
        kept = x[b] >= (np.sort(x[b])[::-1][min(k[b, 0], vocab) - 1] if k[b, 0] else -np.inf)
        w = np.where(kept, np.exp(x[b].astype(np.float64) - x[b].max()), 0)
        before = np.asarray([w[x[b] > v].sum() for v in x[b]]) / w.sum()
        sure = np.abs(before - p[b, 0]) > 1e-5  # a sum at the threshold itself is decided by rounding
        limit = x[b].max() + np.log(m[b, 0])
        sure &= np.abs(x[b] - limit) > 1e-5
        np.testing.assert_array_equal(got[b][sure], (kept & (before < p[b, 0]) & (x[b] >= limit))[sure])


# ---- speculation changes nothing ----

@functools.cache
def sides(verifier: Any = None) -> tuple[Any, Any]:
    """(plain, lookup) with the warp of all settings and log-probabilities."""
    model, every = tiny.model(), [Settings(top_k=1, logprobs=3)]
    plain = methods.get("plain").build(model)[0]
    return tuple(requests.equipped(m, every) for m in (plain, compose(model.target, lookup(((1, 3),)), verifier or match(), fixed())))


def run(m: Any, prompts: list[list[int]], rows: list[Settings]) -> api.Result:
    """Through one program, whatever the settings."""
    model = tiny.model()
    rows = [dataclasses.replace(s, logprobs=3) for s in rows]
    requests.check(m, prompts, rows)
    params = {"target": model.params}
    state = decode.fresh(m, params, prompts, rows, capacity=CAPACITY, room=TOKENS, grammar=(4, 8))
    tokens, lengths = requests.pad_prompts(prompts, 64, CAPACITY)
    state = decode.prefill(m, params, state, jnp.asarray(tokens), jnp.asarray(lengths))
    return api.collect(model, m, decode.finish(m, params, state), rows)


@given(strategies.randoms(use_true_random=False))
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), phases=UNSHRUNK)
def test_P02_P05_P06_P07_S12_speculative_is_plain_token_for_token(r):
    """250 batches of 8 requests: 2,000 examples, each row with settings of its own, in another order on the plain side."""
    rows = [some_settings(r) for _ in range(BATCH)]
    prompts = [PROMPTS[r.randrange(len(PROMPTS))] for _ in rows]
    order = r.sample(range(BATCH), BATCH)
    plain, fast = sides()
    want = run(plain, [prompts[i] for i in order], [rows[i] for i in order])
    got = run(fast, prompts, rows)
    for place, i in enumerate(order):
        assert got.tokens[i] == want.tokens[place], rows[i]
        assert got.reasons[i] == want.reasons[place]
        assert len(got.logprobs[i]) == len(got.tokens[i]), "O02"
        for (a, top_a), (b, top_b) in zip(got.logprobs[i], want.logprobs[place], strict=True):
            assert abs(a - b) < 1e-4 and [t for t, _ in top_a] == [t for t, _ in top_b]


def test_O01_log_probabilities_are_those_of_score():
    model = tiny.model()
    r = api.generate(model, [[1, 2, 3, 1, 2]], method=methods.get("lookup"), max_new_tokens=20, temperature=0.9, top_k=5, frequency_penalty=-2.0,
                     logprobs=2)
    np.testing.assert_allclose([p for p, _ in r.logprobs[0]], api.score(model, [1, 2, 3, 1, 2], r.tokens[0]), atol=1e-5)
    assert all(p <= top[0][1] + 1e-6 for p, top in r.logprobs[0]) and r.stats.accepted > 0


def generate(name: str = "lookup", prompts: Any = (PROMPTS[2],), **kwargs: Any) -> api.Result:
    return api.generate(tiny.model(), list(prompts), method=methods.get(name), **{"max_new_tokens": TOKENS, **kwargs})


def test_P01_P04_each_setting_changes_the_text_and_plain_agrees():
    base = generate(temperature=1.0, seed=3).tokens[0]
    changes = [{"top_k": 1}, {"top_p": 0.05}, {"min_p": 0.9}, {"typical_p": 0.05}, {"repetition_penalty": 4.0}, {"presence_penalty": 8.0},
               {"frequency_penalty": 8.0}, {"logit_bias": {5: 20.0}}, {"banned": base[:1]}, {"temperature": 3.0}, {"seed": 4}]
    for change in changes:
        mine = generate(**{"temperature": 1.0, "seed": 3, **change}).tokens[0]
        assert mine != base, change
        assert mine == generate("plain", **{"temperature": 1.0, "seed": 3, **change}).tokens[0], change
    assert generate(frequency_penalty=-2.0).tokens != generate(frequency_penalty=2.0).tokens


def test_P05_a_banned_token_never_comes_whatever_is_drafted():
    often = max(set(generate().tokens[0]), key=generate().tokens[0].count)
    assert often not in generate(banned=[often]).tokens[0] and generate(logit_bias={often: 30.0}).tokens[0] == [often] * TOKENS


def test_P06_stop_ids_wait_for_the_minimum_length():
    plain = generate().tokens[0]
    early = generate(stop_ids=[plain[0]])
    assert early.tokens[0] == plain[:1] and early.reasons == ["stop"]
    late = generate(stop_ids=[plain[0]], min_new_tokens=7, logit_bias={plain[0]: 50.0})
    assert plain[0] not in late.tokens[0][:7] and late.tokens[0][7] == plain[0] and late.reasons == ["stop"]


def test_P07_a_grammar_holds_along_drafts_and_ends():
    a = letters()
    rows = [Settings(max_new_tokens=TOKENS, temperature=t, grammar=a, stop_ids=(40,), request_id=i, min_new_tokens=i)
            for i, t in enumerate((0.0, 1.0, 1.5))]
    mine = api.generate(tiny.model(), [[19, 19, 19, 19]] * 3, method=methods.get("lookup"), settings=rows, ignore_eos=True)
    assert mine.tokens == api.generate(tiny.model(), [[19, 19, 19, 19]] * 3, method=methods.get("plain"), settings=rows, ignore_eos=True).tokens
    for tokens, reason in zip(mine.tokens, mine.reasons, strict=True):
        state = 0
        for t in tokens[:-1] if reason == "stop" else tokens:
            state = a.advance(state, t)
            assert state >= 0
        assert reason == "length" or (tokens[-1] == 40 and a.final[state])
    assert mine.stats.accepted > 0 and "stop" in mine.reasons


def test_verifiers_and_draft_lengths_mix_in_a_batch():
    rows = [Settings(max_new_tokens=TOKENS, temperature=0.8, seed=5, request_id=i, verifier=v, draft=d)
            for i, (v, d) in enumerate([("match", None), ("rejection", None), (None, 0), ("match", 2)])]
    prompts = [PROMPTS[2]] * 4
    mine = api.generate(tiny.model(), prompts, method=methods.get("lookup"), settings=rows)
    plain = generate("plain", prompts, temperature=0.8, seed=5).tokens
    assert [mine.tokens[i] == plain[i] for i in (0, 2, 3)] == [True] * 3
    assert mine.row_stats[2].drafted == 0 and mine.row_stats[2].tau == 1.0 and mine.row_stats[0].drafted > 0
    alone = api.generate(tiny.model(), prompts[:1], method=methods.get("lookup"), settings=[dataclasses.replace(rows[1])])
    assert mine.tokens[1] == alone.tokens[0] != plain[1], "the row's rule was not rejection"
    assert max(len(x) for x in (mine.row_stats[3].acceptance_at,)) <= 2


def test_n_samples_are_n_request_ids():
    two = generate(prompts=[PROMPTS[0], PROMPTS[1]], n=3, temperature=1.0)
    apart = generate(prompts=[p for p in PROMPTS[:2] for _ in range(3)], temperature=1.0)
    assert two.tokens == apart.tokens and len({tuple(t) for t in two.tokens}) == 6


def test_the_neutral_warp_is_temperature_alone():
    m = methods.get("lookup").build(tiny.model())
    every = m[0]._replace(warp=warps.settings_warp())
    rows = [Settings(max_new_tokens=TOKENS, temperature=t, request_id=i) for i, t in enumerate((0.0, 0.7, 1.0))]
    text = [api.collect(tiny.model(), x, decode.finish(x, m[1], decode.begin(x, m[1], PROMPTS[:3], settings=rows))).tokens for x in (m[0], every)]
    assert text[0] == text[1]


# ---- negative controls: what shipped code did must be red ----

@pytest.mark.parametrize("fault", ["the last row only", "request 0's settings for all", "the path is not seen"])
def test_controls_are_red(fault):
    rows = [Settings(max_new_tokens=TOKENS, temperature=t, frequency_penalty=f, request_id=i, seed=9)
            for i, (t, f) in enumerate([(0.0, 1.5), (1.0, 0.0), (0.0, 0.0), (1.0, 1.0)])]
    rows[2] = dataclasses.replace(rows[2], grammar=letters(), stop_ids=(40,), logit_bias=((17, 30.0),))  # ABAB, its drafts accepted
    prompts = [PROMPTS[2], PROMPTS[3], [17, 18] * 6, PROMPTS[4]]
    plain, fast = sides()
    want = run(plain, prompts, rows)
    good = warps.settings_warp()
    first = lambda s: s._replace(wishes=jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), s.wishes))  # noqa: E731
    raw = lambda s, x: jax.nn.log_softmax(x / jnp.maximum(s.wishes.temperature, 1e-3)[:, None, None])  # noqa: E731
    law, adjust = {
        "the last row only": (lambda s, x, p, d: jnp.where((d > 0)[..., None], good.law(s, x, p, d), raw(s, x)), good.adjust),
        "request 0's settings for all": (lambda s, x, p, d: good.law(first(s), x, p, d), lambda s, x, p, d: good.adjust(first(s), x, p, d)),
        "the path is not seen": (lambda s, x, p, d: good.law(s, x, jnp.full_like(p, -1), d),
                                 lambda s, x, p, d: good.adjust(s, x, jnp.full_like(p, -1), d)),
    }[fault]
    broken = fast._replace(warp=good._replace(law=law, adjust=adjust))
    assert run(broken, prompts, rows).tokens != want.tokens
    right = run(fast, prompts, rows)
    assert right.tokens == want.tokens and right.row_stats[2].accepted > 5


# ---- refusals ----

@pytest.mark.parametrize("bad, message", [
    ({"top_p": 0.0}, "top_p is 0"), ({"top_p": 1.5}, "top_p is 1.5"), ({"top_k": -1}, "top_k is -1"), ({"top_k": 1.5}, "top_k is 1.5"),
    ({"min_p": 2.0}, "min_p"), ({"typical_p": float("nan")}, "typical_p is nan"), ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
    ({"presence_penalty": float("inf")}, "presence_penalty"), ({"frequency_penalty": "x"}, "frequency_penalty is 'x'"),
    ({"logit_bias": {64: 1.0}}, "64"), ({"logit_bias": ((1, 2.0), (1, 3.0))}, "twice"), ({"banned": [64]}, "64"),
    ({"banned": list(range(64))}, "leave no"),
    ({"stop_ids": [-1]}, "-1"), ({"stop_ids": list(range(17))}, "at most 16"), ({"stop": [""]}, "stop is"), ({"min_new_tokens": 17}, "17"),
    ({"n": 0}, "n is 0"), ({"draft": -1}, "draft is -1"), ({"verifier": "guess"}, "guess"), ({"logprobs": 21}, "logprobs is 21"),
    ({"wish": 1}, "unknown setting 'wish'"), ({"temperature": True}, "True"), ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ({"banned": list(range(40)), "logit_bias": {i: 1.0 for i in range(64)}}, None),
])
def test_P04_bad_settings_are_refused_before_anything_is_compiled(bad, message):
    before = decode.run._cache_size(), decode._start._cache_size()
    if message is None:
        wanted.check(wanted.make(bad), 64)
        return
    with pytest.raises(ValueError, match=message):
        generate(**bad)
    assert before == (decode.run._cache_size(), decode._start._cache_size())


def test_a_grammar_that_allows_nothing_or_is_too_large_is_refused():
    one = [bytes([i + 48]) for i in range(64)]
    once = Automaton(np.asarray([[1, -1], [-1, -1]], np.int16), np.asarray([0] + [1] * 63), np.asarray([False, True]), "one token 0")
    with pytest.raises(ValueError, match="in state 1, and no stop id can end"):
        generate(grammar=once)
    with pytest.raises(ValueError, match="in state 0, with these banned"):
        generate(grammar=once, banned=[0])
    with pytest.raises(ValueError, match="allows nothing"):
        from_bytes(np.full((1, 256), -1), np.asarray([False]), one, "never")
    with pytest.raises(ValueError, match="5000 states.*320000"):
        from_bytes(np.full((5000, 256), -1), np.zeros(5000, bool), one, "huge")
    with pytest.raises(ValueError, match="8 tokens.*64"):
        generate(grammar=from_bytes(np.full((1, 256), 0), np.asarray([True]), one[:8], "short"))
