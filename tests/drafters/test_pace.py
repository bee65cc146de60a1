"""`paced`: the rows that pay, by brute force; learning; other rows of the batch; the same text."""
from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.controllers.fixed import fixed
from specjax.drafters.lookup import lookup
from specjax.drafters.pace import BINS, COSTS, bin_of, costs_for, paced, reach
from specjax.round import compose
from specjax.testing import checks
from specjax.testing.replay import replay
from specjax.testing.scripted import scripted
from specjax.types import DETERMINISTIC, EMPTY, FORCED, Draft
from specjax.verifiers.match import match
from tests import tiny

CHEAP = ((1, ((1, 1.0), (4, 1.2), (8, 1.5))), (8, ((1, 1.0), (4, 3.0), (8, 6.0))))


def test_reach_is_the_product_along_each_path():
    r = np.random.default_rng(0)
    parents = np.asarray([[0, *(r.integers(0, i) for i in range(1, 20))] for _ in range(8)], np.int32)
    chances = r.random((8, 20)).astype(np.float32)
    kind = np.where(r.random((8, 20)) < 0.1, EMPTY, DETERMINISTIC)
    kind[:, 0] = FORCED
    got = np.asarray(reach(Draft(jnp.asarray(parents), jnp.asarray(parents), jnp.asarray(kind), jnp.asarray(chances), jnp.asarray(parents)),
                           jnp.asarray(chances)))
    for b in range(8):
        for node in range(20):
            want, at = float(node > 0 and kind[b, node] != EMPTY), node
            while at > 0:
                want, at = want * chances[b, at], parents[b, at]
            assert abs(got[b, node] - want) < 1e-6


def test_bins_are_finer_towards_certainty():
    chance = jnp.asarray([[1.0, 0.0, 0.2, 0.3, 0.6, 0.9, 0.99, 1.0]])
    bins = bin_of(chance, jnp.zeros((1, 8), jnp.int32))[0, 1:].tolist()
    assert bins == [0, 0, 1, 2, 6, BINS - 1, BINS - 1]


def test_costs_are_those_of_the_next_larger_batch():
    assert costs_for(1, COSTS) == COSTS[0][1] and costs_for(2, COSTS) == COSTS[1][1] and costs_for(99, COSTS) == COSTS[-1][1]


@functools.cache
def _scripted(accepts: tuple[int, ...], **kw):
    model = tiny.model()
    m = compose(model.target, paced(scripted(7), CHEAP, **kw), match(), fixed())
    truth = checks.plain_texts(model, PROMPTS, TOKENS, (0.8,))[0.8]
    return m, {"target": model.params, "truth": jnp.asarray(truth, jnp.int32), "accepts": jnp.asarray(accepts, jnp.int32)}, truth


PROMPTS, TOKENS = [[1, 2, 3]], 96


def test_X02_a_drafter_that_is_never_right_is_soon_ignored_and_tried_again_at_times():
    m, params, truth = _scripted((0,))
    r = checks.generate(tiny.model(), m, params, PROMPTS, TOKENS, 0.8)
    assert r.tokens == truth and r.stats.rounds == TOKENS
    assert 7 < r.stats.drafted < 7 * TOKENS // 4, "most rounds must be plain ones"


def test_a_drafter_that_is_right_is_used_in_full():
    m, params, truth = _scripted((7,))
    r = checks.generate(tiny.model(), m, params, PROMPTS, TOKENS, 0.8)
    assert r.tokens == truth and r.stats.tau == 8


def test_X01_rows_that_cost_more_in_a_larger_batch_are_drafted_less():
    """Loops that pay at batch 1 do not where rows cost their number and only one text of eight loops; finished rows do not count."""
    loop, noise = [5, 6, 7] * 12, list(np.random.default_rng(1).permutation(64))
    d = paced(lookup(((1, 7),)), CHEAP)
    alone = replay(d, [loop[:9]], [loop[:27]])
    beside = replay(d, [loop[:9], *[noise[:9]] * 7], [loop[:27], *[noise[9:36]] * 7])
    assert alone.passes[0] < 8 and beside.passes[0] > 20
    short = replay(d, [loop[:9], *[noise[:9]] * 7], [loop[:27], *[noise[9:11]] * 7])
    assert beside.passes[0] > short.passes[0]


def test_lookup_paced_gives_plain_texts_and_pinned_acceptance():
    model, prompts = tiny.model(), [[1, 2, 3, 4, 5], [9, 8, 7] * 6]
    m = compose(model.target, paced(lookup(((1, 15),))), match(), fixed())
    for t, plain in checks.plain_texts(model, prompts, 32, (0.0, 0.8)).items():
        assert checks.generate(model, m, {"target": model.params}, prompts, 32, t).tokens == plain


@pytest.mark.parametrize("costs", [((1, ((2, 1.0), (4, 2.0))),), ((1, ((1, 1.0), (4, 2.0), (4, 3.0))),), ((1, ()),)])
def test_costs_that_make_no_sense_are_refused(costs):
    with pytest.raises(ValueError, match="rows must begin with 1"):
        paced(lookup(), costs)


def test_the_cut_is_redeclared_deterministic():
    made = paced(lookup(), CHEAP)
    assert made.kinds == frozenset((FORCED, DETERMINISTIC)) and made.rows == lookup().rows
