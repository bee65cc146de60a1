"""What most users call: `generate` and `score`."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode, requests
from specjax import round as rounds
from specjax.model import Model
from specjax.settings import Settings, as_list, check, make, samples
from specjax.statistics import Summary, summarize
from specjax.text_stream import TextStream
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
      reasons: "stop" or "length". stats: of the whole batch. row_stats: of each prompt. logprobs: for each token (log-probability,
        [(id, log-probability) of each alternative]) under the model's own law before every setting; None where none were asked for.
    """

    text: list[str]
    tokens: list[list[int]]
    drafted: list[list[int]]
    reasons: list[str]
    stats: Summary
    row_stats: list[Summary]
    logprobs: list[list[tuple[float, list[tuple[int, float]]]] | None] | None = None


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


def generate(model: Model, prompts: str | Sequence[str] | Sequence[Sequence[int]], *, method: Method | Recipe,
             settings: Settings | Sequence[Settings] | None = None, max_new_tokens: int = 128, temperature: float = 0.0, seed: int = 0,
             request_ids: Sequence[int] | None = None, chat: bool = False, params: dict[str, Any] | None = None, ignore_eos: bool = False,
             **more: Any) -> Result:
    """Generates a continuation of each prompt, as one batch.

    Args:
      model: from `specjax.load`. prompts: texts or token ids. method: an entry of `specjax.methods`, or a Method made by hand.
      settings: of all prompts, or one a prompt, in place of the following. max_new_tokens: most tokens a prompt. temperature: 0 is greedy.
      seed: of all coins. request_ids: one a prompt, default 0, 1, ..; the same id, seed and prompt give the same text under `match`, whatever
        the batch. more: any other field of `specjax.settings.Settings`: top_p=0.9, stop=["\\n"], n=4, logprobs=3, grammar=...
      chat: render texts as a user's turn. params: further parameter trees of a hand-made Method. ignore_eos: go on after the model's own
        stop ids.

    Returns:
      A Result; with n samples a prompt, they stand side by side.

    Raises:
      ValueError: bad input, before anything is compiled.
    """
    ids = token_ids(model, prompts, chat)
    if settings is None:
        one = make({"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed, **more})
        rows = [one] * len(ids)
        if request_ids is not None:
            if len(request_ids) != len(ids):
                raise ValueError(f"{len(request_ids)} request ids for {len(ids)} prompts")
            rows = [dataclasses.replace(one, request_id=int(i)) for i in request_ids]
    elif more or request_ids is not None:
        raise ValueError(f"{next(iter(more), 'request_ids')} is given beside settings: put it into the settings")
    else:
        rows = as_list(settings, len(ids))
    if not ignore_eos:
        rows = [dataclasses.replace(s, stop_ids=tuple(dict.fromkeys((*s.stop_ids, *model.eos)))) for s in rows]
    for s in rows:
        check(s, model.target.vocab)
    ids, rows = samples(ids, rows)
    m, trees = bind(model, method)
    m, trees = requests.equipped(m, rows), trees | (params or {})
    state = decode.begin(m, trees, ids, settings=rows)
    if not any(s.stop for s in rows):
        return collect(model, m, decode.finish(m, trees, state), rows)
    streams = [TextStream(model, s.stop) for s in rows]
    while bool(jnp.any(state.reason == rounds.RUNNING)):
        state = decode.run(m, trees, state, jnp.int32(4))
        tokens, count = np.asarray(state.tokens), np.asarray(state.index) + 1
        for row, stream in enumerate(streams):
            stream.push(tokens[row, stream.count:count[row]].tolist())
        state = rounds.halt(state, jnp.asarray([s.stopped for s in streams]))
    return collect(model, m, state, rows)


def collect(model: Model, m: Method, state: rounds.State, settings: Sequence[Settings] | None = None) -> Result:
    """A finished state as a Result on the host; text, tokens, log-probabilities and counts end with a stop string."""
    tokens, source, count = np.asarray(state.tokens), np.asarray(state.source), np.asarray(state.index) + 1
    reasons = [REASONS[int(r)] for r in np.asarray(state.reason)]
    counts = jax.tree.map(np.array, state.statistics)
    texts: list[str] = []
    for row, n in enumerate(count):
        stops = settings[row].stop if settings is not None else ()
        if not stops:
            texts.append(model.decode(tokens[row, :n].tolist()))
            continue
        stream = TextStream(model, stops)
        texts.append(stream.push(tokens[row, :n].tolist()) + stream.finish())
        count[row], reasons[row] = stream.count, "stop" if stream.stopped else reasons[row]
    counts = counts._replace(emitted=np.minimum(counts.emitted, count))  # tokens made behind a stop string are not charged
    rows = [summarize(counts, m.drafter.sources, slice(b, b + 1)) for b in range(len(count))]
    kept, logprobs = jax.tree.map(np.array, state.logprobs), None
    if kept is not None and settings is not None:
        logprobs = [requests.logprobs_of(kept, b, 0, n, s) if s.logprobs is not None else None
                    for b, (n, s) in enumerate(zip(count, settings, strict=True))]
    return Result(texts, [tokens[b, :n].tolist() for b, n in enumerate(count)], [source[b, :n].tolist() for b, n in enumerate(count)], reasons,
                  summarize(counts, m.drafter.sources), rows, logprobs)


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
