"""The exact law by enumeration: every expansion, every mix of siblings, on vocabularies of 3 to 6; and the wrong rules it must notice."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.expand.static import chain, gumbel, independent, kary
from specjax.settings import Settings
from specjax.testing import checks, draws, exact
from specjax.testing.cases import case, chain_cases, exact_cases, settings_cases, wrong_cases
from specjax.testing.draws import all_draws, blank_context, events, some_draws
from specjax.testing.table_lm import joint_law, prefixes, random_table
from specjax.types import DETERMINISTIC, INDEPENDENT, Scores
from specjax.verifiers.rejection import rejection
from specjax.warp import settings_warp

BY_NAME = {c.name: c for c in (*exact_cases(), *wrong_cases(), *settings_cases())}


@pytest.mark.parametrize("name", [c.name for c in exact_cases()])
def test_rejection_gives_the_exact_law(name: str):
    found = checks.exact_law(BY_NAME[name])
    assert found.ok, found


@pytest.mark.parametrize("name", [c.name for c in settings_cases()])
def test_P01_P02_every_setting_under_rejection_gives_the_exact_law_with_history_on_the_path(name: str):
    found = checks.exact_law(BY_NAME[name])
    assert found.ok, found
    bare = BY_NAME[name]._replace(settings=Settings(temperature=1.0))
    assert np.abs(exact.target_law(bare, bare.depth + 1) - exact.target_law(BY_NAME[name], bare.depth + 1)).max() > 0.01  # the setting matters


@pytest.mark.parametrize("wish", ["frequency_penalty: independent (2, 2)", "stop_ids grammar: chain of 2"])
def test_P02_history_without_the_path_is_noticed(monkeypatch, wish: str):
    """Shipped elsewhere: penalties and grammar that know the committed text only."""
    good = settings_warp()
    monkeypatch.setattr(draws, "settings_warp", lambda: good._replace(law=lambda s, x, p, d: good.law(s, x, jnp.full_like(p, -1), d)))
    jax.clear_caches()
    assert not checks.exact_law(BY_NAME[wish]).ok
    jax.clear_caches()


@pytest.mark.parametrize("name", [c.name for c in wrong_cases()])
def test_wrong_rules_fail_the_exact_law(name: str):
    found = checks.biased_law(BY_NAME[name])
    assert found.ok, found
    assert not checks.exact_law(BY_NAME[name]).ok


@pytest.mark.parametrize("name", ["independent (2, 2)", "without replacement (2, 2)", "dynamic (3, 3, 6)", "merge of two sampled drafters",
                                  "void nodes in a chain", "deterministic beside independent"])
def test_match_emits_the_texts_own_tokens_on_every_draft(name: str):
    found = checks.match_text(BY_NAME[name])
    assert found.ok, found


def test_one_candidate_reaches_the_optimum_and_a_biased_rule_exceeds_it():
    law = exact.rejection_law(BY_NAME["chain of 3, independent"])
    assert abs(law.acceptance - law.bound) < 1e-12  # 1 - TV
    biased = exact.rejection_law(BY_NAME["argmax declared as sampled"])
    assert biased.acceptance > biased.bound + 0.1


def test_enumeration_is_complete_and_draws_happen_where_it_says():
    assert [(row, len(r)) for row, r in events(BY_NAME["independent (2, 2)"].leaves[0], 3)] == [(r, 3) for r in range(1, 7)]
    with exact.float64():
        drawn = all_draws(BY_NAME["without replacement (2, 2)"])
    assert len(drawn.weight) == 12**3 and abs(drawn.weight.sum() - 1) < 1e-12 and drawn.logits.dtype == jnp.float64
    tokens = np.asarray(drawn.draft.tokens)
    assert np.all(tokens[:, 1] != tokens[:, 2]) and len(np.unique(tokens, axis=0)) == 12**3


def test_joint_law_by_hand():
    table = random_table(2, 1, 0)["table"]
    law = np.exp(table) / np.exp(table).sum(1, keepdims=True)
    assert prefixes(2, 1) == 3
    expected = [[law[0, a] * law[1 + a, b] for b in range(2)] for a in range(2)]
    np.testing.assert_allclose(joint_law(table, 2, 2), expected, rtol=1e-12)
    np.testing.assert_array_equal(joint_law(np.asarray([[0.0, 1.0]] * 4), 2, 1, temperature=0.0), [0.0, 1.0])


def _judge(verify, drawn, at: float = 1.0):
    ctx = blank_context({}, None, None, drawn.draft.tokens.shape[0], jnp.float32(at), None)
    return jax.jit(lambda d, x: verify(ctx, d, Scores(x)))(drawn.draft, drawn.logits)


@pytest.mark.parametrize("made", chain_cases(), ids=lambda c: c.name)
def test_parallel_chain_equals_the_walk_coin_for_coin(made):
    found = checks.chain_walk(made)
    assert found.ok, found
    assert found.note == f"4096 keys, {3 if 'cut' in made.name else 4} lengths"  # every length occurs


def test_S09_a_token_the_target_cannot_give_is_never_accepted():
    """The target forbids token 0; drafts propose it in a quarter of the rounds, and coins of every size judge it."""
    drawn = some_draws(case("s", 4, chain(1)), 4096)
    drawn = drawn._replace(logits=drawn.logits.at[..., 0].set(-jnp.inf))
    verdict = _judge(rejection().verify, drawn)
    proposed = np.asarray(drawn.draft.tokens)[:, 1] == 0
    assert proposed.sum() > 300 and np.all(np.asarray(verdict.count)[proposed] == 1) and np.all(np.asarray(verdict.next_token) != 0)


def test_S07_equal_laws_accept_everything_and_stay_finite():
    drawn = some_draws(case("e", 4, chain(1)), 4096)
    q = drawn.draft.proposal.log_q[:, 0]
    verdict = _judge(rejection().verify, drawn._replace(logits=drawn.logits.at[:, 0].set(q)))
    assert np.all(np.asarray(verdict.count) == 2) and np.all((np.asarray(verdict.next_token) >= 0) & (np.asarray(verdict.next_token) < 4))
    np.testing.assert_allclose(verdict.go_on[:, 0], 1.0, atol=1e-6)


def test_S15_deterministic_children_by_hand():
    """p = (.3, .5, .2), children 0 and 1: the residual after both is token 2, and the law stays p."""
    for k, bound in ((1, 0.3), (2, 0.8)):
        made = case("hand", 3, kary(k))
        with exact.float64():
            drawn = all_draws(made)
            draft = drawn.draft._replace(tokens=jnp.asarray([[0, *range(k)]], jnp.int32))
            u = np.where(np.arange(2) > 0, np.inf, 0.0)[:, None] * np.ones((2, k + 1))
            logits = jnp.log(jnp.asarray([0.3, 0.5, 0.2]))[None, None] * jnp.ones((1, k + 1, 1))
            chance, _, _, _, law, _ = (np.asarray(x) for x in exact._walk(draft, logits, u, jnp.asarray(1.0), 2))
        rejected = np.asarray([[0, 5 / 7, 2 / 7], [0, 0, 1]][k - 1])
        np.testing.assert_allclose(law[1], rejected, atol=1e-12)
        accepted = chance[1, 1] + (0 if k == 1 else (1 - chance[1, 1]) * chance[1, 2])
        np.testing.assert_allclose(accepted, bound, atol=1e-12)


def test_kinds_of_the_cases_cover_all_kinds():
    kinds = set().union(*(c.drafter.kinds for c in exact_cases()))
    assert {DETERMINISTIC, INDEPENDENT} < kinds and {c.vocab for c in exact_cases()} == {3, 4, 5, 6}
    assert gumbel(2).kinds - independent(2).kinds
