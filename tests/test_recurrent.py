"""A target whose state cannot be cut back or addressed: the round works if it never looks inside a cache."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decode, tree
from specjax.controllers.fixed import fixed
from specjax.drafters.lookup import lookup
from specjax.drafters.model import model as model_drafter
from specjax.drafters.none import none
from specjax.expand.dynamic import dynamic
from specjax.expand.static import chain, kary
from specjax.round import compose
from specjax.testing.recurrent import random_params, recurrent_target
from specjax.testing.scripted import scripted
from specjax.types import Rows
from specjax.verifiers.match import match

TARGET = recurrent_target(32, 24)
PROMPTS, TOKENS = [[1, 2, 3] * 30, [7]], 40


@functools.cache
def params() -> dict:
    target = jax.tree.map(jnp.asarray, random_params(32, 24))
    noise = random_params(32, 24, seed=1)
    return {"target": target, "draft": {k: v + 0.1 * noise[k] for k, v in target.items()}}


def run(drafter, temperature: float, **trees):
    m = compose(TARGET, drafter, match(), fixed())
    state = decode.begin(m, params() | trees, PROMPTS, max_new_tokens=TOKENS, temperature=temperature, seed=1)
    return decode.finish(m, params() | trees, state)


@functools.cache
def plain(temperature: float) -> np.ndarray:
    return np.asarray(run(none(), temperature).tokens)[:, :TOKENS]


@pytest.mark.parametrize("drafter", [lookup(((1, 3),)), model_drafter(TARGET, chain(3)), model_drafter(TARGET, kary(2, 2)),
                                     model_drafter(TARGET, dynamic(3, 3, 7))], ids=lambda d: d.name)
def test_L05_text_is_plain_samplings(drafter):
    for temperature in (0.0, 0.8):
        state = run(drafter, temperature)
        np.testing.assert_array_equal(np.asarray(state.tokens)[:, :TOKENS], plain(temperature))
        assert int(state.statistics.accepted_at.sum()) > 0


def test_L06_state_after_every_accept_count_is_that_of_a_sequential_run():
    k, accepts = 4, (0, 1, 3, 4, 2)
    state = run(scripted(k), 0.8, truth=jnp.asarray(plain(0.8)), accepts=jnp.asarray(accepts, jnp.int32))
    np.testing.assert_array_equal(np.asarray(state.tokens)[:, :TOKENS], plain(0.8))
    np.testing.assert_allclose(state.cache.h, run(none(), 0.8).cache.h, atol=1e-5)
    assert np.all(np.asarray(state.statistics.accepted_at[:, :k]).min(axis=0) > 0)


def test_states_of_a_tree_are_those_of_its_paths():
    p, parents = params()["target"], jnp.asarray([[0, 0, 0, 1, 2, 4]], jnp.int32)
    tokens = jnp.asarray([[3, 5, 6, 7, 8, 9]], jnp.int32)
    mask = jax.vmap(tree.ancestors)(parents)
    cache = TARGET.init(p, 1, 0)
    features, _ = TARGET.forward(p, cache, TARGET.scratch(p, 1, 6), Rows(tokens, jax.vmap(tree.depths)(parents), mask, 0), ("final", "logits"))
    for row, path in ((3, (3, 5, 7)), (5, (3, 6, 8, 9))):
        line = tree.chain(jnp.asarray(path[:1]), jnp.asarray([path[1:]]), jnp.asarray([len(path) - 1]))
        alone, _ = TARGET.forward(p, cache, TARGET.scratch(p, 1, len(path)), tree.rows(line), ("final",))
        np.testing.assert_allclose(features["final"][0, row], alone["final"][0, -1], atol=1e-6)
    np.testing.assert_allclose(TARGET.readout(p, features["final"].transpose(2, 0, 1)), features["logits"], atol=1e-5)
