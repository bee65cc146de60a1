"""Token Recycling: the table holds the target's runners-up, duplicates are settled by rule, and a text of order 1 is drafted whole."""
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decode, sampling
from specjax.controllers.fixed import fixed
from specjax.drafters.recycling import learn, recycling, template
from specjax.round import compose
from specjax.testing.draws import blank_context
from specjax.testing.replay import replay
from specjax.types import DETERMINISTIC, EMPTY, FORCED, Draft, Outcome, Plan, Verdict
from specjax.verifiers.match import match
from tests import tiny
from tests.drafters.invariants import check_draft


def test_template_is_the_published_tree():
    t = template(81)
    assert np.bincount(t.depth).tolist() == [1, 8, 21, 25, 15, 8, 3] and (t.parent[1:] < np.arange(1, 81)).all()
    assert (np.diff(t.score) <= 0).all()
    with pytest.raises(ValueError, match="rows is 82"):
        template(82)


def test_the_row_on_the_path_then_the_shallower_wins():
    tokens = jnp.asarray([[5, 6, 5, 6, 6, 7]])
    draft = Draft(tokens, jnp.asarray([[0, 0, 0, 1, 3, 0]]), jnp.asarray([[FORCED, *[DETERMINISTIC] * 4, EMPTY]]), jnp.ones((1, 6)), 0 * tokens)
    top = jnp.arange(48, dtype=jnp.int32).reshape(1, 6, 8)
    plan = Plan(jnp.ones(1, jnp.int32), jnp.ones(1, jnp.int32), jnp.int32(0))
    def after(path, count):
        verdict = Verdict(jnp.asarray([path]), jnp.asarray([count]), jnp.asarray([0]), jnp.zeros((1, 3)))
        ctx = blank_context({}, None, None, 1, jnp.float32(0), None)
        return np.asarray(learn(jnp.full((9, 8), -1, jnp.int32), ctx, Outcome(draft, verdict, {"top8": top}, plan, jnp.int32(6))))[:, 0]
    assert after([0, 1, -1], 2).tolist() == [-1] * 5 + [0, 8, -1, -1]    # row 0 is shallower than row 2; row 1 is on the path
    assert after([0, 1, 3], 3).tolist() == [-1] * 5 + [0, 8, -1, -1]     # both on the path: the shallower
    assert after([0, 2, -1], 2).tolist() == [-1] * 5 + [0, 8, -1, -1]    # row 0 and row 2 on the path; row 1 shallower than 3
    assert after([0, -1, -1], 0).tolist() == [-1] * 9                   # a finished row teaches nothing


def test_entries_are_the_targets_runners_up_after_a_pass():
    model, prompt = tiny.model(), [3, 9, 27, 5]
    m = compose(model.target, recycling(model.target.vocab, 8), match(), fixed())
    state = decode.begin(m, {"target": model.params}, [prompt], max_new_tokens=8)
    table = np.asarray(state.drafter.shared)
    logits = decode.forced_read(model.target, model.params, jnp.asarray([prompt]), jnp.asarray([4]), lambda x, *_: x, 4, 64, ())
    for i in range(3):  # the last prompt token is the root: not yet forwarded
        assert table[prompt[i]].tolist() == np.argsort(-np.asarray(logits)[0, i], kind="stable")[:8].tolist()
    assert (table[[t for t in range(64) if t not in prompt[:3]]] == -1).all()
    x = np.random.default_rng(0).normal(size=(3, 9000)).astype(np.float32)
    x[1, [7, 8999, 4000]] = 9.0
    assert np.asarray(sampling.top_ids(jnp.asarray(x), 8)).tolist() == np.argsort(-x, axis=1, kind="stable")[:, :8].tolist()


def test_a_text_of_order_one_is_drafted_whole_once_every_token_was_seen():
    follow = {1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: 1}
    text = [1]
    for _ in range(36):
        text.append(follow[text[-1]])
    top = [[follow[t], *range(8, 15)] for t in text]
    got = replay(recycling(16, 16), [text[:8]], [text[8:]], top8=[top])
    assert got.passes == [-(-29 // (1 + recycling(16, 16).depth))] == [6] and got.acceptance_at[0] == 1.0
    assert replay(recycling(16, 16), [text[:8]], [text[8:]]).tokens_per_pass == 1.0  # nothing learned, nothing drafted



def test_an_empty_table_drafts_nothing_and_every_draft_is_sound():
    drafter = recycling(12, 16)
    ctx = blank_context({}, None, None, 2, jnp.float32(0), None)._replace(root=jnp.asarray([3, 4]))
    plan = Plan(jnp.ones(2, jnp.int32), jnp.ones(2, jnp.int32), jnp.int32(0))
    assert (np.asarray(drafter.draft(ctx, drafter.init({}, 2, 8, 0), plan)[0].kind)[:, 1:] == EMPTY).all()
    rng = np.random.default_rng(0)
    table = np.stack([rng.permutation(12)[:8] for _ in range(12)]).astype(np.int32)
    table[[2, 5, 7]] = -1
    check_draft(drafter.draft(ctx, drafter.init({}, 2, 8, 0)._replace(shared=jnp.asarray(table)), plan)[0])
