"""Edits whose result is known, run through the real loop: what would a model that makes exactly this edit have cost?

Two ways. `replay`: no model; a table knows the text, passes are counted, and a table of costs makes a speed of them: for tuning.
`measure`: the real target's forward runs on the real rows and only the law is replaced by the known answer (see `given`): seconds.
"""
from __future__ import annotations

import dataclasses
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode
from specjax.applications.editing import prompt_ids
from specjax.controllers.fixed import fixed
from specjax.data.edit_samples import Sample
from specjax.drafters import copy_model
from specjax.drafters.none import none
from specjax.model import Model
from specjax.round import compose
from specjax.testing.given import given
from specjax.testing.replay import known_text
from specjax.types import Drafter, Method
from specjax.verifiers.match import match


class Text(NamedTuple):
    """A sample in tokens: `answer` ends with `stop`, an id that occurs nowhere else in it."""

    sample: Sample
    prompt: list[int]
    source: list[int]
    answer: list[int]
    stop: int


class Run(NamedTuple):
    """One text under one method: `tokens`, `rounds`, target `passes` by rows, `drafted` nodes, `seconds` of decoding."""

    tokens: int
    rounds: int
    passes: dict[int, int]
    drafted: int
    seconds: float


def crude(samples: Sequence[Sample]) -> list[Text]:
    """Tokens without a tokenizer: words, runs of spaces, single signs; the ids are dense in each text."""
    made = []
    for s in samples:
        ids: dict[str, int] = {}
        cut = lambda text, ids=ids: [ids.setdefault(p, len(ids) + 1) for p in re.findall(r"\n *| ?\w+|.", text)]  # noqa: E731
        source, prompt, answer = cut(s.source), cut(f"{s.instruction}\n\n{s.context}\n\n{s.source}\n"), cut(s.target)
        stop = len(ids) + 1
        made.append(Text(s, prompt, [*source, stop], [*answer, stop], stop))
    return made


def tokenize(model: Model, samples: Sequence[Sample]) -> list[Text]:
    """Tokens as in a real request: the chat prompt, the text as it would stand in the answer, the end-of-turn id."""
    from specjax.weights.tokenizer import encode
    stop = next((i for i in model.eos if model.tokenizer.id_to_token(i) == "<|im_end|>"), model.eos[0])
    ended = lambda text: [*encode(model.tokenizer, text, add_bos=False), stop]  # noqa: E731
    return [Text(s, prompt_ids(model, s.instruction, s.source, s.form != "prose", s.context), ended(s.source), ended(s.target), stop)
            for s in samples]


def dense(text: Text) -> Text:
    """The text with its ids renumbered 1, 2, ..., so that a table that knows it is small."""
    ids = {t: i + 1 for i, t in enumerate(dict.fromkeys([*text.prompt, *text.source, *text.answer]))}
    new = lambda tokens: [ids[t] for t in tokens]  # noqa: E731
    return Text(text.sample, new(text.prompt), new(text.source), new(text.answer), ids[text.stop])


def _power(n: int, least: int) -> int:
    return max(least, 1 << (n - 1).bit_length())


def _once(m: Method, params: dict[str, Any], text: Text, room: int, capacity: int) -> Run:
    state = jax.block_until_ready(decode.begin(m, params, [text.prompt], max_new_tokens=room, stop_ids=(text.stop,), least_capacity=capacity))
    begun = time.perf_counter()
    state = jax.block_until_ready(decode.finish(m, params, state))
    seconds = time.perf_counter() - begun
    count = int(state.index[0]) + 1
    if np.asarray(state.tokens)[0, :count].tolist() != text.answer:
        raise AssertionError(f"{text.sample.id} was not reproduced")
    s = state.statistics
    return Run(count, int(s.rounds[0]), dict(zip(m.buckets, np.asarray(s.shared).tolist(), strict=True)), int(s.drafted[0]), seconds)


def replay(drafter: Drafter, texts: Sequence[Text]) -> list[Run]:
    """Every text alone through the real loop, the target a table that knows it.

    Raises:
      AssertionError: a text was not reproduced.
    """
    runs = []
    for text in map(dense, texts):
        whole = [*text.prompt, *text.answer]
        room, vocab = _power(len(text.answer), 256), _power(max(whole) + 1, 512)
        padded = np.zeros((1, _power(len(whole), 512)), np.int32)
        padded[0, :len(whole)] = whole
        params = {"target": {"text": jnp.asarray(padded)}, "source": copy_model.spans([text.source], least=256)}
        m = compose(known_text(vocab), drafter, match(), fixed())
        runs.append(_once(m, params, text, room, decode.capacity_for(_power(len(text.prompt), 256), room, m.rows)))
    return runs


def measure(model: Model, drafters: Sequence[Drafter], texts: Sequence[Text], repeats: int = 3,
            say: Callable[[int], None] = lambda i: None) -> list[list[Run]]:
    """Every text alone through the real target's passes, plain decoding and each drafter in alternation.

    Args:
      model, drafters: what runs. texts: from `tokenize`. repeats: timed repetitions; medians of seconds count. say: called with the
        number of texts done.

    Returns:
      For plain decoding and for each drafter the runs of all texts.
    """
    methods = [compose(model.target, d, given(), fixed()) for d in (none(), *drafters)]
    room = _power(max(len(t.answer) for t in texts), 256)
    width = _power(max(len(t.source) for t in texts), 256)
    runs: list[list[Run]] = [[] for _ in methods]
    for number, text in enumerate(texts):
        answer = np.full((1, room), text.stop, np.int32)
        answer[0, :len(text.answer)] = text.answer
        params = {"target": model.params, "answer": jnp.asarray(answer), "source": copy_model.spans([text.source], least=width)}
        capacity = decode.capacity_for(_power(len(text.prompt), 256), room, 32)
        seconds: list[list[float]] = [[] for _ in methods]
        for turn in range(repeats + 1):  # the first compiles, or warms
            for i, m in enumerate(methods):
                run = _once(m, params, text, room, capacity)
                if turn:
                    seconds[i].append(run.seconds)
                if turn == repeats:
                    runs[i].append(run._replace(seconds=statistics.median(seconds[i])))
        say(number + 1)
    return runs


def cost(run: Run, costs: dict[int, float]) -> float:
    """Simulated cost of a run in passes of one row, from a table by rows."""
    return sum(n * costs[rows] for rows, n in run.passes.items())


@dataclasses.dataclass(frozen=True)
class Row:
    """A class of texts under one method: how many, tokens, tau, speedup over plain, nodes drafted a pass."""

    texts: int
    tokens: int
    tau: float
    speedup: float
    nodes: float


def table(texts: Sequence[Text], plain: Sequence[float], runs: Sequence[Run], seconds: Sequence[float], by: Callable[[Sample], str]
          ) -> dict[str, Row]:
    """Sums by class; `plain` and `seconds` are costs of each text, measured or simulated."""
    rows = {}
    for name in dict.fromkeys(map(by, (t.sample for t in texts))):
        at = [i for i, t in enumerate(texts) if by(t.sample) == name]
        tokens, rounds = sum(runs[i].tokens for i in at), sum(runs[i].rounds for i in at)
        rows[name] = Row(len(at), tokens, tokens / rounds, sum(plain[i] for i in at) / sum(seconds[i] for i in at),
                         sum(runs[i].drafted for i in at) / rounds)
    return rows
