"""The edit drafter in the loop: same text as plain decoding, what it does after each kind of change, its bad input, its sources."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decode, methods
from specjax.data import edit_samples
from specjax.drafters import copy_model
from specjax.drafters.edit import COSTS, edit
from specjax.drafters.lookup import lookup
from specjax.testing import checks, edit_replay
from specjax.testing.retrace import compilations
from tests import tiny

PROMPTS, TOKENS = [[1, 2, 3, 4, 5], [7], [9, 8, 7] * 6, [50, 51] * 10, [13] * 3], 32


@functools.cache
def plain() -> dict[float, list[list[int]]]:
    return checks.plain_texts(tiny.model(), PROMPTS, TOKENS, (0.0, 0.8))


def sources(temperature: float) -> dict:
    """Each text as plain decoding gives it with one token gone, one new and one changed; none for the last request."""
    made = []
    for t in plain()[temperature]:
        t = list(t)
        del t[20]
        t[10] = (t[10] + 1) % 64
        t.insert(5, 63)
        made.append(t)
    return copy_model.spans([*made[:-1], []])


def test_the_text_is_plain_samplings_with_sources_near_it():
    model = tiny.model()
    m, params = methods.get("edit").build(model)
    for t in (0.0, 0.8):
        with compilations() as made:
            r = checks.generate(model, m, params | {"source": sources(t)}, PROMPTS, TOKENS, t)
        assert r.tokens == plain()[t]
        assert all(s.tau > 2.0 for s in r.row_stats[:-1]), [s.tau for s in r.row_stats]
        other = checks.generate(model, m, params | {"source": copy_model.spans([[3] * 9] * 5)}, PROMPTS, TOKENS, t)
        assert other.tokens == plain()[t]
    assert (made.compiled, made.traced) == (0, 0), "a source is data: it compiles nothing"


def long_text(changed: str) -> tuple[list[int], list[int]]:
    source = list(range(1, 101))
    target = {"same": source, "inserted": [*source[:50], 200, 201, *source[50:]], "deleted": [*source[:50], *source[57:]],
              "replaced": [*source[:50], 200, 201, *source[52:]], "moved": [*source[:40], *source[60:80], *source[40:60], *source[80:]],
              "repeated": [*source[:60], *source[30:60], *source[60:]]}[changed]
    return source, target


PASSES = {"same": 7, "inserted": 10, "deleted": 8, "replaced": 9, "moved": 12, "repeated": 10}


def test_passes_after_each_kind_of_change_are_pinned():
    """100 tokens in passes of at most 16; a change costs the passes of its new tokens and one or two to find the way back."""
    got = {}
    for changed in PASSES:
        source, target = long_text(changed)
        sample = edit_samples.Sample(changed, "", "", "code", "", "a", "b")
        text = edit_replay.Text(sample, [300], [*source, 301], [*target, 301], 301)
        got[changed] = edit_replay.replay(edit(), [text])[0].rounds
    assert got == PASSES


def test_tau_on_bundled_edits_is_pinned_and_beats_the_suffix_match():
    texts = edit_replay.crude([s for s in edit_samples.bundled() if len(s.target) < 900][::6])
    runs = {d.name: edit_replay.replay(d, texts) for d in (edit(), lookup())}
    mine, theirs = (sum(r.tokens for r in x) / sum(r.rounds for r in x) for x in runs.values())
    assert [r.rounds for r in runs["edit(15)"]] == ROUNDS
    assert mine > 1.05 * theirs
    fast, slow = (sum(edit_replay.cost(r, dict(COSTS)) for r in x) for x in runs.values())
    assert fast < slow


ROUNDS = [30, 38, 14, 34, 27, 14, 25, 20, 28, 17, 23, 17, 18, 23]


def test_a_request_starts_afresh():
    """Two generations with other sources leave nothing behind: the third equals the first in every count."""
    model = tiny.model()
    m, params = methods.get("edit").build(model)
    runs = [checks.generate(model, m, params | {"source": s}, PROMPTS, TOKENS, 0.0).stats
            for s in (sources(0.0), copy_model.spans([[5] * 40] * 5), sources(0.0))]
    assert runs[0] == runs[2] != runs[1]


def test_no_source_is_a_suffix_match():
    model = tiny.model()
    m, params = methods.get("edit").build(model)
    r = checks.generate(model, m, params, PROMPTS, TOKENS, 0.0)
    assert r.tokens == plain()[0.0] and r.stats.accepted > 0


def test_the_state_is_per_request_and_finite():
    m, params = methods.get("edit").build(tiny.model())
    state = decode.finish(m, params | {"source": sources(0.0)}, decode.begin(m, params | {"source": sources(0.0)}, PROMPTS, max_new_tokens=8))
    for leaf in jax.tree.leaves(state.drafter):
        assert leaf.shape[0] == len(PROMPTS) and bool(jnp.all(jnp.isfinite(leaf.astype(jnp.float32))))
    tokens = np.asarray(state.drafter.match.length)
    begin = state.drafter.match.text.shape[1] - state.drafter.next.shape[1] + sources(0.0)["tokens"].shape[1] + 1
    assert tokens.tolist() == [begin + len(p) + 8 for p in PROMPTS]


def test_a_given_text_is_followed_through_real_passes():
    model = tiny.model()
    sample = edit_samples.Sample("x", "", "", "code", "", "a", "b")
    text = edit_replay.Text(sample, [1, 2, 3], [*range(5, 40), 63], [*range(5, 20), 50, *range(20, 40), 63], 63)
    one, mine = edit_replay.measure(model, [edit()], [text], repeats=1)
    assert one[0].tokens == mine[0].tokens == len(text.answer) and one[0].rounds == len(text.answer) and mine[0].rounds < 10
    assert mine[0].passes.keys() == {1, 4, 16} and sum(mine[0].passes.values()) == mine[0].rounds
    with pytest.raises(AssertionError, match="not reproduced"):
        edit_replay.measure(model, [], [text._replace(answer=[5, 63, 6, 63])], repeats=1)
