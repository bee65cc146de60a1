"""The sorted corpus against brute force, and the drafter that reads it: counts, text equality, replay."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import tree
from specjax.controllers.fixed import fixed
from specjax.drafters.rest import push, rest
from specjax.retrieval import suffix_array
from specjax.retrieval.suffix_array import DEPTH, Corpus
from specjax.round import compose
from specjax.testing import checks
from specjax.testing.draws import blank_context
from specjax.testing.replay import replay
from specjax.types import EMPTY
from specjax.verifiers.match import match
from tests import tiny


@functools.cache
def corpus(letters: int = 3, size: int = 300, seed: int = 0) -> Corpus:
    rng = np.random.default_rng(seed)
    tokens = suffix_array.join([rng.integers(0, letters, n) for n in (size // 2, 1, size // 3, size // 6)])
    return Corpus(jnp.asarray(tokens), jnp.asarray(suffix_array.build(tokens)))


def occurrences(tokens: list[int], wanted: list[int]) -> list[int]:
    return [i for i in range(len(tokens) - len(wanted) + 1) if tokens[i:i + len(wanted)] == wanted]


def longest(tokens: list[int], recent: list[int]) -> tuple[int, list[int]]:
    for length in range(min(DEPTH, len(recent)), 0, -1):
        at = occurrences(tokens, recent[len(recent) - length:])
        if at:
            return length, at
    return 0, []


def test_the_order_is_that_of_the_next_sixteen_tokens():
    c = corpus()
    tokens = np.asarray(c.tokens).tolist()
    windows = [(tokens[i:i + DEPTH] + [-2] * DEPTH)[:DEPTH] for i in np.asarray(c.order).tolist()]
    assert windows == sorted(windows) and sorted(np.asarray(c.order).tolist()) == list(range(len(tokens)))


def queries(rng, tokens: list[int], letters: int, count: int) -> np.ndarray:
    out = np.full((count, DEPTH), -1, np.int32)
    for b in range(count):
        n = DEPTH if b % 6 == 0 else int(rng.integers(0, DEPTH + 1))
        made = rng.integers(0, letters + 1, n).tolist()
        if b % 3 == 0:  # a piece of the corpus, so that long matches occur
            i = int(rng.integers(0, len(tokens) - DEPTH))
            made = [t for t in tokens[i:i + n] if t >= 0]
        out[b, DEPTH - len(made):] = made
    return out


def test_matches_and_rows_equal_a_linear_scan():
    c, rng = corpus(), np.random.default_rng(1)
    tokens = np.asarray(c.tokens).tolist()
    recent = queries(rng, tokens, 3, 120)
    found, (rows, used) = jax.jit(lambda c, r: (f := suffix_array.find(c, r), suffix_array.rows(c, f, 8, 5)))(c, recent)
    found, rows, used = jax.tree.map(np.asarray, (found, rows, used))
    seen = set()
    for b in range(len(recent)):
        length, at = longest(tokens, [t for t in recent[b].tolist() if t >= 0])
        assert found.length[b] == length
        mine = np.asarray(c.order)[found.low[b]:found.high[b]].tolist()
        assert sorted(mine) == at
        assert used[b].sum() == min(8, len(at))
        follow = {p: (tokens[p + length:] + [-1] * 5)[:5] for p in at}
        for row in rows[b][used[b]].tolist():
            cut = lambda r: [t if all(x >= 0 for x in r[:i + 1]) else -1 for i, t in enumerate(r)]  # noqa: E731
            assert row in [cut(f) for f in follow.values()]
        if len(at) > 8:  # evenly spread: the sampled occurrences are distinct and reach both ends of the range
            wanted = [mine[0 + (2 * i + 1) * len(at) // 16] for i in range(8)]
            assert len(set(wanted)) == 8
        seen.add(length)
    assert {0, 1, DEPTH} <= seen and len(seen) > 8


def test_a_wide_range_is_sampled_evenly():
    """100 continuations of one token: the rows come from all over the range, and nothing overflows near the largest corpus."""
    tokens = suffix_array.join([[1, 10 + i] for i in range(100)])
    c = Corpus(jnp.asarray(tokens), jnp.asarray(suffix_array.build(tokens)))
    recent = np.full((1, DEPTH), -1, np.int32)
    recent[0, -1] = 1
    rows, _ = suffix_array.rows(c, suffix_array.find(c, jnp.asarray(recent)), 10, 1)
    picked = np.sort(np.asarray(rows)[0, :, 0] - 10)
    assert picked.tolist() == [5 + 10 * i for i in range(10)]
    wide = suffix_array.Found(jnp.asarray([1]), jnp.asarray([0]), jnp.asarray([suffix_array.LARGEST]))
    at = np.asarray(jax.eval_shape(lambda f: suffix_array.rows(c, f, 64, 1), wide)[0].shape)
    assert at.tolist() == [1, 64, 1]


def test_the_trie_counts_as_a_dictionary():
    """With as many rows as occurrences a node's score is its count over the match's, times the trust in the match."""
    c, rng = corpus(4, 200, 3), np.random.default_rng(4)
    tokens = np.asarray(c.tokens).tolist()
    recent = queries(rng, tokens, 4, 30)
    d = rest(rows=12, depth=4, occurrences=256, shortest=1, trust=2.0)
    ctx = blank_context({"store": c}, None, None, 30, jnp.float32(0), None)
    draft = jax.tree.map(np.asarray, jax.jit(lambda r: d.draft(ctx, d.init({}, 30, 0, 0)._replace(tokens=r), None)[0])(recent))
    for b in range(30):
        length, at = longest(tokens, [t for t in recent[b].tolist() if t >= 0])
        count: dict[tuple, int] = {}
        for p in at:
            for k in range(1, 5):
                path = tuple(tokens[p + length:p + length + k])
                if len(path) < k or -1 in path:
                    break
                count[path] = count.get(path, 0) + 1
        used = int((draft.kind[b] != EMPTY).sum())
        assert used == 1 + min(11, len(count))
        paths, scores = {0: ()}, []
        for i in range(1, used):
            paths[i] = (*paths[int(draft.parents[b, i])], int(draft.tokens[b, i]))
            want = count[paths[i]] / len(at) * length / (length + 2)
            np.testing.assert_allclose(draft.score[b, i], want, rtol=1e-5)
            scores.append(count[paths[i]])
        assert sorted(scores, reverse=True) == sorted(count.values(), reverse=True)[:used - 1]
        assert len(set(paths.values())) == used
    assert bool(jnp.all(jax.vmap(tree.depths)(jnp.asarray(draft.parents)) <= 4))


def test_the_last_tokens_follow_the_text():
    recent = jnp.full((2, DEPTH), -1)
    for block, count in (([[1, 2], [3, 4]], [2, 1]), ([[5, 0], [6, 7]], [0, 2])):
        recent = push(recent, jnp.asarray(block), jnp.asarray(count))
    assert recent[:, -3:].tolist() == [[-1, 1, 2], [3, 6, 7]]


PROMPTS = [[1, 2, 3, 4, 5], [7], [9, 8, 7] * 6]


def test_text_is_plain_samplings_and_a_store_of_it_is_accepted():
    model = tiny.model()
    m = compose(model.target, rest(rows=8, depth=7), match(), fixed())
    texts = {t: checks.plain_texts(model, PROMPTS, 24, (t,))[t] for t in (0.0, 0.8)}
    tokens = suffix_array.join([[*p, *o] for t in texts for p, o in zip(PROMPTS, texts[t], strict=True)])
    store = Corpus(jnp.asarray(tokens), jnp.asarray(suffix_array.build(tokens)))
    other = Corpus(store.tokens[::-1], jnp.asarray(suffix_array.build(tokens[::-1].copy())))
    for t, want in texts.items():
        mine = checks.generate(model, m, {"target": model.params, "store": store}, PROMPTS, 24, t)
        assert mine.tokens == want and mine.stats.tau > 3
        backwards = checks.generate(model, m, {"target": model.params, "store": other}, PROMPTS, 24, t)
        assert backwards.tokens == want and backwards.stats.tau < 2


def test_tau_on_a_known_text_is_pinned():
    rng = np.random.default_rng(5)
    text = rng.integers(1, 60, 120).tolist()
    tokens = suffix_array.join([text, rng.integers(1, 60, 300).tolist()])
    store = Corpus(jnp.asarray(tokens), jnp.asarray(suffix_array.build(tokens)))
    got = replay(rest(rows=8, depth=7), [text[:4]], [text[4:84]], params={"store": store})
    assert got.passes == [10] and got.tokens_per_pass == 8.0
    changed = [*text[4:40], 61, *text[41:84]]
    assert replay(rest(rows=8, depth=7), [text[:4]], [changed], params={"store": store}).passes == [13]


@pytest.mark.parametrize("bad", [{"rows": 1}, {"depth": 0}, {"occurrences": 0}, {"shortest": 0}, {"shortest": 17}, {"trust": -1.0}])
def test_bad_sizes_are_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        rest(**bad)


def test_an_empty_corpus_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        suffix_array.build(np.zeros(0, np.int32))
