"""Greedy tokens of the default target equal those that Hugging Face transformers made from the same weights.

`python -m experiments.compare_transformers --record=tests/data/smollm2_greedy.json` wrote them, with the gap between the two best logits at
every step. A text may part from the record only at a near-tie.
"""
from __future__ import annotations

import functools
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import specjax
from specjax import decode

RECORD = json.loads((Path(__file__).parent / "data" / "smollm2_greedy.json").read_text(encoding="utf-8"))
NEAR = 1e-3


@functools.cache
def winners() -> np.ndarray:
    """The largest logit's id at every position of the recorded texts, all texts in one batch."""
    model = specjax.load()
    tokens, lengths = decode.pad_prompts([[*t["prompt"], *t["tokens"]] for t in RECORD["texts"]], model.target.vocab)
    found = decode.forced_read(model.target, model.params, jnp.asarray(tokens), jnp.asarray(lengths), _winner, 64, tokens.shape[1] + 128, ())
    return np.asarray(found)


def _winner(logits, following, at, extra):
    return jnp.argmax(logits, axis=-1)


def test_W01_recorded_greedy_tokens_of_the_default_target():
    near_ties = 0
    for i, text in enumerate(RECORD["texts"]):
        begin, wanted = len(text["prompt"]) - 1, np.asarray(text["tokens"])
        got = winners()[i, begin:begin + len(wanted)]
        for at in np.flatnonzero(got != wanted):
            assert text["gaps"][at] < NEAR, (i, at, text["gaps"][at])
            near_ties += 1
    assert near_ties <= 1


def test_the_record_is_worth_comparing():
    assert len(RECORD["texts"]) == 5 and all(len(t["tokens"]) == len(t["gaps"]) == 64 for t in RECORD["texts"])
    assert len({tuple(t["tokens"]) for t in RECORD["texts"]}) == 5 and np.median([g for t in RECORD["texts"] for g in t["gaps"]]) > 0.1


def test_the_default_targets_prompts_still_have_the_recorded_ids():
    model = specjax.load()
    for text in RECORD["texts"]:
        assert model.encode(text["text"], chat=text["chat"]) == text["prompt"]
