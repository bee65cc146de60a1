"""Lookup without a model: running matches against brute force, and replays of texts whose acceptance is known."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import match_state
from specjax.drafters.lookup import lookup
from specjax.testing.replay import replay


def _suffixes(text: list[int]) -> list[int]:
    """For each j < n - 1 the length of the longest common suffix of text[:j+1] and text, by trying all."""
    n, out = len(text), []
    for j in range(n - 1):
        e = 0
        while e <= j and text[j - e] == text[n - 1 - e]:
            e += 1
        out.append(e)
    return out


def test_running_matches_equal_a_quadratic_search_on_random_strings():
    rng, size, width, steps = np.random.default_rng(0), 64, 6, 12
    blocks = rng.integers(0, 3, (5, steps, width)).astype(np.int32)
    counts = rng.integers(0, width + 1, (5, steps)).astype(np.int32)

    @jax.jit
    @jax.vmap
    def run(blocks, counts):
        def step(s, x):
            s = match_state.append(s, x[0], x[1], 60)
            return s, (s, *match_state.best(s))
        start = match_state.MatchState(jnp.full(size, -1, jnp.int32), jnp.int32(0), jnp.zeros(size, jnp.int32))
        return jax.lax.scan(step, start, (blocks, counts))[1]

    states, best_at, best_length = jax.tree.map(np.asarray, run(blocks, counts))
    for b in range(5):
        text: list[int] = []
        for i in range(steps):
            text += blocks[b, i, :counts[b, i]].tolist()
            assert states.length[b, i] == len(text) and states.text[b, i, :len(text)].tolist() == text
            want = _suffixes(text)
            assert states.e[b, i, :max(len(text) - 1, 0)].tolist() == want
            if any(want):
                longest = max(want)
                assert best_length[b, i] == longest and best_at[b, i] == max(j for j, e in enumerate(want) if e == longest)
            else:
                assert best_length[b, i] == 0


@pytest.mark.parametrize("longest", [3, 15])
def test_a_copied_text_accepts_all_and_one_more_in_every_pass(longest: int):
    """The output repeats a prompt of distinct tokens: after the first match every pass emits longest + 1 tokens."""
    prompt = [*range(1, 100), 1, 2]
    output = list(range(3, 3 + 5 * (longest + 1)))
    got = replay(lookup(((2, longest),)), [prompt], [output])
    assert got.passes == [5] and got.tokens_per_pass == longest + 1
    assert got.nodes_per_pass == longest and got.wasted_per_pass == 0 and set(got.acceptance_at) == {1.0}


@pytest.mark.parametrize("period", [1, 2, 5])
def test_a_periodic_text_is_always_right_after_one_period_and_a_token(period: int):
    prompt = [(i % period) + 1 for i in range(period + 1)]
    output = [((period + 1 + i) % period) + 1 for i in range(8 * 6)]
    got = replay(lookup(((1, 7),)), [prompt], [output])
    assert got.passes == [6] and got.tokens_per_pass == 8 and got.wasted_per_pass == 0


def test_tau_of_a_fixed_text_is_pinned():
    words = "the cat saw the dog and the dog saw the cat and the cat ran".split()
    ids = {w: i + 1 for i, w in enumerate(dict.fromkeys(words))}
    text = [ids[w] for w in words]
    got = replay(lookup(((1, 3),)), [text[:4], text[:4]], [text[4:], text[4:]])
    assert got.passes[0] == got.passes[1] == PASSES and got.tokens_per_pass == (len(text) - 4) / PASSES
    none = replay(lookup(((4, 5),)), [text[:4]], [text[4:]])
    assert none.tokens_per_pass == 1.0 and none.nodes_per_pass == 0.0


PASSES = 8  # by hand: misses at tokens 1, 2, 3, then 4+3, 1+2, a miss, 1+2, and the last token alone


def test_a_text_that_is_not_reproduced_is_an_error(monkeypatch: pytest.MonkeyPatch):
    from specjax.testing import replay as module
    monkeypatch.setattr(module.jax.nn, "one_hot", lambda x, n: jnp.zeros((*x.shape, n)).at[..., 0].set(1.0))
    with pytest.raises(AssertionError, match="text 0 was not reproduced"):
        replay(lookup(((1, 2),)), [[1, 2]], [[3, 4]])
