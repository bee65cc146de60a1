"""Rows into trees and the M best matches, each against a brute force in plain Python."""
import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import match_state
from specjax.drafters.trie import trie_from_rows
from tests.drafters.invariants import check_draft

M, D = 12, 5


def _by_heap(rows: list[list[int]], weight: list[float], count: int) -> tuple[dict[tuple[int, ...], float], float]:
    """Best-first expansion of a dictionary of prefixes by conditional ratios: ({path: weight}, weight of the lightest)."""
    total = {}
    for row, w in zip(rows, weight, strict=True):
        for d in range(len(row)):
            total[tuple(row[:d + 1])] = total.get(tuple(row[:d + 1]), 0.0) + w
    out, heap = {}, [(-w, 1, p) for p, w in total.items() if len(p) == 1]
    heapq.heapify(heap)
    while heap and len(out) < count:
        w, _, path = heapq.heappop(heap)
        out[path] = -w
        for p in total:
            if len(p) == len(path) + 1 and p[:-1] == path:
                heapq.heappush(heap, (w * (total[p] / total[path]), len(p), p))
    return out, min(out.values(), default=0.0)


@pytest.fixture(scope="module")
def random_cases():
    rng = np.random.default_rng(0)
    n = 100
    rows = rng.integers(1, 4, (n, M, D)).astype(np.int32)
    length = rng.integers(0, D + 1, (n, M))
    weight = rng.integers(0, 4, (n, M)).astype(np.float32)
    return rows, np.arange(D)[None, None] < length[..., None], weight


@pytest.mark.parametrize("count", [2, 8, 70])
def test_trie_equals_a_priority_queue(count: int, random_cases):
    rows, ok, weight = random_cases
    got = jax.jit(lambda *a: trie_from_rows(jnp.zeros(len(rows), jnp.int32), *a, count))(rows, ok, weight)
    check_draft(got)
    tokens, parents, kind, score = (np.asarray(x) for x in (got.tokens, got.parents, got.kind, got.score))
    for b in range(len(rows)):
        used = [[int(t) for t, o in zip(rows[b, m], ok[b, m], strict=True) if o] for m in range(M)]
        keep = [(r, float(w)) for r, w in zip(used, weight[b], strict=True) if w > 0]
        every, _ = _by_heap([r for r, _ in keep], [w for _, w in keep], 10**6)
        wanted, least = _by_heap([r for r, _ in keep], [w for _, w in keep], count - 1)
        paths = {0: ()}
        for r in range(1, count):
            if kind[b, r]:
                paths[r] = (*paths[int(parents[b, r])], int(tokens[b, r]))
        mine = {p for r, p in paths.items() if r}
        assert len(mine) == len(wanted) == len(paths) - 1
        assert {p for p in mine if every[p] > least + 1e-6} == {p for p in wanted if every[p] > least + 1e-6}
        for r, p in paths.items():
            if r:
                assert abs(score[b, r] - min(every[p], 1.0)) < 1e-5
        order = [every[paths[r]] for r in range(1, len(paths))]
        assert order == sorted(order, reverse=True) and (not order or order[-1] >= least - 1e-6)


def test_discount_and_norm_make_scores():
    rows = jnp.asarray([[[1, 2, 3], [1, 2, 4]]])
    got = trie_from_rows(jnp.asarray([0]), rows, rows > 0, jnp.asarray([[3.0, 1.0]]), 5, kappa=0.5, norm=jnp.asarray([4.0]))
    assert got.tokens.tolist() == [[0, 1, 2, 3, 4]] and got.score.tolist() == [[1.0, 1.0, 0.5, 0.1875, 0.0625]]
    assert got.parents.tolist() == [[0, 0, 1, 2, 2]]


@pytest.mark.parametrize("size,count", [(64, 7), (4096, 5), (5000, 32)])
def test_top_matches_equal_a_sort(size: int, count: int):
    e = np.random.default_rng(size).integers(0, 9, (3, size)).astype(np.int32)
    e[1] = 0
    e[2, :] = 8
    at, length = (np.asarray(x) for x in jax.jit(match_state.top, static_argnums=1)(e, count))
    for b in range(3):
        want = sorted(range(size), key=lambda j: (-e[b, j], -j))[:count]
        assert at[b].tolist() == want and length[b].tolist() == e[b, want].tolist()
    with pytest.raises(ValueError, match="65 matches asked of a text of 64"):
        match_state.top(jnp.zeros((1, 64), jnp.int32), 65)


def test_matches_anew_equal_a_quadratic_search_and_never_cross_a_separator():
    rng, cap = np.random.default_rng(1), 6
    store = rng.integers(-1, 3, (4, 50)).astype(np.int32)
    query = rng.integers(-1, 3, (4, cap)).astype(np.int32)
    got = np.asarray(jax.jit(match_state.suffix_matches)(store, query))
    for b in range(4):
        for j in range(50):
            e = 0
            while e < cap and e <= j and store[b, j - e] == query[b, e] >= 0:
                e += 1
            assert got[b, j] == e, (b, j)
    shared = np.asarray(match_state.suffix_matches(jnp.asarray(store[:1]), jnp.asarray(query)))
    assert shared.shape == (4, 50) and shared[0].tolist() == got[0].tolist()


def test_a_separator_in_a_running_match_matches_nothing():
    s = match_state.MatchState(jnp.full(12, -1), jnp.int32(0), jnp.zeros(12, jnp.int32))
    s = match_state.append(s, jnp.asarray([1, -1, 2, 1, -1, 2]), jnp.int32(6), 60)
    assert s.e.tolist()[:5] == [0, 0, 1, 0, 0]


def test_rows_end_at_separators_and_go_round():
    text = jnp.asarray([[1, 2, 3, -1, 5, 0, 0]])
    rows, ok = match_state.rows_after(text, jnp.asarray([5]), jnp.asarray([[0, 3]]), 4, wrap=False)
    assert jnp.where(ok, rows, 0).tolist() == [[[2, 3, 0, 0], [5, 0, 0, 0]]]
    rows, ok = match_state.rows_after(text, jnp.asarray([3]), jnp.asarray([[0]]), 4)
    assert ok.all() and rows.tolist() == [[[2, 3, 2, 3]]]
