"""Whole generations on a tiny model: stops, limits, streams, chunks, scores, compositions that are refused."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import api, decode, methods, requests, tree
from specjax.controllers.fixed import fixed
from specjax.drafters.combine import limit, merge
from specjax.drafters.lookup import lookup
from specjax.drafters.model import model as model_drafter
from specjax.drafters.none import none
from specjax.drafters.self_draft import early_exit
from specjax.expand.static import chain, gumbel
from specjax.round import compose
from specjax.verifiers.match import match
from specjax.verifiers.rejection import rejection_chain
from tests import tiny

PROMPTS = [[1, 2, 3, 4, 5], [7], [9, 8, 7] * 25]


@pytest.fixture(scope="module")
def plain() -> api.Result:
    return api.generate(tiny.model(), PROMPTS, method=methods.get("plain"), max_new_tokens=24, temperature=0.8, seed=5)


def _self(length: int = 4, **changes: object):
    model = tiny.model()
    return compose(model.target, model_drafter(model.target, chain(length)), match(), fixed(**changes)), {"draft": model.params}


def test_equal_configurations_are_equal_methods():
    assert _self()[0] == _self()[0] and hash(_self()[0]) == hash(_self()[0]) and _self(3)[0] != _self()[0]


def test_L10_a_draft_equal_to_the_target_is_accepted_whole_and_gives_the_same_text(plain: api.Result):
    method, params = _self()
    result = api.generate(tiny.model(), PROMPTS, method=method, params=params, max_new_tokens=24, temperature=0.8, seed=5)
    assert result.tokens == plain.tokens
    assert [s.rounds for s in result.row_stats] == [5, 5, 5]  # 24 tokens in rounds of 5
    assert result.stats.acceptance_at == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("depth", [0, 2])
def test_controller_limits_the_depth(plain: api.Result, depth: int):
    method, params = _self(depth=depth)
    result = api.generate(tiny.model(), PROMPTS, method=method, params=params, max_new_tokens=24, temperature=0.8, seed=5)
    assert result.tokens == plain.tokens and result.row_stats[0].rounds == 24 // (depth + 1)


def test_E01_E04_stop_inside_an_accepted_block_and_reasons(plain: api.Result):
    method, params = _self()
    for at in range(5, 10):
        stop = plain.tokens[0][at]
        first = plain.tokens[0].index(stop)
        trees = {"target": tiny.model().params, **params}
        state = decode.begin(method, trees, PROMPTS[:1], max_new_tokens=24, temperature=0.8, seed=5, stop_ids=(stop, 63))
        result = api.collect(tiny.model(), method, decode.finish(method, trees, state))
        assert result.tokens[0] == plain.tokens[0][:first + 1] and result.reasons == ["stop"]


def test_E07_limits_are_exact_and_per_row(plain: api.Result):
    method, params = _self()
    trees = {"target": tiny.model().params, **params}
    state = decode.begin(method, trees, PROMPTS, max_new_tokens=[1, 7, 13], temperature=0.8, seed=5)
    result = api.collect(tiny.model(), method, decode.finish(method, trees, state))
    assert result.tokens == [t[:n] for t, n in zip(plain.tokens, (1, 7, 13), strict=True)]
    assert result.reasons == ["length"] * 3 and [s.tokens for s in result.row_stats] == [1, 7, 13]


def test_S20_a_row_does_not_depend_on_its_neighbours(plain: api.Result):
    alone = api.generate(tiny.model(), [PROMPTS[2]], method=methods.get("plain"), max_new_tokens=24, temperature=0.8, seed=5, request_ids=[2])
    assert alone.tokens[0] == plain.tokens[2]
    other = api.generate(tiny.model(), [PROMPTS[2]], method=methods.get("plain"), max_new_tokens=24, temperature=0.8, seed=6, request_ids=[2])
    assert other.tokens[0] != plain.tokens[2]


def test_stream_equals_the_whole(plain: api.Result):
    method, params = _self()
    trees, lengths = {"target": tiny.model().params, **params}, []
    for state in decode.stream(method, trees, decode.begin(method, trees, PROMPTS, max_new_tokens=24, temperature=0.8, seed=5), 1):
        lengths.append(int(state.index[0]) + 1)
        last = [np.asarray(state.tokens)[b, :int(state.index[b]) + 1].tolist() for b in range(3)]
    assert lengths == [5, 10, 15, 20, 24] and last == plain.tokens


def test_prefill_in_small_chunks_is_prefill():
    model = tiny.model()
    method, params = compose(model.target, lookup(), match(), fixed()), {"target": model.params}
    tokens, lengths = decode.pad_prompts(PROMPTS, 64)
    whole = decode.begin(method, params, PROMPTS, max_new_tokens=8)
    start = decode.fresh(method, params, PROMPTS, requests.as_settings(3, max_new_tokens=8), capacity=int(whole.cache.k[0].shape[2]), room=64)
    small = decode.prefill(method, params, start, jnp.asarray(tokens), jnp.asarray(lengths), chunk=7)
    for name in ("root", "position", "index"):
        np.testing.assert_array_equal(getattr(small, name), getattr(whole, name))
    jax.tree.map(np.testing.assert_array_equal, small.drafter, whole.drafter)
    np.testing.assert_allclose(small.cache.k[1][2, :, :74], whole.cache.k[1][2, :, :74], atol=1e-5)


def test_score_is_the_log_probability_of_plain_decoding():
    model = tiny.model()
    got = specjax.score(model, PROMPTS[0], PROMPTS[2])
    text = [*PROMPTS[0], *PROMPTS[2]]
    draft = tree.chain(jnp.asarray(text[:1]), jnp.asarray([text[1:]]), jnp.asarray([len(text) - 1]))
    state, scratch = model.target.init(model.params, 1, 8), model.target.scratch(model.params, 1, len(text))
    logits = jax.jit(model.target.forward, static_argnums=4)(model.params, state, scratch, tree.rows(draft), ("logits",))[0]["logits"][0]
    wanted = np.asarray(jax.nn.log_softmax(logits))[np.arange(len(text) - 1), text[1:]]
    np.testing.assert_allclose(got, wanted[len(PROMPTS[0]) - 1:], atol=2e-5)
    assert got.shape == (len(PROMPTS[2]),)


@pytest.mark.parametrize(("build", "words"), [
    (lambda t: compose(t, model_drafter(t, gumbel(2)), rejection_chain(), fixed()), "rejection_chain.*without_replacement.*model"),
    (lambda t: compose(t, model_drafter(tiny.model(vocab=48).target, chain(2)), match(), fixed()), "48 tokens.*64"),
    (lambda t: compose(t, early_exit(chain(2), 2), match(), fixed()), "exits after 2 layers.*only 2"),
    (lambda t: compose(t, lookup(), match(), fixed(), buckets=(1, 8)), r"\(1, 8\).*16 rows"),
    (lambda t: merge(lookup()), "at least two"),
    (lambda t: merge(lookup(), early_exit(chain(2), 1)), "computed layers.*early_exit"),
    (lambda t: limit(none(), -1), "-1"),
    (lambda t: fixed(depth=-1), "-1"),
    (lambda t: lookup(((3, 4), (2, 8))), r"\(\(3, 4\), \(2, 8\)\)"),
    (lambda t: chain(0), r"\(\)"),
    (lambda t: methods.get("lokup"), "lokup.*known.*lookup"),
])
def test_wrong_compositions_name_both_sides(build, words):
    with pytest.raises(ValueError, match=words):
        build(tiny.model().target)


@pytest.mark.parametrize(("prompts", "settings", "words"), [
    ([[]], {}, "prompt 0 is empty"), ([], {}, "no prompt"), ([[1], [64]], {}, "prompt 1.*64.*64 tokens"), ([[-1]], {}, "-1"),
    ([[1]], {"max_new_tokens": 0}, "0.*at least 1"), ([[1]], {"max_new_tokens": -3}, "-3"), ([[1]], {"temperature": -0.1}, "-0.1"),
    ([[1]], {"temperature": float("nan")}, "nan"), ([[1] * 1100], {}, "1100.*1024"),
    ([[1] * 1000], {"max_new_tokens": 20}, r"1000.*20.*16 rows.*1024"),
    ([[1]], {"request_ids": [1, 2]}, "2 request ids for 1"),
])
def test_bad_requests_are_refused_before_anything_is_compiled(prompts, settings, words):
    compiled = decode._start._cache_size(), decode.prefill._cache_size(), decode.run._cache_size()
    with pytest.raises(ValueError, match=words):
        api.generate(tiny.model(), prompts, method=methods.get("lookup"), **{"max_new_tokens": 4, **settings})
    assert compiled == (decode._start._cache_size(), decode.prefill._cache_size(), decode.run._cache_size())
