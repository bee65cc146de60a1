"""The law of what the real loop emits, by counting: 2^17 requests through `specjax.decode.run`, compared cell by cell.

Each request id has its own coins, so the requests are independent samples. A cell of the joint law of the first n tokens with
probability P is counted c times in N: ``z = (c - N P) / sqrt(N P (1 - P))``, and any |z| > 5 is a fault. Cells too rare for that
are counted together.
"""
from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decode
from specjax import round as rounds
from specjax.controllers.fixed import fixed
from specjax.drafters.combine import beside
from specjax.drafters.model import model
from specjax.expand.static import chain, gumbel, independent, kary
from specjax.sampling import TemperatureState
from specjax.testing import negative
from specjax.testing.scripted import nosy
from specjax.testing.table_lm import joint_law, table_pair, table_target
from specjax.types import Controller, Drafter, Method, Verifier
from specjax.verifiers.match import match
from specjax.verifiers.rejection import rejection, rejection_chain

KEYS = 1 << 17
LIMIT = 5.0
VOCAB, TOKENS = 3, 5


class Counted(NamedTuple):
    """`z`: the largest |z| of all cells. `variation`: total variation to the target's law. `tau`: tokens a round."""

    z: float
    variation: float
    tau: float


def largest_z(counts: np.ndarray, law: np.ndarray, rare: float = 25.0) -> float:
    """The largest |z| over the cells of a law; cells with fewer than `rare` expected counts are joined into one.

    >>> round(largest_z(np.asarray([60, 40]), np.asarray([.5, .5])), 3)
    2.0
    """
    total, few = counts.sum(), law * counts.sum() < rare
    counts, law = (np.append(x[~few], x[few].sum()) for x in (counts, law))
    spread = np.sqrt(total * law * (1 - law))
    z = (counts - total * law) / np.where(spread > 0, spread, 1.0)
    return float("inf") if np.any((spread == 0) & (counts != total * law)) else float(np.abs(z).max())


def texts(m: Method, params: dict, keys: int, tokens: int, chunk: int = 1 << 14, seed: int = 0) -> tuple[np.ndarray, float]:
    """Runs `keys` requests of a one-token prompt at temperature 1 to `tokens` tokens each: (i32[keys, tokens], tokens a round)."""
    chunk, out, passes = min(chunk, keys), [], 0
    zero = jnp.zeros(chunk, jnp.int32)
    for start in range(0, keys, chunk):
        state = rounds.start(m, params, root=zero, capacity=8, room=tokens, limit=jnp.full_like(zero, tokens), stops=zero[:, None] - 1,
                             request=start + jnp.arange(chunk, dtype=jnp.int32), seed=jnp.uint32(seed),
                             warp=TemperatureState(jnp.ones(chunk, jnp.float32)))
        state = jax.tree.map(jnp.copy, state)  # buffers that stand for several leaves cannot be donated
        state = decode.finish(m, params, state)
        out.append(np.asarray(state.tokens)[:, :tokens])
        passes += int(state.statistics.rounds.sum())
    return np.concatenate(out), keys * tokens / passes


def count(drafter: Drafter, verifier: Verifier, controller: Controller, keys: int = KEYS, seed: int = 0) -> Counted:
    """Counts the first `TOKENS` tokens of a composition on the table target over several rounds."""
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), table_pair(VOCAB, TOKENS - 1, 7))
    m = rounds.compose(table_target(VOCAB, TOKENS - 1), drafter, verifier, controller)
    got, tau = texts(m, params, keys, TOKENS, seed=seed)
    code = got @ VOCAB ** np.arange(TOKENS - 1, -1, -1)
    counts = np.bincount(code, minlength=VOCAB**TOKENS)
    law = joint_law(np.asarray(params["target"]["table"]), VOCAB, TOKENS).reshape(-1)
    return Counted(largest_z(counts, law), float(np.abs(counts / keys - law).sum() / 2), tau)


def _drafts(*expansions, **kwargs) -> list[Drafter]:
    del kwargs
    target = table_target(VOCAB, TOKENS - 1)
    return [model(target, e, ("draft", "draft2")[i % 2]) for i, e in enumerate(expansions)]


def compositions() -> dict[str, tuple[Drafter, Verifier, Controller]]:
    """Compositions whose law is the target's, over several rounds each."""
    one, pair = _drafts(chain(3))[0], _drafts(gumbel(2, 1), independent(2, 1))
    mixed = _drafts(kary(1, 1), gumbel(2, 1))
    return {
        "chain, rejection_chain": (one, rejection_chain(), fixed()),
        "chain, rejection, nosy controller": (one, rejection(), nosy(3)),
        "two drafters of mixed draws, rejection, nosy controller": (beside(*pair), rejection(), nosy(2)),
        "deterministic beside without replacement, rejection": (beside(*mixed), rejection(), fixed()),
        "without replacement, match, nosy controller": (pair[0], match(), nosy(2)),
    }


def wrong_compositions() -> dict[str, tuple[Drafter, Verifier, Controller]]:
    """Compositions that are biased; counting must say so."""
    return {
        "one uniform shared by draft and accept": (_drafts(negative.shared_coin(chain(1)))[0], rejection(), fixed()),
        "coins keyed by position alone, nosy controller": (_drafts(chain(3))[0], negative.keyed_by_position(rejection()), nosy(3)),
    }
