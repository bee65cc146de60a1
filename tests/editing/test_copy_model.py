"""The copy model and the edit drafter against their twins, on edits of random texts; what follows an insertion, a deletion, a move."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import tree
from specjax.drafters import copy_model
from specjax.drafters.copy_model import Rates
from specjax.drafters.edit import COSTS, best_rows, check_costs, edit
from specjax.retrieval import trie
from specjax.testing.draws import blank_context
from specjax.types import EMPTY
from tests.editing.twin import Twin

WIDTH, SIZE = 6, 24


def edited(rng: np.random.Generator, letters: int) -> tuple[list[int], list[int], list[int]]:
    """A source, a prompt and an output with an insertion, a deletion, a replacement and a move of it."""
    source = rng.integers(1, letters, rng.integers(16, SIZE + 1)).tolist()
    out = list(source)
    i, j = sorted(rng.integers(0, len(out), 2))
    out[i:i] = rng.integers(1, letters, 2).tolist()
    del out[j:j + 3]
    out[j // 2] = int(rng.integers(1, letters))
    return source, rng.integers(1, letters, 5).tolist(), [*out, *source[2:8]]


@functools.cache
def program():
    """Feeds blocks of an output to states, and gives each state and its draft."""
    drafter = edit()
    rates = Rates()

    @jax.jit
    def run(source, length, prompt, blocks, counts):
        batch = source.shape[0]
        s = drafter.init({"source": {"tokens": source, "length": length}}, batch, 96, 15)
        s = copy_model.prompt(s, prompt, jnp.full(batch, prompt.shape[1]), rates)
        ctx = blank_context({}, None, None, batch, jnp.float32(0), None)

        def step(s, x):
            s = copy_model.observe(s, x[0], x[1], rates)
            return s, (s, drafter.draft(ctx, s, None)[0], copy_model.pointers(s, 12))
        return jax.lax.scan(step, s, (blocks, counts))[1]
    return run


def cases():
    rng, batch, steps = np.random.default_rng(0), 6, 8
    texts = [edited(rng, 4 if b % 2 else 40) for b in range(batch)]
    source, length = np.zeros((batch, SIZE), np.int32), np.asarray([len(t[0]) for t in texts], np.int32)
    for b, t in enumerate(texts):
        source[b, :len(t[0])] = t[0]
    counts = rng.integers(0, WIDTH + 1, (steps, batch)).astype(np.int32)
    blocks = np.zeros((steps, batch, WIDTH), np.int32)
    for b, t in enumerate(texts):
        left = [*t[2], *rng.integers(1, 40, steps * WIDTH).tolist()]
        for i in range(steps):
            blocks[i, b, :counts[i, b]], left = left[:counts[i, b]], left[counts[i, b]:]
    return texts, source, length, np.asarray([t[1] for t in texts], np.int32), blocks, counts


def test_the_pointer_law_and_the_tree_equal_the_twin():
    texts, source, length, prompt, blocks, counts = cases()
    states, drafts, (where, chance) = jax.tree.map(np.asarray, program()(source, length, prompt, blocks, counts))
    sizes = set()
    for b, (src, pr, _) in enumerate(texts):
        twin = Twin(src, pr, SIZE)
        for i in range(len(counts)):
            for t in blocks[i, b, :counts[i, b]]:
                twin.push(int(t))
            s = jax.tree.map(lambda x, at=(i, b): x[at], states)
            assert s.match.text[:len(twin.c)].tolist() == twin.c and s.match.length == len(twin.c) and s.output == twin.out
            for mine, law in ((s.next, twin.next), (s.stay, twin.stay)):
                want = np.zeros(mine.shape)
                for j, w in law.items():
                    want[j] = w
                np.testing.assert_allclose(mine, want, rtol=2e-4, atol=1e-9)
            np.testing.assert_allclose(s.run, twin.run, rtol=1e-4)
            d = jax.tree.map(lambda x, at=(i, b): x[at], drafts)
            best = twin.best(12)  # equal chances may be taken in another order: by their positions the twin takes the same ones
            np.testing.assert_allclose(chance[i, b, :len(best)], [w for w, _ in best], rtol=2e-4)
            mine = [(twin.next[j], j) for j in where[i, b, :len(best)].tolist()]
            found = twin.nodes(mine, COSTS[-1][0] - 1, (2.0, 2.0), 2.0)
            used = int((d.kind != EMPTY).sum())
            assert used == 1 + min(twin.rows(found, COSTS, 1.5) - 1, len(found))
            paths = {0: ()}
            for r in range(1, used):
                assert d.parents[r] < r
                paths[r] = (*paths[int(d.parents[r])], int(d.tokens[r]))
                np.testing.assert_allclose(d.score[r], found[paths[r]], rtol=1e-3)
            chosen = sorted((found[p] for r, p in paths.items() if r), reverse=True)
            best = sorted(found.values(), reverse=True)[:len(chosen)]
            assert len(set(paths.values())) == used
            np.testing.assert_allclose(chosen, best, rtol=1e-3)
            sizes.add(used)
    assert len(sizes) > 2, "always the same size: this proves little"


def test_nothing_underflows_and_the_law_stays_a_law():
    """A thousand tokens that occur nowhere, then the source again: the pointer is lost for a token or two, not for good."""
    source = jnp.asarray([[*range(1, 33)]])
    s = copy_model.start(source, jnp.asarray([32]), 1400, Rates())
    s = jax.jit(copy_model.observe, static_argnums=3)(s, jnp.asarray([[*range(100, 1100)]]), jnp.asarray([1000]), Rates())
    total = float(jnp.sum(s.next) + jnp.sum(s.stay))
    assert np.isfinite(total) and 0.5 < total < 1.001
    s = copy_model.observe(s, jnp.asarray([[10, 11]]), jnp.asarray([2]), Rates())
    at, chance = copy_model.pointers(s, 2)
    assert int(at[0, 0]) == 11 and float(chance[0, 0]) > 0.5


def test_the_two_stage_search_finds_the_likeliest_pointers():
    rng = np.random.default_rng(1)
    s = copy_model.start(jnp.zeros((2, 600), jnp.int32), jnp.asarray([600, 300]), 30, Rates())
    s = s._replace(next=jnp.asarray(rng.random(s.next.shape), jnp.float32))
    at, chance = copy_model.pointers(s, 12)
    for b, n in enumerate((600, 300)):
        want = np.sort(np.asarray(s.next)[b, :n])[::-1][:12]
        np.testing.assert_array_equal(np.asarray(chance)[b], want)
        np.testing.assert_array_equal(np.asarray(s.next)[b, np.asarray(at)[b]], want)


def test_trie_equals_a_dictionary_and_keeps_the_best():
    rng = np.random.default_rng(2)
    batch, m, depth, count = 40, 6, 5, 9
    rows = rng.integers(0, 3, (batch, m, depth)).astype(np.int32)
    ok = rng.random((batch, m, depth)) < 0.95
    weight = (rng.integers(0, 4, (batch, m, 1)) * 0.5 ** np.arange(depth)).astype(np.float32)
    d = jax.tree.map(np.asarray, jax.jit(trie.trie_from_rows, static_argnums=4)(jnp.full(batch, 7), rows, ok, weight, count))
    deep = np.asarray(jax.vmap(tree.depths)(jnp.asarray(d.parents)))
    for b in range(batch):
        found = {}
        for r in range(m):
            for i in range(depth):
                if not ok[b, r, :i + 1].all():
                    break
                path = tuple(rows[b, r, :i + 1].tolist())
                found[path] = found.get(path, 0.0) + float(weight[b, r, i])
        found = {p: w for p, w in found.items() if w > 0}
        best = sorted(found.items(), key=lambda x: (-x[1], len(x[0])))[:count - 1]
        used = int((d.kind[b] != EMPTY).sum())
        assert used == len(best) + 1 and d.tokens[b, 0] == 7
        paths = {0: ()}
        for i in range(1, used):
            paths[i] = (*paths[int(d.parents[b, i])], int(d.tokens[b, i]))
            assert d.score[b, i] == found[paths[i]] and deep[b, i] == len(paths[i])
        assert len(set(paths.values())) == used and sorted(d.score[b, 1:used]) == sorted(w for _, w in best)
        assert sorted(deep[b, :used]) == deep[b, :used].tolist()


@pytest.mark.parametrize("costs", [(), ((1, 1.0),), ((2, 1.0), (4, 2.0)), ((1, 1.0), (4, 0.5)), ((1, 1.0), (16, 2.0), (4, 3.0))])
def test_a_bad_table_of_costs_is_named(costs):
    with pytest.raises(ValueError, match="costs is"):
        check_costs(costs)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="pointers is 0"):
        edit(pointers=0)
    with pytest.raises(ValueError, match="worth -1"):
        edit(worth=-1)
    with pytest.raises(ValueError, match="3 sources for 2 requests"):
        edit().init({"source": copy_model.spans([[1], [2], [3]])}, 2, 64, 15)


def test_rows_are_chosen_by_their_worth():
    costs = ((1, 1.0), (4, 1.5), (16, 2.4))
    sure, unsure, none = np.full(15, 0.95), np.asarray([0.9, 0.5, 0.1] + 12 * [0.01]), np.zeros(15)
    got = best_rows(jnp.asarray(np.stack([sure, unsure, none]), jnp.float32), costs, 1.5)
    assert got.tolist() == [16, 4, 1]
