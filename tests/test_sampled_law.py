"""The law of the real jitted loop, counted over 2^17 requests and several rounds; and biased compositions that counting must notice."""
import numpy as np
import pytest

from specjax.testing import checks, sampled


@pytest.mark.parametrize("name", sampled.compositions())
def test_the_loop_has_the_targets_law(name: str):
    found = checks.counted_law(name, sampled.compositions()[name])
    assert found.ok, found


@pytest.mark.parametrize("name", sampled.wrong_compositions())
def test_counting_notices_a_bias(name: str):
    found = checks.counted_bias(name, sampled.wrong_compositions()[name])
    assert found.ok, found


def test_z_of_known_counts():
    law = np.asarray([0.5, 0.3, 0.2])
    assert sampled.largest_z(np.asarray([500, 300, 200]), law) == 0
    assert abs(sampled.largest_z(np.asarray([550, 250, 200]), law) - 50 / np.sqrt(1000 * 0.3 * 0.7)) < 1e-9
    assert sampled.largest_z(np.asarray([1000, 0]), np.asarray([1.0, 0.0])) == 0
    assert sampled.largest_z(np.asarray([999, 1]), np.asarray([1.0, 0.0])) > 5
    rare = np.asarray([0.99, 0.005, 0.005])
    assert sampled.largest_z(np.asarray([990, 10, 0]), rare) == 0  # rare cells are counted together
