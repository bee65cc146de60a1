"""What most users call: `generate` and `score`."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from specjax import decode
from specjax import round as rounds
from specjax.model import Model
from specjax.statistics import Summary, summarize
from specjax.types import Method

REASONS = {rounds.RUNNING: "running", rounds.STOPPED: "stop", rounds.FULL: "length"}


class Recipe(Protocol):
    """Anything that composes a Method for a model, such as an entry of `specjax.methods`."""

    def build(self, model: Model) -> tuple[Method, dict[str, Any]]:
        """(Method, parameters by name) for `model`."""
        ...


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished generation, one entry a prompt.

    Attributes:
      text: decoded tokens. tokens: ids, the stop id included. drafted: for each token, 0 = the target's own, s + 1 = source s.
      reasons: "stop" or "length". stats: of the whole batch. row_stats: of each prompt.
    """

    text: list[str]
    tokens: list[list[int]]
    drafted: list[list[int]]
    reasons: list[str]
    stats: Summary
    row_stats: list[Summary]


def bind(model: Model, method: Method | Recipe) -> tuple[Method, dict[str, Any]]:
    """(Method, parameters) of a method for a model; a hand-made Method takes the model's own parameters."""
    if isinstance(method, Method):
        return method, {"target": model.params}
    return method.build(model)


def token_ids(model: Model, prompts: str | Sequence[str] | Sequence[Sequence[int]], chat: bool = False) -> list[list[int]]:
    """Prompts as token ids: a text, texts, or ids already."""
    if isinstance(prompts, str):
        prompts = [prompts]
    return [model.encode(p, chat) if isinstance(p, str) else [int(t) for t in p] for p in prompts]


def generate(model: Model, prompts: str | Sequence[str] | Sequence[Sequence[int]], *, method: Method | Recipe, max_new_tokens: int = 128,
             temperature: float = 0.0, seed: int = 0, request_ids: Sequence[int] | None = None, chat: bool = False,
             params: dict[str, Any] | None = None, stop: bool = True) -> Result:
    """Generates a continuation of each prompt, as one batch.

    Args:
      model: from `specjax.load`. prompts: texts or token ids. method: an entry of `specjax.methods`, or a Method made by hand.
      max_new_tokens: most tokens a prompt. temperature: 0 is greedy. seed: of all coins. request_ids: one a prompt, default 0, 1, ..;
        the same id, seed and prompt give the same text under `match`, whatever the batch. chat: render texts as a user's turn.
      params: further parameter trees of a hand-made Method. stop: end at the model's stop ids.

    Returns:
      A Result.

    Raises:
      ValueError: bad input, before anything is compiled.
    """
    m, trees = bind(model, method)
    state = decode.begin(m, trees | (params or {}), token_ids(model, prompts, chat), max_new_tokens=max_new_tokens, temperature=temperature,
                         seed=seed, request_ids=None if request_ids is None else list(request_ids), stop_ids=model.eos if stop else ())
    return collect(model, m, decode.finish(m, trees | (params or {}), state))


def collect(model: Model, m: Method, state: rounds.State) -> Result:
    """A finished state as a Result on the host."""
    tokens, source, count = np.asarray(state.tokens), np.asarray(state.source), np.asarray(state.index) + 1
    ids = [tokens[b, :n].tolist() for b, n in enumerate(count)]
    reasons = [REASONS[int(r)] for r in np.asarray(state.reason)]
    rows = [summarize(state.statistics, m.drafter.sources, slice(b, b + 1)) for b in range(len(ids))]
    return Result([model.decode(t) for t in ids], ids, [source[b, :n].tolist() for b, n in enumerate(count)], reasons,
                  summarize(state.statistics, m.drafter.sources), rows)


def score(model: Model, prompt: str | Sequence[int], continuation: str | Sequence[int]) -> np.ndarray:
    """Log-probability of each token of a continuation, teacher-forced through the plain model at temperature 1.

    Args:
      model: from `specjax.load`. prompt: text or ids, at least one token. continuation: text or ids; a text is tokenized alone,
        without a begin-of-text token.

    Returns:
      f32[tokens of the continuation].
    """
    from specjax.weights.tokenizer import encode
    follow = encode(model.tokenizer, continuation, add_bos=False) if isinstance(continuation, str) else list(continuation)
    return decode.score_tokens(model.target, model.params, token_ids(model, [prompt])[0], follow)
