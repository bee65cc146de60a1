"""Teacher forcing: plain texts are all equal, a changed token is found where it stands, a tie is a near-tie and not an error."""
import functools

import pytest

from specjax.testing import checks, forced
from tests import tiny

PROMPTS, TOKENS = [[1, 2, 3, 4, 5], [7], [9, 8, 7] * 6], 20


@functools.cache
def texts(temperature: float) -> list[list[int]]:
    return checks.plain_texts(tiny.model(), PROMPTS, TOKENS, (temperature,))[temperature]


def check(outputs, temperature: float, **kwargs):
    m = tiny.model()
    return forced.check(m.target, m.params, PROMPTS, outputs, temperature=temperature, **{"seed": 5} | kwargs)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_plain_texts_are_equal_everywhere(temperature: float):
    assert check(texts(temperature), temperature) == forced.Check(3 * TOKENS, 0, 0, None)


def test_another_seed_request_or_temperature_is_wrong():
    assert check(texts(0.8), 0.8, seed=6).wrong > 20
    assert check(texts(0.8), 0.8, request_ids=[5, 6, 7]).wrong > 20
    assert check(texts(0.8), 0.0).wrong > 5


def test_a_changed_token_is_found_and_the_check_goes_on_along_the_text():
    changed = [list(t) for t in texts(0.0)]
    changed[1][7] = (changed[1][7] + 1) % 64
    found = check(changed, 0.0)
    assert found.first_wrong == (1, 7) and found.wrong >= 1
    assert found.equal >= 2 * TOKENS + 7


def test_L02_a_runner_up_within_the_tolerance_is_a_near_tie():
    """A token that never occurs gets the embedding of one that does, almost: the two are always within rounding of each other."""
    m, text = tiny.model(), texts(0.0)[1]
    token, twin = text[5], next(t for t in range(64) if all(t not in x for x in (*texts(0.0), *PROMPTS)))
    params = {**m.params, "embedding": m.params["embedding"].at[twin].set(m.params["embedding"][token] * (1 - 1e-6))}
    changed = [twin if i == 5 else t for i, t in enumerate(text)]

    def found(tolerance: float) -> forced.Check:
        return forced.check(m.target, params, PROMPTS, [texts(0.0)[0], changed, texts(0.0)[2]], seed=5, tolerance=tolerance)

    assert found(1e-3) == forced.Check(3 * TOKENS - 1, 1, 0, None)
    assert found(0.0)[1:] == (0, 1, (1, 5))
