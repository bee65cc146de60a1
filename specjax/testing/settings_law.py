"""The law of all settings in numpy, in float64 and by sorting: the twin that `specjax.warp` is held against."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specjax.settings import Settings


def settings_law(logits: np.ndarray, s: Settings, prompt: Sequence[int], made: Sequence[int], state: int | None = None) -> np.ndarray:
    """The law of the next token, in the documented order.

    Args:
      logits: f64[V] of the target. s: settings. prompt: its tokens. made: tokens of the answer so far. state: of the grammar after them,
        None without a grammar.

    Returns:
      f64[V].

    >>> settings_law(np.log([0.5, 0.3, 0.2]), Settings(temperature=1.0, top_k=2), [0], []).round(3).tolist()
    [0.625, 0.375, 0.0]
    """
    x = np.asarray(logits, np.float64).copy()
    single = lambda value: np.float64(np.float32(value))  # noqa: E731 (settings reach the device in float32)
    for t, v in s.logit_bias:
        x[t] += single(v)
    x[list(s.banned)] = -np.inf
    early = len(made) < s.min_new_tokens
    if state is not None:
        allowed = s.grammar.mask(state)
        allowed[list(s.stop_ids)] = s.grammar.final[state]
        later = allowed.copy()
        later[list(s.stop_ids) if early else []] = False
        x[~(later if (later & (x > -np.inf)).any() else allowed)] = -np.inf
    elif early:
        x[list(s.stop_ids)] = -np.inf
    count = np.bincount(made, minlength=len(x)).astype(float) if len(made) else np.zeros(len(x))
    seen = (count > 0) | np.isin(np.arange(len(x)), prompt)
    r = single(s.repetition_penalty)
    x = np.where(seen, np.where(x > 0, x / r, x * r), x)
    x = x - single(s.presence_penalty) * (count > 0) - single(s.frequency_penalty) * count
    if s.temperature == 0:
        return np.eye(len(x))[x.argmax()]
    x = x / single(s.temperature)
    if s.top_k:
        x[x < np.sort(x)[::-1][min(s.top_k, len(x)) - 1]] = -np.inf
    if s.top_p < 1:
        p = _normalised(x)
        x[np.asarray([p[p > v].sum() >= single(s.top_p) for v in p])] = -np.inf
    if s.min_p > 0:
        p = _normalised(x)
        x[p < single(s.min_p) * p.max()] = -np.inf
    if s.typical_p < 1:
        p = _normalised(x)
        some = p > 0
        entropy = -(p[some] * np.log(p[some])).sum()
        far = np.where(some, np.abs(-np.log(np.where(some, p, 1)) - entropy), np.inf)
        x[np.asarray([p[far < d].sum() >= single(s.typical_p) for d in far])] = -np.inf
    return _normalised(x)


def _normalised(x: np.ndarray) -> np.ndarray:
    w = np.exp(x - x.max())
    return w / w.sum()
