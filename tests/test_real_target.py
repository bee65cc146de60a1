"""Same seed, same text, on the real default target: two ragged prompts of 48 tokens for every `match` method, greedy and sampled.

One compiled program a method serves both temperatures and both prompts; the plain texts are made once.
"""
import functools

import numpy as np
import pytest

import specjax
from specjax.model import Model
from specjax.testing import checks, forced

PROMPTS, TOKENS, TEMPERATURES = ("Write one sentence about the sea, then say it again.", "List the first ten even numbers."), 48, (0.0, 0.8)


@functools.cache
def target() -> Model:
    return specjax.load()


@functools.cache
def prompts() -> list[list[int]]:
    return [target().encode(p, chat=True) for p in PROMPTS]


@functools.cache
def plain() -> dict[float, list[list[int]]]:
    return checks.plain_texts(target(), prompts(), TOKENS, TEMPERATURES)


@pytest.mark.parametrize("name", checks.text_methods())
def test_every_match_method_gives_plain_samplings_text(name: str):
    found = checks.same_text(target(), name, prompts(), plain())
    assert found.ok, found


def test_plain_texts_are_plain_by_teacher_forcing():
    for t in TEMPERATURES:
        c = forced.check(target().target, target().params, prompts(), plain()[t], temperature=t, seed=5)
        assert c.wrong == 0 and c.equal + c.near_ties == 2 * TOKENS and c.near_ties <= 1, (t, c)
    assert plain()[0.0] != plain()[0.8] and len(np.unique(plain()[0.8][0])) > 5
