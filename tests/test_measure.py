"""Loops by hand-made cases, bytes, and a bandwidth that is a plausible number."""
from __future__ import annotations

import numpy as np
import pytest

from specjax import measure

NO_LOOP = list(range(1000, 1100))


@pytest.mark.parametrize("tokens, share, first", [
    ([], 0.0, 0),
    (NO_LOOP, 0.0, 100),
    ([7] * 23, 0.0, 23),  # a stretch too short by one
    ([7] * 24, 1.0, 0),
    ([1, 2, 3, 4, 5, 6, 7, 8] * 3, 1.0, 0),  # exactly three repetitions and 24 tokens
    (([1, 2, 3, 4, 5, 6, 7, 8] * 3)[:23], 0.0, 23),
    (list(range(30)) * 2 + list(range(29)), 0.0, 89),  # long, but one token short of three repetitions
    (list(range(30)) * 3, 1.0, 0),
    (list(range(64)) * 3, 1.0, 0),  # the longest period
    (list(range(65)) * 4, 0.0, 260),
    (NO_LOOP[:10] + [5, 6] * 15 + NO_LOOP[10:20], 0.6, 10),  # in the middle
    ([5, 6] * 12 + NO_LOOP[:24] + [9] * 24, 2 / 3, 0),  # two loops
    ([1, 2, 3] * 9 + [1], 1.0, 0),  # the last repetition is cut
])
def test_loops(tokens, share, first):
    assert measure.loop_share(tokens) == pytest.approx(share)
    assert measure.first_loop(tokens) == first


def test_against_the_definition_spelled_out():
    """Every stretch of every period tried, on random texts of few symbols, where loops are common."""
    rng = np.random.default_rng(1)
    seen = 0
    for _ in range(30):
        tokens = np.concatenate([np.tile(rng.integers(0, 2, rng.integers(1, 12)), rng.integers(1, 6)) for _ in range(4)])
        expected = np.zeros(len(tokens), bool)
        for p in range(1, 65):
            for a in range(len(tokens)):
                b = a + p
                while b < len(tokens) and tokens[b] == tokens[b - p]:
                    b += 1
                if b - a >= max(3 * p, 24):
                    expected[a:b] = True
        assert (measure.in_loop(tokens) == expected).all()
        seen += expected.any()
    assert 5 < seen < 30


def test_bytes_of_a_token():
    tied = {"embedding": np.zeros((8, 4), np.float32), "final_norm": np.zeros(4, np.float32)}
    assert measure.bytes_per_token(tied) == 4 * (32 + 4)
    assert measure.bytes_per_token(tied | {"head": np.zeros((8, 4), np.float16)}) == 4 * 4 + 2 * 32


def test_bandwidth_is_plausible():
    assert 0.5 < measure.read_bandwidth(repeats=2, gigabytes=0.05) < 20_000
