"""Combinators on given trees: what is kept, in which order, whose it is; and a bandit that finds the best arm."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import tree
from specjax.controllers.bandit import bandit, cost_of
from specjax.controllers.fixed import fixed
from specjax.drafters.choose import cascade, select
from specjax.drafters.combine import merge
from specjax.drafters.copies import automaton
from specjax.drafters.graft import graft, hierarchy, pruned_merge
from specjax.drafters.lookup import lookup
from specjax.testing.cases import armed
from specjax.testing.draws import blank_context
from specjax.testing.replay import replay
from specjax.types import DETERMINISTIC, EMPTY, FORCED, Draft, Drafter, Outcome, Plan, Verdict
from tests.drafters.invariants import check_draft

Paths = dict[tuple[int, ...], float]


@functools.cache
def given(paths: tuple[tuple[tuple[int, ...], float], ...], rows: int, name: str) -> Drafter:
    """A drafter that always drafts these paths with these scores, below root 0, in a batch of 1."""
    place = {(): 0} | {p: i + 1 for i, (p, _) in enumerate(paths)}
    pad = rows - 1 - len(paths)
    made = Draft(jnp.asarray([[0, *(p[-1] for p, _ in paths), *[0] * pad]]), jnp.asarray([[0, *(place[p[:-1]] for p, _ in paths), *[0] * pad]]),
                 jnp.asarray([[FORCED, *[DETERMINISTIC] * len(paths), *[EMPTY] * pad]]),
                 jnp.asarray([[1.0, *(s for _, s in paths), *[0.0] * pad]]), jnp.zeros((1, rows), jnp.int32))
    return Drafter(lambda *_: (), lambda ctx, s, plan: (made, s), lambda ctx, s, o: s, rows, max([len(p) for p, _ in paths], default=0),
                   frozenset((FORCED, DETERMINISTIC)), name, sources=(name,))


def of(paths: Paths, rows: int = 8, name: str = "a") -> Drafter:
    return given(tuple(paths.items()), rows, name)


def run(drafter: Drafter, arm: int = 0) -> tuple[Paths, dict[tuple[int, ...], int], Draft]:
    """(paths with their scores, paths with their sources, the draft)."""
    ctx = blank_context({}, None, None, 1, jnp.float32(0), None)
    plan = Plan(jnp.full(1, 99), jnp.full(1, 99), jnp.int32(arm))
    d = jax.jit(lambda: drafter.draft(ctx, drafter.init({}, 1, 8, 8), plan)[0])()
    check_draft(d)
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for r in range(1, d.tokens.shape[1]):
        if d.kind[0, r] != EMPTY:
            paths[r] = (*paths[int(d.parents[0, r])], int(d.tokens[0, r]))
    live = [(r, p) for r, p in paths.items() if r]
    return {p: round(float(d.score[0, r]), 4) for r, p in live}, {p: int(d.source[0, r]) for r, p in live}, d


A = {(1,): 0.5, (2,): 0.25, (1, 3): 0.5, (1, 3, 4): 0.125}
B = {(2,): 0.5, (2, 5): 0.5, (7,): 0.125}


@pytest.mark.parametrize("how,two", [("max", 0.5), ("sum", 0.75), ("noisy_or", 0.625)])
def test_merge_adds_up_scores_and_keeps_the_best_first(how: str, two: float):
    paths, source, d = run(merge(of(A), of(B, name="b"), rows=16, how=how))
    assert paths == {**A, **B, (2,): two} and source[(2,)] == 0 and source[(2, 5)] == 1
    best, _, _ = run(merge(of(A), of(B, name="b"), rows=5, how=how))
    assert set(best) == {(1,), (2,), (1, 3), (2, 5)} and list(np.diff(np.asarray(d.score)[0]) <= 0) == [True] * (d.score.shape[1] - 1)
    with pytest.raises(ValueError, match="how is 'mean'"):
        merge(of(A), of(B, name="b"), how="mean")


def test_cascade_falls_back_below_its_bar():
    first, second = of(A), of(B, name="b")
    assert run(cascade(first, second, least=(1.3,)))[0] == A          # 1.375 expected
    paths, source, _ = run(cascade(first, second, least=(1.4,)))
    assert paths == B and set(source.values()) == {1}
    assert run(cascade(first, second, of({(9,): 0.1}, name="c"), least=(1.4, 2.0)))[0] == {(9,): 0.1}
    with pytest.raises(ValueError, match="3 thresholds for 2 drafters"):
        cascade(first, second, least=(1.0, 1.0, 1.0))


def test_select_runs_the_arm_that_the_plan_names():
    chosen = select(of(A), of(B, rows=6, name="b"))
    assert run(chosen)[0] == A and run(chosen, 1)[0] == B and set(run(chosen, 1)[1].values()) == {1}


def test_graft_keeps_its_quota_and_fills_the_rest():
    confident = {(1,): 0.9, (1, 2): 0.8, (1, 2, 3): 0.7, (4,): 0.1}
    filler = of({(1,): 0.5, (6,): 0.25, (1, 7): 0.25, (6, 8): 0.125}, name="b")
    stages = ((1, 0.35, 1), (2, 0.25, 2))
    assert run(graft(of(confident), filler, rows=6, stages=stages))[0] == confident  # no checkpoint fires: no filler
    unsure = {(1,): 0.3, (1, 2): 0.2, (4,): 0.1}
    paths, source, d = run(graft(of(unsure), filler, rows=5, stages=stages))
    assert set(paths) == {(1,), (6,), (1, 7), (6, 8)} and d.kind.shape[1] == 5 and (np.asarray(d.kind) != EMPTY).all()
    assert [source[p] for p in ((1,), (6,), (1, 7))] == [0, 1, 1]
    late = {(1,): 0.5, (4,): 0.3, (1, 2): 0.2}
    assert set(run(graft(of(late), filler, rows=4, stages=stages))[0]) == {(1,), (4,), (6,)}  # the second stage keeps two
    always = run(graft(of(confident), filler, rows=5, stages=((1, 2.0, 0),)))[0]
    assert set(always) == {(1,), (6,), (1, 7), (6, 8)}                                        # all rows to the filler
    with pytest.raises(ValueError, match="ascending depths"):
        graft(of(A), filler, stages=((2, 0.1, 1), (1, 0.1, 1)))


def test_hierarchy_hears_a_level_only_if_the_ones_before_found_too_little():
    first, second, third = of({(1, ): 0.1, (1, 2): 0.1}), of({(3,): 0.9, (4,): 0.8}, name="b"), of({(5,): 1.0}, name="c")
    assert set(run(hierarchy(first, second, third, need=1))[0]) == {(1,), (1, 2)}
    assert set(run(hierarchy(first, second, third, need=3))[0]) == {(1,), (1, 2), (3,), (4,)}
    paths, source, _ = run(hierarchy(first, second, third, need=4))
    assert len(paths) == 5 and [source[p] for p in ((1,), (3,), (5,))] == [0, 1, 2]
    assert set(run(hierarchy(first, second, third, need=4, rows=4))[0]) == {(1,), (1, 2), (3,)}  # earlier levels first, whatever their scores


def test_pruned_merge_equals_a_dictionary_of_paths():
    model = {(1,): 0.5, (2,): 0.25, (1, 3): 0.25}
    found = {(2,): 0.5, (2, 4): 0.5, (1,): 0.25, (1, 3): 0.25, (9,): 0.25, (9, 9): 0.25}
    want = dict(model)
    for path, score in found.items():
        q = model.get(path[:1], 0.0)
        if q >= 0.1:
            want[path] = max(want.get(path, 0.0), score * q)
    paths, _, _ = run(pruned_merge(of(model), of(found, name="b"), rows=16, least=0.1))
    assert paths == want and (9,) not in paths
    assert run(pruned_merge(of(model), of({}, name="b"), rows=16))[0] == model  # an empty store: the model's own tree


def test_equal_paths_are_found_by_doubling():
    rng = np.random.default_rng(0)
    parents = np.asarray([[0] + [int(rng.integers(0, i)) for i in range(1, 24)] for _ in range(20)], np.int32)
    tokens, kind = rng.integers(0, 2, (20, 24)).astype(np.int32), np.full((20, 24), DETERMINISTIC)
    kind[:, 0], kind[:, 20:] = FORCED, EMPTY
    d = Draft(*(jnp.asarray(x) for x in (tokens, parents, kind, np.ones((20, 24), np.float32), 0 * tokens)))
    same = np.asarray(jax.jit(tree.same_paths, static_argnums=1)(d, 23))
    for b in range(20):
        spelled = {0: ()}
        for r in range(1, 24):
            spelled[r] = (*spelled[int(parents[b, r])], int(tokens[b, r]))
        for i in range(24):
            for j in range(24):
                assert same[b, i, j] == (spelled[i] == spelled[j] and max(i, j) < 20)


def test_a_bandit_finds_the_arm_that_gains_most_and_forgets():
    b = bandit(3, memory=0.9, explore=0.1)
    ctx, verdict = blank_context({}, None, None, 2, jnp.float32(0), None), None
    gains, rows = jnp.asarray([1, 4, 3]), jnp.asarray([1, 4, 16])

    @jax.jit
    def step(state, swap):
        plan, state = b.plan(ctx, state)
        arm = plan.arm
        count = jnp.full(2, jnp.where(swap, gains[::-1][arm], gains[arm]))
        verdict = Verdict(jnp.zeros((2, 1), jnp.int32), count, jnp.zeros(2, jnp.int32), jnp.zeros((2, 1)))
        return arm, b.observe(state, Outcome(None, verdict, {}, plan, jnp.where(swap, 4, rows[arm])))

    state, arms = b.init(2), []
    for i in range(120):
        arm, state = step(state, i >= 60)
        arms.append(int(arm))
    assert arms[:3] == [0, 1, 2] and arms[30:60].count(1) >= 24 and arms[100:].count(1) >= 15
    del verdict
    with pytest.raises(ValueError, match="arms is 1"):
        bandit(1)
    with pytest.raises(ValueError, match="ascending from one row"):
        bandit(2, costs=((4, 1.0), (1, 2.0)))
    assert [round(float(x), 2) for x in cost_of(jnp.asarray([1, 2, 4, 5, 64]), ((1, 1.0), (4, 1.5), (32, 4.0)))] == [1.0, 1.5, 1.5, 4.0, 8.0]


def test_replay_credits_each_source_and_a_bandit_keeps_to_the_better_one():
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 12
    arms = select(lookup(((1, 3),)), automaton(0.5, 1))
    got = replay(arms, [text[:10]], [text[10:]], controller=bandit(2))
    assert got.by_source["lookup"] > 3 * got.by_source["automaton"] > 0
    only = replay(armed(arms, 1), [text[:10]], [text[10:]], controller=fixed())
    assert only.by_source["lookup"] == 0 and only.passes > got.passes
