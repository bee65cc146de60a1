"""Trees against brute force on random draft trees: ancestors, depths, clips, merges."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import tree
from specjax.types import DETERMINISTIC, EMPTY, FORCED, INDEPENDENT, Draft, Proposal


def _random(seed: int, rows: int = 12, vocab: int = 4) -> Draft:
    rng = np.random.default_rng(seed)
    parents = np.array([0] + [rng.integers(0, i) for i in range(1, rows)], np.int32)
    tokens = rng.integers(0, vocab, rows).astype(np.int32)
    score = np.ones(rows, np.float32)
    for i in range(1, rows):
        score[i] = score[parents[i]] * rng.uniform(0.2, 1)
    kind = np.full(rows, DETERMINISTIC, np.int32)
    kind[0] = FORCED
    return Draft(*(jnp.asarray(x)[None] for x in (tokens, parents, kind, score, np.zeros(rows, np.int32))))


def _paths(d: Draft) -> dict[tuple[int, ...], float]:
    """Token path -> best score, over the rows in use."""
    tokens, parents, kind, score = (np.asarray(x)[0] for x in (d.tokens, d.parents, d.kind, d.score))
    out: dict[tuple[int, ...], float] = {}
    for i in range(1, len(tokens)):
        if kind[i] == EMPTY:
            continue
        path, at = [], i
        while at:
            path.append(int(tokens[at]))
            at = int(parents[at])
        key = tuple(reversed(path))
        out[key] = max(out.get(key, 0), float(score[i]))
    return out


@pytest.mark.parametrize("seed", range(5))
def test_ancestors_and_depths(seed: int):
    d = _random(seed)
    parents = np.asarray(d.parents)[0]
    seen, depth = np.asarray(tree.ancestors(d.parents[0])), np.asarray(tree.depths(d.parents[0]))
    for i in range(len(parents)):
        line, at = {i, 0}, i
        while at:
            at = int(parents[at])
            line.add(at)
        assert set(np.flatnonzero(seen[i])) == line
        assert depth[i] == len(line) - 1


@pytest.mark.parametrize("seed", range(5))
def test_merge_keeps_the_best_prefixes(seed: int):
    d, count = _random(seed, rows=16, vocab=3), 9
    merged = jax.jit(tree.merge_prefixes, static_argnums=(1, 2))(d, count, 15)
    whole = _paths(d)
    for path in sorted(whole, key=len):  # a child never counts more than its parent
        if len(path) > 1:
            whole[path] = min(whole[path], whole[path[:-1]])
    got = _paths(merged)
    assert len(got) == min(count - 1, len(whole)) and set(got) <= set(whole)
    kept, dropped = min(got.values()), [s for p, s in whole.items() if p not in got]
    assert not dropped or kept >= max(dropped) - 1e-6
    assert all(path[:-1] in got or len(path) == 1 for path in got)
    parents, kind = np.asarray(merged.parents)[0], np.asarray(merged.kind)[0]
    assert np.all(parents <= np.arange(count)) and np.all(np.diff((kind == EMPTY).astype(int)) >= 0)


def test_clip_is_closed_under_ancestors():
    d = _random(1)
    cut = tree.clip(d, jnp.asarray([7]), jnp.asarray([2]))
    kind, depth = np.asarray(cut.kind)[0], np.asarray(tree.depths(d.parents[0]))
    assert [k != EMPTY for k in kind] == [i < 7 and depth[i] <= 2 for i in range(12)]


def test_as_deterministic_empties_void_nodes():
    d = tree.chain(jnp.asarray([0]), jnp.asarray([[-1, 3]]), jnp.asarray([2]), INDEPENDENT)
    d = d._replace(proposal=Proposal(jnp.zeros((1, 2, 4)), jnp.zeros((1, 3), jnp.int32)))
    d = tree.as_deterministic(d)
    assert d.proposal is None and np.asarray(d.kind)[0].tolist() == [FORCED, EMPTY, DETERMINISTIC]


def test_concatenate_hangs_both_below_the_root():
    a = tree.chain(jnp.asarray([9]), jnp.asarray([[1, 2]]), jnp.asarray([2]))
    b = tree.chain(jnp.asarray([9]), jnp.asarray([[1, 3]]), jnp.asarray([2]))
    joined = tree.concatenate([a, b])
    assert np.asarray(joined.parents)[0].tolist() == [0, 0, 1, 0, 3]
    assert _paths(tree.merge_prefixes(joined, 5, 2)) == {(1,): 1.0, (1, 2): 1.0, (1, 3): 1.0}
