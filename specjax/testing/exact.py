"""The exact law of what a round emits, by enumeration in float64 through the functions that sample.

For every draft (see `specjax.testing.draws`) every pattern of accept and reject is walked by the verifier itself. A first walk, with
coins that force the pattern, gives the chance of each tested node; a second one, with coins a billionth below or above those
chances, must decide the same, so that the chances are those of the real comparison. The emitted prefix times the final law,
completed by the target's own law, must be the target's joint law of K + 1 tokens.
"""
from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import noise as coins
from specjax.settings import Settings
from specjax.testing.draws import QUICK_COMPILE, Case, all_draws, blank_context
from specjax.testing.settings_law import settings_law
from specjax.testing.table_lm import joint_law, table_pair
from specjax.types import Array, Draft, Scores, Verdict
from specjax.verifiers import rejection
from specjax.verifiers.match import match


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Double precision, and the promotion that mixes the 32-bit integers of a draft with 64-bit ones."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


class Law(NamedTuple):
    """What was found.

    Attributes:
      error: largest error of the joint law of K + 1 tokens. total: of all probabilities. acceptance: chance that a node is accepted.
      stated: the same chance as the mean of what the verifier reports as `go_on` at the root.
      bound: no rule that keeps the law can accept more (of depth-1 nodes). cells: outcomes enumerated.
    """

    error: float
    total: float
    acceptance: float
    stated: float
    bound: float
    cells: int


def target_law(case: Case, tokens: int) -> np.ndarray:
    """The law f64[V, ..., V] of a case's target over its first tokens, in numpy."""
    table = table_pair(case.vocab, case.depth, case.seed)["target"]["table"]
    if case.settings is None:
        return joint_law(table, case.vocab, tokens, case.at)
    s = case.settings

    def law_of(logits: np.ndarray, made: tuple[int, ...]) -> np.ndarray:
        state = None
        if s.grammar is not None:
            state = functools.reduce(lambda state, t: s.grammar.advance(state, t) if state >= 0 else -1, made, s.grammar.init())
            if state < 0:
                return np.full(len(logits), 1 / len(logits))  # below a prefix without probability
        return settings_law(logits, s, [0], made, state)

    return joint_law(table, case.vocab, tokens, law_of=law_of)


def _repeat(tree: Any, times: int) -> Any:
    return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), tree)


@functools.partial(jax.jit, static_argnames=("patterns", "settings"), compiler_options=QUICK_COMPILE)
def _walk(draft: Draft, logits: Array, u: Array, at: Array, patterns: int, settings: Settings | None = None) -> tuple[Array, ...]:
    draft, logits = _repeat((draft, logits), patterns)
    ctx = blank_context({"": {"table": logits}}, None, None, u.shape[0], at, {coins.ACCEPT: u}, settings=settings)
    trial = rejection.walk(ctx, draft, Scores(logits))
    return trial.chance, trial.tested, trial.walk.path, trial.walk.depth, trial.law, trial.walk.go_on[:, 0]


def _emit(case: Case, draft: Draft, patterns: int, weight: np.ndarray, path: np.ndarray, depth: np.ndarray, law: np.ndarray) -> np.ndarray:
    """The joint law f64[V^(K+1)] of emitted prefixes completed by the target."""
    v, k = case.vocab, case.depth
    target = target_law(case, k + 1)
    tokens = np.repeat(np.asarray(draft.tokens), patterns, axis=0)
    code, joint = np.zeros(len(weight), np.int64), np.zeros(v ** (k + 1))
    for accepted in range(k + 1):
        here = (depth == accepted) & (weight > 0)
        prefix = np.zeros((v**accepted, v))
        np.add.at(prefix, code[here], weight[here, None] * law[here])
        block = target.reshape(v ** (accepted + 1), -1)
        mass = block.sum(axis=1, keepdims=True)
        rest = np.where(mass > 0, block / np.where(mass > 0, mass, 1.0), 1.0 / block.shape[1])
        joint += (prefix.reshape(-1, 1) * rest).reshape(-1)
        if accepted < k:
            further = np.minimum(accepted + 1, path.shape[1] - 1)
            code = np.where(depth > accepted, code * v + tokens[np.arange(len(weight)), np.maximum(path[:, further], 0)], 0)
    return joint


def acceptance_bound(p: np.ndarray, sets: np.ndarray, weight: np.ndarray) -> float:
    """Most that any rule keeping the law p f64[V] can accept of one position: min over A of p(A) + 1 - Pr(all candidates in A).

    Args:
      p: the target's law. sets: bool[N,V] candidates of each draft. weight: f64[N] its probability.

    >>> round(acceptance_bound(np.asarray([.3, .5, .2]), np.eye(3, dtype=bool), np.asarray([.6, .3, .1])), 6)
    0.7
    """
    best = 1.0
    for bits in itertools.product((False, True), repeat=len(p)):
        inside = np.asarray(bits)
        best = min(best, p[inside].sum() + 1 - weight[~(sets & ~inside).any(axis=1)].sum())
    return float(best)


def rejection_law(case: Case) -> Law:
    """The exact law of recursive rejection on all drafts of a case.

    Raises:
      AssertionError: a coin just below a chance rejects, or one just above it accepts.
    """
    with float64():
        drawn = all_draws(case)
        draft, rows = drawn.draft, drawn.draft.tokens.shape[1]
        bits = np.asarray(list(itertools.product((False, True), repeat=rows - 1)))
        bits, patterns = np.pad(bits, ((0, 0), (1, 0))), len(bits)
        bits = np.tile(bits, (len(drawn.weight), 1))
        at = jnp.asarray(case.at)
        found = _walk(draft, drawn.logits, np.where(bits, 0.0, np.inf), at, patterns, case.settings)
        chance, tested, path, depth, law, hope = (np.asarray(x) for x in found)
        weight = np.repeat(drawn.weight, patterns) * np.prod(np.where(tested, np.where(bits, chance, 1 - chance), 1.0), axis=1)
        weight = np.where((bits & ~tested).any(axis=1), 0.0, weight)  # bits of nodes that were not tested: counted once, as 0
        near = chance * np.where(bits, 1 - 1e-9, 1 + 1e-9)
        again = [np.asarray(x) for x in _walk(draft, drawn.logits, near, at, patterns, case.settings)]
    sure = weight > 1e-12
    if not (np.array_equal(path[sure], again[2][sure]) and np.array_equal(tested[sure], again[1][sure])):
        raise AssertionError(f"{case.name}: the walk does not decide by the chances it states")
    law = law / law.sum(axis=1, keepdims=True)
    joint = _emit(case, draft, patterns, weight, path, depth, law)
    p = target_law(case, 1)
    first = (np.asarray(draft.parents) == 0) & (np.arange(rows) > 0) & (np.asarray(draft.kind) != 0)
    sets = ((np.asarray(draft.tokens)[:, :, None] == np.arange(case.vocab)) & first[:, :, None]).any(axis=1)
    whole = target_law(case, case.depth + 1).reshape(-1)
    return Law(float(np.abs(joint - whole).max()), float(weight.sum()), float(weight[depth > 0].sum()),
               float((weight * np.maximum(hope, 0)).sum()), acceptance_bound(p, sets, drawn.weight), len(weight))


@functools.partial(jax.jit, static_argnames=("texts",), compiler_options=QUICK_COMPILE)
def _match(draft: Draft, logits: Array, times: Array, at: Array, texts: int) -> Verdict:
    draft, logits = _repeat((draft, logits), texts)
    return match().verify(blank_context({}, None, None, times.shape[0], at, {coins.TEXT: times}), draft, Scores(logits))


def match_misses(case: Case) -> tuple[int, int]:
    """Runs `match` on every draft of a case under every text: the text's noise is forced to each sequence y of K + 1 tokens.

    Returns:
      (outcomes that are not the longest prefix of y on the tree plus y's next token, outcomes).
    """
    v, k = case.vocab, case.depth
    with float64():
        drawn = all_draws(case)
        y = np.asarray(list(itertools.product(range(v), repeat=k + 1)))
        times = np.ones((len(y), k + 2, v))
        times[np.arange(len(y))[:, None], np.arange(1, k + 2)[None], y] = 1e-100  # the text's noise at depth d below the root
        n = len(drawn.weight)
        verdict = _match(drawn.draft, drawn.logits, np.tile(times, (n, 1, 1)), jnp.asarray(case.at), len(y))
    path, count, follower = np.asarray(verdict.path), np.asarray(verdict.count), np.asarray(verdict.next_token)
    tokens, parents, kind = (np.repeat(np.asarray(x), len(y), axis=0) for x in (drawn.draft.tokens, drawn.draft.parents, drawn.draft.kind))
    y, b = np.tile(y, (n, 1)), np.arange(n * len(y))
    row, wrong, going = np.zeros(len(b), np.int64), np.zeros(len(b), bool), np.ones(len(b), bool)
    for d in range(k + 1):
        child = (parents == row[:, None]) & (np.arange(tokens.shape[1]) > 0) & (kind != 0) & (tokens == y[:, d, None])
        on = going & child.any(axis=1)
        ends = going & ~on
        wrong |= ends & ((count != d + 1) | (follower != y[:, d]))
        row = np.where(on, child.argmax(axis=1), row)
        if d < k:
            wrong |= on & (tokens[b, np.maximum(path[:, d + 1], 0)] != y[:, d])
        going = on
    return int((wrong | going).sum()), len(b)
