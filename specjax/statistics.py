"""Statistics of a generation, by the definitions of the field's words used here.

tau = tokens / rounds (plain decoding scores 1); acceptance = mean over visited rows that have a child of the law's chance to go
on; accepted_share = accepted / drafted, which no definition of acceptance here. Counts come from the device, seconds from the caller.
"""
from __future__ import annotations

import dataclasses

import numpy as np

from specjax.round import Statistics


@dataclasses.dataclass(frozen=True)
class Summary:
    """Numbers of one batch row or of several together, JSON-ready through `dataclasses.asdict`.

    Attributes:
      tokens: emitted, the last one of every round included. rounds: target passes the row took part in.
      tau: tokens / rounds. drafted, accepted: nodes. acceptance: see the module. acceptance_at: for each depth, the share of the
        rounds with a node that deep which accepted one there. by_source: accepted tokens of each drafter.
    """

    tokens: int
    rounds: int
    tau: float
    drafted: int
    accepted: int
    acceptance: float
    acceptance_at: tuple[float, ...]
    by_source: dict[str, int]


def summarize(s: Statistics, sources: tuple[str, ...], rows: slice = slice(None)) -> Summary:
    """Adds up the statistics of some batch rows.

    Args:
      s: counts of a finished state, on host or device. sources: names of the drafters. rows: which batch rows.

    Returns:
      A Summary.

    >>> z = np.asarray
    >>> s = Statistics(z([3]), z([9]), z([12]), z([[3, 3, 3, 3]]), z([[2, 2, 1, 1]]), z([2.0]), z([4]), z([[6]]), z([3]))
    >>> m = summarize(s, ("lookup",))
    >>> m.tau, m.accepted, [round(x, 3) for x in m.acceptance_at], m.acceptance
    (3.0, 6, [0.667, 0.667, 0.333, 0.333], 0.5)
    """
    add = lambda x: np.asarray(x)[rows].sum(axis=0)  # noqa: E731
    rounds, tokens, visited = int(add(s.rounds)), int(add(s.emitted)), int(add(s.visited))
    at, of = add(s.accepted_at), add(s.drafted_at)
    by = add(s.by_source)
    return Summary(tokens, rounds, tokens / max(rounds, 1), int(add(s.drafted)), int(by.sum()),
                   float(add(s.go_on)) / visited if visited else 0.0,
                   tuple(float(a) / int(o) for a, o in zip(at, of, strict=True) if o), dict(zip(sources, map(int, by), strict=False)))
