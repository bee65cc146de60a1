"""Same seed, same text: every `match` method on a tiny random model, in a ragged batch and alone, greedy and sampled."""
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import methods
from specjax.controllers.fixed import fixed
from specjax.drafters.lookup import lookup
from specjax.drafters.model import model as model_drafter
from specjax.expand.static import chain
from specjax.round import compose
from specjax.testing import checks
from specjax.testing.scripted import scripted
from specjax.verifiers.match import match
from tests import tiny

PROMPTS = [[1, 2, 3, 4, 5], [7], [9, 8, 7] * 6, [50, 51] * 10, [13] * 3]
TOKENS, TEMPERATURES = 32, (0.0, 0.8)
ALONE = ("lookup", "model", "early_exit")
"""Methods whose rows are also generated alone: one of each way to draft. Another batch size is another program to compile."""


@functools.cache
def plain() -> dict[float, list[list[int]]]:
    return checks.plain_texts(tiny.model(), PROMPTS, TOKENS, TEMPERATURES)


@pytest.mark.parametrize("name", checks.text_methods())
def test_every_match_method_gives_plain_samplings_text(name: str):
    m, params = methods.get(name).build(tiny.model())
    accepted = 0
    for t in TEMPERATURES:
        r = checks.generate(tiny.model(), m, params, PROMPTS, TOKENS, t)
        assert r.tokens == plain()[t], (name, t)
        accepted += r.stats.accepted
        if name not in ALONE:
            continue
        alone = checks.generate(tiny.model(), m, params, [PROMPTS[3]], TOKENS, t, request_ids=[3])
        assert alone.tokens[0] == plain()[t][3], (name, t)
    assert accepted > 0, "nothing was accepted: these texts prove nothing"


def test_seeds_and_request_ids_name_the_text():
    m, params = methods.get("plain").build(tiny.model())
    text = plain()[0.8]
    again = checks.generate(tiny.model(), m, params, PROMPTS[::-1], TOKENS, 0.8, request_ids=[4, 3, 2, 1, 0])
    assert again.tokens == text[::-1]
    assert checks.generate(tiny.model(), m, params, PROMPTS, TOKENS, 0.8, seed=6).tokens != text
    assert checks.generate(tiny.model(), m, params, PROMPTS, TOKENS, 0.8, request_ids=[5, 6, 7, 8, 9]).tokens != text


def test_S10_S11_rows_of_different_temperatures_share_a_batch():
    m, params = methods.get("lookup").build(tiny.model())
    mixed = [0.8, 0.0, 0.8, 0.0, 0.8]
    got = checks.generate(tiny.model(), m, params, PROMPTS, TOKENS, mixed).tokens
    assert got == [plain()[t][i] for i, t in enumerate(mixed)]


def test_L10_a_draft_equal_to_the_target_fills_every_round():
    found = checks.full_rounds()
    assert found.ok, found


@pytest.mark.parametrize("accepts", [(0,), (1,), (3,), (4,), (0, 1, 3, 4), (4, 0, 2)])
def test_L01_scripted_acceptance_is_counted_exactly(accepts: tuple[int, ...]):
    """Each round accepts what the script says, so tokens, rounds and acceptance by depth are known in closed form."""
    model, k = tiny.model(), 4
    truth = jnp.asarray(np.asarray(plain()[0.8])[:2], jnp.int32)
    m = compose(model.target, scripted(k), match(), fixed())
    script = jnp.asarray(np.resize(accepts, 12), jnp.int32)  # one size: compiled once
    rounds, total = 0, 0
    while total + accepts[rounds % len(accepts)] + 1 <= TOKENS - k:  # before the limit begins to clip
        total, rounds = total + accepts[rounds % len(accepts)] + 1, rounds + 1
    r = checks.generate(model, m, {"target": model.params, "truth": truth, "accepts": script}, PROMPTS[:2], total, 0.8)
    assert r.tokens == [t[:total] for t in plain()[0.8][:2]]
    done = [accepts[i % len(accepts)] for i in range(rounds)]
    assert [s.rounds for s in r.row_stats] == [rounds, rounds] and r.stats.accepted == 2 * sum(done)
    assert r.drafted[0] == sum(([1] * a + [0] for a in done), [])
    left = [total - sum(x + 1 for x in done[:i]) for i in range(rounds)]
    deep = [min(k, n - 1) for n in left]  # a draft never reaches beyond the limit
    at = [(sum(x > d for x in done), sum(x > d for x in deep)) for d in range(k)]
    assert r.stats.acceptance_at == tuple(x / y for x, y in at if y)


def test_acceptance_of_coupled_drafts_is_pinned():
    """Drafters are seeded functions of the text: a change of these numbers is a change of a drafter or of how it is paced."""
    model = tiny.model()
    unpaced = compose(model.target, lookup(), match(), fixed()), {"target": model.params}
    built = {"unpaced lookup": unpaced} | {name: methods.get(name).build(model) for name in ("lookup", "model", "kary")}
    stats = {name: checks.generate(model, *both, PROMPTS, TOKENS, 0.0 if "lookup" in name else 0.8).stats for name, both in built.items()}
    assert {name: (s.rounds, s.accepted) for name, s in stats.items()} == PINNED


PINNED = {"unpaced lookup": (139, 21), "lookup": (151, 9), "model": (106, 54), "kary": (102, 58)}  # rounds and accepted tokens of 160


def test_L14_rows_with_other_drafts_do_not_disturb_each_other():
    """Two drafters accept different counts in different rows of one batch; each row is as alone."""
    model = tiny.model()
    m = compose(model.target, lookup(((1, 3),)), match(), fixed())
    r = checks.generate(model, m, {"target": model.params}, PROMPTS, TOKENS, 0.0)
    assert r.tokens == plain()[0.0] and len({s.rounds for s in r.row_stats}) > 1
    assert compose(model.target, model_drafter(model.target, chain(2)), match(), fixed()).depth == 2
