"""Requests on the host: checked, padded, and put into the arrays that a state is made from."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax import settings as wanted
from specjax import warp as warps
from specjax.sampling import temperature as temperature_alone
from specjax.settings import MAX_STOPS, Settings
from specjax.types import Array, Method
from specjax.verifiers.match import match
from specjax.verifiers.mixed import mixed
from specjax.verifiers.rejection import rejection, rejection_chain

SMALLEST_PROMPT = 64


class Requests(NamedTuple):
    """A batch of checked requests as arrays.

    Attributes:
      prompt: i32[B,P]. length: i32[B]. limit: i32[B]. stops: i32[B,E], -1 padded. request: i32[B]. seed: u32[B]. draft: i32[B].
      coupled: bool[B]. want: i32[B] log-probabilities. warp: what the method's warp reads.
    """

    prompt: Array
    length: Array
    limit: Array
    stops: Array
    request: Array
    seed: Array
    draft: Array
    coupled: Array
    want: Array
    warp: Any


def pad_prompts(prompts: list[list[int]], vocab: int, width: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Prompts as one array, padded to a power of two so that few sizes are compiled.

    Args:
      prompts: token ids. vocab: of the target. width: at least so many columns.

    Returns:
      (tokens i32[B,P], lengths i32[B]).

    Raises:
      ValueError: no prompt, an empty prompt, or an id outside the vocabulary.

    >>> pad_prompts([[1, 2], [3]], 10)[1].tolist()
    [2, 1]
    """
    if not prompts:
        raise ValueError("there is no prompt")
    for i, p in enumerate(prompts):
        if len(p) == 0:
            raise ValueError(f"prompt {i} is empty: at least one token is needed")
        bad = [t for t in p if not 0 <= t < vocab]
        if bad:
            raise ValueError(f"prompt {i} holds token id {bad[0]}, outside the vocabulary of {vocab} tokens")
    longest = max(len(p) for p in prompts)
    out = np.zeros((len(prompts), max(SMALLEST_PROMPT, 1 << (longest - 1).bit_length(), width)), np.int32)
    for i, p in enumerate(prompts):
        out[i, :len(p)] = p
    return out, np.asarray([len(p) for p in prompts], np.int32)


def as_settings(count: int, *, max_new_tokens: int | list[int] = 128, temperature: float | list[float] = 0.0, seed: int = 0,
                request_ids: list[int] | None = None, stop_ids: tuple[int, ...] = ()) -> list[Settings]:
    """Settings of `count` requests from the few that most calls need; lists have one value a request.

    Raises:
      ValueError: a list of another length.
    """
    def each(name: str, value: Any) -> list[Any]:
        values = list(value) if np.ndim(value) else [value] * count
        if len(values) != count:
            raise ValueError(f"{len(values)} values of {name} for {count} prompts")
        return values

    ids = each("request_ids", [None] * count if request_ids is None else request_ids)
    rows = zip(each("max_new_tokens", max_new_tokens), each("temperature", temperature), ids, strict=True)
    return [Settings(max_new_tokens=n, temperature=float(t), seed=seed, request_id=i, stop_ids=tuple(stop_ids)) for n, t, i in rows]


def equipped(m: Method, settings: Sequence[Settings]) -> Method:
    """The method with what some settings need beyond it: the warp of all settings, a rule for each row, log-probabilities.

    A method for requests that ask for nothing stays as it is. The text does not depend on which it is.

    Raises:
      ValueError: a rule asked for by a row that the method's own verifier cannot stand beside.
    """
    if m.warp is temperature_alone() and not all(map(wanted.only_temperature, settings)):
        m = m._replace(warp=warps.settings_warp())
    if any(s.verifier is not None for s in settings) and m.verifier.coupled is not None:
        if m.verifier not in (match(), rejection(), rejection_chain()):
            asked = next(s.verifier for s in settings if s.verifier)
            raise ValueError(f"verifier is {asked!r}: rows cannot leave the method's own, {m.verifier.name!r}")
        m = m._replace(verifier=mixed(m.verifier is match()))
    alternatives = max((-1 if s.logprobs is None else s.logprobs for s in settings), default=-1)
    return m._replace(logprobs=max(alternatives, -1 if m.logprobs is None else m.logprobs)) if alternatives >= 0 else m


def fully_equipped(m: Method, logprobs: int) -> Method:
    """The method for whatever may be asked, as an engine needs it: one composition, so that no request compiles anew.

    Args:
      m: a composition. logprobs: most alternatives beside a token's log-probability.

    Returns:
      The method with the warp of all settings and log-probabilities, and a rule for each row where its verifier can stand beside another.
    """
    both = m.verifier in (match(), rejection(), rejection_chain())
    return equipped(m, [Settings(top_k=1, logprobs=logprobs, verifier="match" if both else None)])


def check(m: Method, prompts: list[list[int]], settings: Sequence[Settings]) -> None:
    """Refuses requests that cannot be served; nothing is allocated or compiled.

    Args:
      m: the composition. prompts: token ids. settings: one a prompt.

    Raises:
      ValueError: a value out of its range; it is named.
    """
    pad_prompts(prompts, m.target.vocab)
    settings = wanted.as_list(settings, len(prompts))
    for s in settings:
        wanted.check(s, m.target.vocab)
        if s.logprobs is not None and (m.logprobs is None or s.logprobs > m.logprobs):
            raise ValueError(f"logprobs is {s.logprobs}: this method keeps {m.logprobs} (see `requests.equipped`)")
        if m.warp is temperature_alone() and not wanted.only_temperature(s):
            raise ValueError("this method's warp knows temperature only (see `requests.equipped`)")
        if s.verifier is not None and m.verifier.coupled is not None and m.verifier.name != s.verifier:
            raise ValueError(f"verifier is {s.verifier!r}, the method's is {m.verifier.name!r} (see `requests.equipped`)")
    for i, (p, s) in enumerate(zip(prompts, settings, strict=True)):
        if len(p) > m.target.context:
            raise ValueError(f"prompt {i} has {len(p)} tokens; the target's context holds {m.target.context}")
        if len(p) + s.max_new_tokens + m.rows > m.target.context:
            raise ValueError(f"prompt {i}: {len(p)} prompt tokens + {s.max_new_tokens} new tokens + {m.rows} rows of a pass exceed the context "
                             f"of {m.target.context}")


def arrays(m: Method, prompts: list[list[int]], settings: Sequence[Settings], width: int = 0, grammar: tuple[int, int] | None = None) -> Requests:
    """Checked requests as arrays.

    Args:
      m: an equipped composition. prompts: token ids. settings: one a prompt. width: of the padded prompts, at least. grammar: (states, classes)
        of the tables, default as large as needed.

    Returns:
      Requests, on the host.
    """
    tokens, lengths = pad_prompts(prompts, m.target.vocab, width)
    stops = np.full((len(prompts), MAX_STOPS), -1, np.int32)
    for b, s in enumerate(settings):
        stops[b, :len(s.stop_ids)] = s.stop_ids
    rules = {None: m.verifier.lossless == "text", "match": True, "rejection": False}
    integers = lambda values: np.asarray(values, np.int32)  # noqa: E731
    known = {} if m.warp is temperature_alone() else {"sizes": warps.grammar_sizes(settings) if grammar is None else grammar}
    return Requests(
        tokens, lengths, integers([s.max_new_tokens for s in settings]), stops,
        integers([place if s.request_id is None else s.request_id for place, s in enumerate(settings)]),
        np.asarray([s.seed & 0xFFFFFFFF for s in settings], np.uint32), integers([m.depth if s.draft is None else s.draft for s in settings]),
        np.asarray([rules[s.verifier] for s in settings], bool), integers([-1 if s.logprobs is None else s.logprobs for s in settings]),
        m.warp.wishes(settings, m.target.vocab, **known))


def logprobs_of(kept: Any, row: int, first: int, count: int, settings: Settings) -> list[tuple[float, list[tuple[int, float]]]]:
    """Log-probabilities of some output tokens of a row as (chosen, [(id, value) of each alternative asked for]).

    Args:
      kept: a `round.LogProbs` on the host. row: its batch row. first, count: which output tokens. settings: of the row.
    """
    n = settings.logprobs or 0
    return [(float(kept.chosen[row, i]), [(int(t), float(v)) for t, v in zip(kept.ids[row, i, :n], kept.top[row, i, :n], strict=True)])
            for i in range(first, first + count)]
