"""What a user may ask of one request: sampling, stopping, seeds, drafts, log-probabilities. Every setting means the same with and
without speculation.

The order in which settings make a law is said in `specjax.warp`. Everything here is checked before anything is compiled.
"""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from specjax.grammar import Automaton

MAX_BIAS, MAX_STOPS, MAX_LOGPROBS = 320, 16, 20
"""Most entries of `logit_bias` and `banned` together, most stop ids, most alternatives: sizes of arrays, so that no request compiles anew."""

VERIFIERS = ("match", "rejection")


@dataclasses.dataclass(frozen=True)
class Settings:
    """One request. The defaults change nothing: greedy decoding of the model's own law.

    Attributes:
      max_new_tokens: most tokens of the answer. min_new_tokens: stop ids cannot come before so many tokens; stop strings can.
      temperature: 0 takes the likeliest token each time, lowest id on ties.
      top_k: keep the k likeliest tokens, 0 = all. top_p: keep the likeliest tokens until their probability reaches p; 1 = all.
      min_p: keep tokens at least min_p times as likely as the likeliest; 0 = all. typical_p: keep the tokens whose surprise is nearest to
        the entropy until their probability reaches p; 1 = all. Tokens tied at a threshold stay together.
      repetition_penalty: divides positive logits, and multiplies others, of tokens that are in prompt or answer; 1 = none.
      presence_penalty, frequency_penalty: subtracted from the logits of tokens in the answer: once; for each time.
      logit_bias: (token id, value) pairs added to logits. banned: ids that never come.
      stop_ids: ids that end the answer; they are part of it. stop: strings before which the text ends.
      grammar: the answer must be one of its words; see `specjax.grammar`.
      seed, request_id: name the coins; an id of None is the request's place in its call. n: samples, with ids of their own.
      draft: most tokens to draft a round, None = as many as the method likes, 0 = plain decoding. verifier: "match", "rejection", or None
        for the method's own. logprobs: None, or the number of alternatives beside each chosen token's log-probability.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    banned: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    grammar: Automaton | None = None
    seed: int = 0
    request_id: int | None = None
    n: int = 1
    draft: int | None = None
    verifier: str | None = None
    logprobs: int | None = None


NAMES = tuple(f.name for f in dataclasses.fields(Settings))
_NEUTRAL = Settings()
_WARPED = ("min_new_tokens", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias",
           "banned", "grammar")


def only_temperature(s: Settings) -> bool:
    """Whether temperature is all that shapes the law.

    >>> only_temperature(Settings(temperature=0.7, stop=("x",))), only_temperature(Settings(top_k=5))
    (True, False)
    """
    return all(getattr(s, name) == getattr(_NEUTRAL, name) for name in _WARPED)


def make(wishes: dict[str, Any]) -> Settings:
    """Settings from names and values; lists become tuples, one stop string a tuple of one, a dict of biases its pairs.

    Raises:
      ValueError: an unknown name; the known ones are listed.
    """
    unknown = [name for name in wishes if name not in NAMES]
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r}; known: {', '.join(NAMES)}")
    made = dict(wishes)
    for name in ("logit_bias", "banned", "stop_ids", "stop"):
        value = made.get(name)
        if isinstance(value, dict):
            made[name] = tuple(value.items())
        elif isinstance(value, str):
            made[name] = (value,)
        elif isinstance(value, list):
            made[name] = tuple(tuple(x) if isinstance(x, list) else x for x in value)
    return Settings(**made)


def as_list(settings: Settings | Sequence[Settings], prompts: int) -> list[Settings]:
    """One Settings a prompt.

    Raises:
      ValueError: another number of settings than of prompts.
    """
    if isinstance(settings, Settings):
        return [settings] * prompts
    if len(settings) != prompts:
        raise ValueError(f"{len(settings)} settings for {prompts} prompts")
    return list(settings)


def samples(prompts: Sequence[list[int]], settings: Sequence[Settings]) -> tuple[list[list[int]], list[Settings]]:
    """Prompts and settings with a row for each of the `n` samples: sample j of the prompt at place i has request id (own or i n) + j.

    >>> [s.request_id for s in samples([[1], [2]], [Settings(n=2), Settings(n=2)])[1]]
    [0, 1, 2, 3]
    """
    rows = []
    for place, (p, s) in enumerate(zip(prompts, settings, strict=True)):
        first = place * s.n if s.request_id is None else s.request_id
        rows += [(list(p), dataclasses.replace(s, n=1, request_id=first + j)) for j in range(s.n)]
    return [p for p, _ in rows], [s for _, s in rows]


def _integer(name: str, value: Any, least: int, most: int = 2**31 - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{name} is {value!r}: it must be a whole number")
    if value < least:
        raise ValueError(f"{name} is {value}: it must be at least {least}")
    if value > most:
        raise ValueError(f"{name} is {value}: it must be at most {most}")


def _number(name: str, value: Any, rule: str, ok: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise ValueError(f"{name} is {value!r}: it must be a number")
    if not (math.isfinite(value) and ok(value)):
        raise ValueError(f"{name} is {value}: it must be {rule}")


def _ids(name: str, ids: Sequence[Any], vocab: int) -> None:
    for t in ids:
        if isinstance(t, bool) or not isinstance(t, (int, np.integer)) or not 0 <= t < vocab:
            raise ValueError(f"{name} holds {t!r}, which is no token id of the vocabulary of {vocab} tokens")


def check(s: Settings, vocab: int) -> None:
    """Refuses settings that are out of range or contradict each other.

    Args:
      s: settings. vocab: V of the target.

    Raises:
      ValueError: the setting and the rule are named.
    """
    _integer("max_new_tokens", s.max_new_tokens, 1)
    _integer("min_new_tokens", s.min_new_tokens, 0)
    if s.min_new_tokens > s.max_new_tokens:
        raise ValueError(f"min_new_tokens is {s.min_new_tokens}, but max_new_tokens is {s.max_new_tokens}")
    _number("temperature", s.temperature, "a finite number, 0 (greedy) or more", lambda x: x >= 0)
    _integer("top_k", s.top_k, 0)
    for name in ("top_p", "typical_p"):
        _number(name, getattr(s, name), "above 0 and at most 1 (1 keeps every token)", lambda x: 0 < x <= 1)
    _number("min_p", s.min_p, "between 0 and 1 (0 keeps every token)", lambda x: 0 <= x <= 1)
    _number("repetition_penalty", s.repetition_penalty, "above 0 (1 changes nothing)", lambda x: x > 0)
    for name in ("presence_penalty", "frequency_penalty"):
        _number(name, getattr(s, name), "a finite number (0 changes nothing)", lambda x: True)
    _ids("logit_bias", [t for t, _ in s.logit_bias], vocab)
    for t, value in s.logit_bias:
        _number(f"logit_bias of token {t}", value, "a finite number; ban a token by `banned`", lambda x: True)
    if len({t for t, _ in s.logit_bias}) < len(s.logit_bias):
        raise ValueError("logit_bias names a token twice")
    _ids("banned", s.banned, vocab)
    if len(s.logit_bias) + len(s.banned) > MAX_BIAS:
        raise ValueError(f"logit_bias and banned hold {len(s.logit_bias) + len(s.banned)} entries: at most {MAX_BIAS} are allowed")
    _ids("stop_ids", s.stop_ids, vocab)
    if len(s.stop_ids) > MAX_STOPS:
        raise ValueError(f"there are {len(s.stop_ids)} stop ids: at most {MAX_STOPS} are allowed")
    _nothing_left(s, vocab)
    if isinstance(s.stop, str) or any(not isinstance(x, str) or not x for x in s.stop):
        raise ValueError(f"stop is {s.stop!r}: strings of at least one character are needed")
    _integer("seed", s.seed, -2**63, 2**64 - 1)
    if s.request_id is not None:
        _integer("request_id", s.request_id, 0)
    _integer("n", s.n, 1, 1024)
    if s.draft is not None:
        _integer("draft", s.draft, 0)
    if s.verifier is not None and s.verifier not in VERIFIERS:
        raise ValueError(f"verifier is {s.verifier!r}: one of {', '.join(VERIFIERS)} is needed, or None for the method's own")
    if s.logprobs is not None:
        _integer("logprobs", s.logprobs, 0, min(MAX_LOGPROBS, vocab))


def _nothing_left(s: Settings, vocab: int) -> None:
    gone = set(s.banned) | (set(s.stop_ids) if s.min_new_tokens else set())
    if len(gone) >= vocab:
        raise ValueError(f"banned and stop_ids leave no token of the vocabulary of {vocab} tokens")
    if s.grammar is not None:
        s.grammar.check(vocab, s.banned, s.stop_ids)
