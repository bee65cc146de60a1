"""The model: attention against a dense float64 reference, tree rows against their paths, layer ranges, gates, features, the cache."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import attention, cache, tree
from specjax.types import DETERMINISTIC, FORCED, Draft, Rows
from tests import tiny


@pytest.mark.parametrize(("capacity", "lengths"), [(256, (0, 200)), (40, (40, 7)), (128, (128, 1))])
def test_K06_attention_equals_dense_softmax(capacity: int, lengths: tuple[int, int]):
    rng = np.random.default_rng(0)
    b, g, d, share, t, r = 2, 2, 8, 3, 3, 5
    q = rng.normal(size=(g, d, share, b, t)).astype(np.float32)
    k, v = rng.normal(size=(b, g, capacity, d)).astype(np.float32), rng.normal(size=(b, g, d, capacity)).astype(np.float32)
    sk, sv = rng.normal(size=(b, g, r, d)).astype(np.float32), rng.normal(size=(b, g, d, r)).astype(np.float32)
    mask = rng.random((b, t, r)) < 0.5
    mask[:, :, 0] = True
    out = attention.attend(*map(jnp.asarray, (q, k, v, np.asarray(lengths, np.int32), sk, sv, mask)))
    for i in range(b):
        for h in range(g):
            keys = np.concatenate([k[i, h, :lengths[i]], sk[i, h]]).astype(np.float64)
            values = np.concatenate([v[i, h, :, :lengths[i]], sv[i, h]], axis=1).astype(np.float64)
            for s in range(share):
                for row in range(t):
                    scores = keys @ q[h, :, s, i, row] / np.sqrt(d)
                    scores = np.where(np.concatenate([np.ones(lengths[i], bool), mask[i, row]]), scores, -np.inf)
                    p = np.exp(scores - scores.max())
                    np.testing.assert_allclose(out[h, :, s, i, row], values @ (p / p.sum()), atol=2e-5)


def _forward(model, state, tokens, parents, want=("logits",)):
    rows = len(tokens)
    draft = Draft(jnp.asarray([tokens]), jnp.asarray([parents]), jnp.asarray([[FORCED] + [DETERMINISTIC] * (rows - 1)]),
                  jnp.ones((1, rows)), jnp.zeros((1, rows), jnp.int32))
    return model.target.forward(model.params, state, model.target.scratch(model.params, 1, rows), tree.rows(draft), want)


def _commit(model, state, work, path):
    return model.target.commit(state, model.target.select(work, jnp.asarray([path])), jnp.asarray([len(path)]))


@pytest.mark.parametrize("switches", [{}, {"qkv_bias": True}, {"qk_norm": True}])
def test_L17_tree_rows_equal_their_paths_and_the_accepted_branch_is_what_is_committed(switches):
    model = tiny.model(**switches)
    empty = model.target.init(model.params, 1, 64)
    features, work = _forward(model, empty, [5, 6, 7, 8, 9], [0, 0, 0, 2, 3])
    line, _ = _forward(model, empty, [5, 7, 8, 9], [0, 0, 1, 2])
    np.testing.assert_allclose(features["logits"][0, [0, 2, 3, 4]], line["logits"][0], atol=2e-5)
    after = _commit(model, empty, work, [0, 2, 3])
    follow, _ = _forward(model, after, [9], [0])
    np.testing.assert_allclose(follow["logits"][0, 0], line["logits"][0, 3], atol=2e-5)
    assert int(after.length[0]) == 3 and int(after.position[0]) == 3


def test_C04_C05_commit_writes_behind_the_used_length_only():
    state = cache.init(1, 2, 1, 2, 8, jnp.float32)
    state = state._replace(length=jnp.asarray([2, 5]), k=(state.k[0] + 7.0,))
    taken = cache.KeyValues((jnp.ones((2, 1, 3, 2)),), (jnp.ones((2, 1, 2, 3)),))
    after = cache.commit(state, taken, jnp.asarray([1, 0]))
    assert np.asarray(after.length).tolist() == [3, 5]
    assert np.asarray(after.k[0])[0, 0, :, 0].tolist() == [7, 7, 1, 1, 1, 7, 7, 7]
    assert np.asarray(after.k[0])[1, 0, :, 0].tolist() == [7, 7, 7, 7, 7, 1, 1, 1]
    assert np.asarray(after.v[0])[0, 0, 0].tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


def test_resume_after_every_layer_equals_the_whole_pass():
    model = tiny.model(layers=3)
    t, p = model.target, model.params
    start = t.init(p, 1, 64)
    _, work = _forward(model, start, [1, 2, 3], [0, 0, 1])
    state = _commit(model, start, work, [0, 1, 2])
    draft = tree.chain(jnp.asarray([4]), jnp.asarray([[5, 6]]), jnp.asarray([2]))
    rows = tree.rows(draft)
    whole, scratch = t.forward(p, state, t.scratch(p, 1, 3), rows, ("logits", "layer.2", "final", "normed"))
    for layer in (1, 2):
        x, half, _ = t.run_layers(p, state, t.scratch(p, 1, 3), t.embed(p, rows.tokens), rows, 0, layer)
        rest, other = t.forward(p, state, half, rows, ("logits",), resume=(x, layer))
        np.testing.assert_allclose(rest["logits"], whole["logits"], atol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), other, scratch)
        if layer == 2:
            np.testing.assert_allclose(x.transpose(1, 2, 0), whole["layer.2"], atol=1e-5)
    np.testing.assert_allclose(t.readout(p, whole["final"].transpose(2, 0, 1)), whole["logits"], atol=1e-5)


def test_gates_all_open_change_nothing_and_closed_ones_skip():
    model = tiny.model(layers=3)
    t, p = model.target, model.params
    state, row = t.init(p, 1, 64), Rows(jnp.asarray([[4]]), jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool), 0)
    x = t.embed(p, row.tokens)

    def run(attention_gates, mlp_gates):
        return t.run_layers(p, state, t.scratch(p, 1, 1), x, row, 0, 3, (jnp.asarray(attention_gates), jnp.asarray(mlp_gates)))[0]

    np.testing.assert_allclose(run([True] * 3, [True] * 3), t.run_layers(p, state, t.scratch(p, 1, 1), x, row, 0, 3)[0], atol=1e-6)
    np.testing.assert_array_equal(run([False] * 3, [False] * 3), x)
    one = run([True, False, False], [True, False, False])
    np.testing.assert_allclose(one, t.run_layers(p, state, t.scratch(p, 1, 1), x, row, 0, 1)[0], atol=1e-6)


def test_an_unknown_feature_is_refused_by_name():
    model = tiny.model()
    with pytest.raises(ValueError, match=r"attention\.0.*layer\.0 \.\. layer\.2"):
        _forward(model, model.target.init(model.params, 1, 64), [1], [0], ("logits", "attention.0"))


def test_L_position_is_state_and_not_the_cache_length():
    """Rotation is relative: a shift of all positions changes no logit, a shift of the new row alone does."""
    model = tiny.model()
    start = model.target.init(model.params, 1, 64)
    _, work = _forward(model, start, [1, 2, 3], [0, 0, 1])
    state = _commit(model, start, work, [0, 1, 2])
    base = _forward(model, state, [4], [0])[0]["logits"]
    moved = _forward(model, state._replace(position=state.position + 5), [4], [0])[0]["logits"]
    assert float(jnp.max(jnp.abs(base - moved))) > 1e-3
    far = start._replace(position=start.position + 5)
    state = _commit(model, far, _forward(model, far, [1, 2, 3], [0, 0, 1])[1], [0, 1, 2])
    np.testing.assert_allclose(_forward(model, state, [4], [0])[0]["logits"], base, atol=5e-5)
