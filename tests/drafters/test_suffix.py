"""SuffixDecoding against a dictionary of suffixes; its store of past answers is filled, capped, evicted, and carried on request only."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decode
from specjax.controllers.fixed import fixed
from specjax.drafters import match_state
from specjax.drafters.suffix import suffix
from specjax.round import compose
from specjax.testing.draws import blank_context
from specjax.testing.replay import known_text, replay
from specjax.types import Plan
from specjax.verifiers.match import match
from tests.drafters.invariants import check_draft

SIZE, ROWS, DEPTH = 40, 9, 5


def _nodes(text: list[int], length: int) -> tuple[dict[tuple[int, ...], int], int]:
    """Occurrences of the last `length` tokens that have something after them: ({what follows: how often}, how often they occur)."""
    ends = [j for j in range(length - 1, len(text) - 1) if text[j - length + 1:j + 1] == text[-length:]]
    nodes: dict[tuple[int, ...], int] = {}
    for j in ends:
        for d in range(1, min(DEPTH, len(text) - 1 - j) + 1):
            path = tuple(text[j + 1:j + 1 + d])
            nodes[path] = nodes.get(path, 0) + 1
    return nodes, len(ends) + 1 if ends else 0


def _oracle(text: list[int], path: bool, factor: float = 1.5, least: float = 0.3) -> tuple[float, list[float]]:
    """(best score, the frequencies D of its nodes in falling order)."""
    best: tuple[float, list[float]] = (0.0, [])
    for length in range(1, 13):
        nodes, count = _nodes(text, length)
        if not count:
            break
        budget = min(int(factor * length), ROWS - 1)
        if path:
            got, here = [], ()
            while len(got) < budget:
                below = [nodes[p] for p in nodes if p[:-1] == here]
                if not below or max(below) < least * count:
                    break
                got.append(max(below) / count)
                recent = next(j for j in range(len(text) - 2, -1, -1) if _recent(text, j, length, here, nodes, max(below)))
                here = (*here, text[recent + 1 + len(here)])
        else:
            got = sorted((n / count for n in nodes.values() if n >= least * count), reverse=True)[:budget]
        if sum(got) >= best[0] - 1e-9 and got:
            best = (sum(got), got)
    return best


def _recent(text: list[int], j: int, length: int, here: tuple[int, ...], nodes: dict, most: int) -> bool:
    """Whether the occurrence that ends at j is one whose next node is among the most frequent."""
    d = len(here)
    if j - length + 1 < 0 or text[j - length + 1:j + 1] != text[-length:] or tuple(text[j + 1:j + 1 + d]) != here or j + 1 + d >= len(text):
        return False
    return nodes[(*here, text[j + 1 + d])] == most


@pytest.mark.parametrize("path", [False, True])
def test_draft_and_score_equal_a_dictionary_of_suffixes(path: bool):
    rng = np.random.default_rng(2)
    texts = [rng.integers(0, 3, n).tolist() for n in rng.integers(4, SIZE, 60)]
    drafter = suffix(ROWS, DEPTH, factor=1.5, least=0.3, pointers=SIZE, longest=12, path=path)
    state = drafter.init({}, len(texts), SIZE, 0)
    block, n = jnp.asarray([t + [0] * (SIZE - len(t)) for t in texts], jnp.int32), jnp.asarray([len(t) for t in texts])

    @jax.jit
    def run(block, n):
        local = jax.vmap(match_state.append, in_axes=(0, 0, 0, None))(state.local, block, n, 60)
        ctx = blank_context({}, None, None, len(texts), jnp.float32(0), None)
        return drafter.draft(ctx, state._replace(local=local), Plan(n, n, jnp.int32(0)))[0]

    d = run(block, n)
    check_draft(d)
    used = 0
    for b, t in enumerate(texts):
        score, nodes = _oracle(t, path)
        mine = sorted((float(x) for x, k in zip(d.score[b, 1:], d.kind[b, 1:], strict=True) if k), reverse=True)
        if path and len(mine) != len(nodes):  # equal counts may lead along another branch; the value of the whole must not be smaller
            assert sum(mine) >= score - 1e-5 or abs(mine[0] - nodes[0]) < 1e-5
            continue
        np.testing.assert_allclose(mine, nodes, atol=1e-5, err_msg=str(t))
        used += bool(nodes)
    assert used > 40


WORDS = "a b c d a b c e a b c d f a b c d f g h a b d f g h a b c d f g h".split()
TEXT = [ord(w) - 96 for w in WORDS]


def test_tau_is_pinned_and_longer_matches_draft_more():
    passes = {f: replay(suffix(16, factor=f), [TEXT[:4]], [TEXT[4:]]).passes[0] for f in (1.0, 4.0)}
    assert passes == PINNED and passes[4.0] <= passes[1.0]


PINNED = {1.0: 16, 4.0: 13}


def test_past_answers_are_found_again_only_where_they_are_carried():
    answer = list(range(20, 60))
    twice = [[1, 2, 20], [3, 4, 20]], [answer[1:], answer[1:]]
    drafter = suffix(16, documents=4, factor=8.0)
    fresh = replay(drafter, *twice, batch=1)
    carried = replay(drafter, *twice, batch=1, memory=True)
    assert fresh.passes == [39, 39] and carried.passes == [39, 4] and carried.by_source == {"suffix": 0, "past answers": 35}


def test_the_store_is_capped_and_evicts_whole_documents():
    drafter = suffix(4, depth=3, documents=2, document=5)
    m = compose(known_text(16), drafter, match(), fixed())
    old = None
    for first in (1, 5, 9):
        text = jnp.asarray([[first, *range(first + 1, first + 7)]])
        params = {"target": {"text": text, "top8": jnp.zeros((1, 7, 8), jnp.int32)}}
        old = decode.finish(m, params, decode.begin(m, params, [[first]], max_new_tokens=6, memory=old))
    docs = old.drafter.shared.docs.tolist()
    assert docs == [[10, 11, 12, 13, 14, -1], [6, 7, 8, 9, 10, -1]]  # the third answer took the first's place; 5 tokens of each
    other = decode.begin(m, params, [[1]], max_new_tokens=6)
    assert (np.asarray(other.drafter.shared.docs) == -1).all()
    wrong = compose(known_text(16), suffix(4, depth=3, documents=3, document=5), match(), fixed())
    with pytest.raises(ValueError, match=r"memory.*shape \(3, 6\), this state needs \(2, 6\)"):
        decode.begin(m, params, [[1]], max_new_tokens=6, memory=decode.begin(wrong, params, [[1]], max_new_tokens=6))
    with pytest.raises(ValueError, match="2 documents are too few for a batch of 3"):
        drafter.init({}, 3, 16, 0)


def test_expected_tokens_are_near_accepted_tokens():
    """Scores are frequencies: over a stationary text their sum is about what is accepted."""
    rng = np.random.default_rng(0)
    chain = [[1, 2, 0], [2, 2, 3], [3, 0, 3], [0, 1, 1]]
    text = [0]
    for _ in range(420):
        text.append(chain[text[-1]][int(rng.integers(0, 3))])
    got = replay(suffix(8, depth=4, factor=8.0, least=0.02), [text[:20]], [text[20:]])
    assert 0.5 < (got.tokens_per_pass - 1) < 4 and got.acceptance_at[0] > 0.5
