"""`edit`: copy the text that is being edited, through its edits.

The copy model's likeliest pointers, and the longest suffix match in prompt, source and output, give rows of tokens; a trie merges those
that agree and branches where an insertion, a deletion and a replacement disagree. A node's score is its chance to be reached: that of the
pointer, times, token by token, the chance ``(r + a) / (r + a + b)`` that a piece of r copied tokens goes on. Nothing is drafted where no
pass is worth it: of the passes in a table of costs, the one with the largest

    expected tokens - worth x cost

is taken. (A soft pointer in place of the published rules: restart at the first difference, realign by lines, or wait for 7 equal tokens
as EfficientEdit does.)
"""
from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from specjax import round as rounds
from specjax import tree
from specjax.drafters import copy_model
from specjax.drafters.copy_model import CopyState, Rates
from specjax.retrieval import trie
from specjax.types import DETERMINISTIC, FORCED, Array, Context, Draft, Drafter, Outcome, Plan, piece

COSTS = ((1, 1.0), (4, 1.5), (16, 2.4))
"""(rows of a pass, its cost in passes of one row), measured on two virtual CPU cores in float32; a pass of 32 rows costs 4.6 there and is
never worth it."""

COPIED, MATCHED = range(2)
"""Sources of a node: the copy model, the suffix match."""


def check_costs(costs: tuple[tuple[int, float], ...]) -> None:
    """Refuses a table of costs that does not ascend from one row.

    Raises:
      ValueError: naming the table.
    """
    rows, cost = [r for r, _ in costs], [c for _, c in costs]
    if len(costs) < 2 or rows[0] != 1 or rows != sorted(set(rows)) or cost != sorted(set(cost)) or cost[0] <= 0:
        raise ValueError(f"costs is {costs}: pairs (rows, cost) are needed, both ascending, the first of one row")


def best_rows(weight: Array, costs: tuple[tuple[int, float], ...], worth: float) -> Array:
    """Rows of the pass to run.

    Args:
      weight: f32[B,N] chances of nodes, falling. costs: the table. worth: tokens that a pass of one row must bring elsewhere.

    Returns:
      i32[B], entries of the table.

    >>> best_rows(jnp.asarray([[0.9, 0.8, 0.7, 0.1], [0.3, 0.1, 0.0, 0.0]]), ((1, 1.0), (4, 1.5)), 1.5).tolist()
    [4, 1]
    """
    total = jnp.pad(jnp.cumsum(weight, axis=1), ((0, 0), (1, 0)))
    rows = jnp.asarray([r for r, _ in costs], jnp.int32)
    gain = total[:, jnp.minimum(rows - 1, weight.shape[1])] - worth * jnp.asarray([c for _, c in costs], jnp.float32)[None]
    return rows[jnp.argmax(gain, axis=1)]


RATES = Rates()


@piece
def edit(costs: tuple[tuple[int, float], ...] = COSTS, pointers: int = 12, worth: float = 1.5, go_on: tuple[float, float] = (2.0, 2.0),
         trust: float = 2.0, rates: Rates = RATES, params: str = "source") -> Drafter:
    """Copies from the text being edited.

    Args:
      costs: (rows of a pass, its cost), ascending from one row. pointers: rows of tokens taken from the copy model.
      worth: tokens that a pass of one row must bring to be run. go_on: (a, b) of the chance to go on copying. trust: a suffix match of
        e tokens is believed with chance e / (e + trust), as far as the copy model leaves room. rates: of the copy model.
      params: name of the tree that holds the source, from `copy_model.spans`; of one row or of one a request.

    Returns:
      A Drafter of as many rows as the table's last entry. Its state is the text, and dies with the request.

    Raises:
      ValueError: a table that does not ascend, or numbers that are not positive.
    """
    check_costs(costs)
    if pointers < 1 or min(*go_on, worth, trust) <= 0:
        raise ValueError(f"pointers is {pointers}, worth {worth}, go_on {go_on} and trust {trust}: all must be positive")
    longest = costs[-1][0] - 1
    a, b = go_on

    def init(trees: dict[str, Any], batch: int, capacity: int, depth: int) -> CopyState:
        del depth
        source, length = trees[params]["tokens"], trees[params]["length"]
        if source.shape[0] not in (1, batch):
            raise ValueError(f"{source.shape[0]} sources for {batch} requests: one is needed, or one a request")
        return copy_model.start(jnp.broadcast_to(source, (batch, source.shape[1])), jnp.broadcast_to(length, (batch,)), capacity, rates)

    def survival(run: Array) -> Array:
        """f32[B,longest]: the chance that the next 1, 2, ... tokens are copied too, after `run` f32[B] tokens."""
        r = run[:, None] + jnp.arange(longest, dtype=jnp.float32)[None] + a
        return jnp.cumprod(r / (r + b), axis=1)

    def draft(ctx: Context, state: CopyState, plan: Plan) -> tuple[Draft, CopyState]:
        del plan
        at, chance = copy_model.pointers(state, pointers)
        copied = chance[:, :, None] * jnp.pad(survival(state.run + 1)[:, :-1], ((0, 0), (1, 0)), constant_values=1.0)[:, None]
        behind, length = copy_model.suffix(state)
        e = length.astype(jnp.float32)
        left = jnp.maximum(1 - jnp.sum(copied[:, :, 0], axis=1), 0.0)
        matched = (left * e / (e + trust))[:, None] * survival(e)
        rows = copy_model.follow(state, jnp.concatenate([at, behind[:, None]], axis=1), longest)
        p = trie.prefixes(rows, rows >= 0, jnp.concatenate([copied, matched[:, None]], axis=1))
        best = trie.heaviest(p, longest)
        made = trie.grow(ctx.root, rows, p, best, best_rows(best[0], costs, worth) - 1, (COPIED,) * at.shape[1] + (MATCHED,))
        return tree.pad(made, longest + 1), state

    def observe(ctx: Context, state: CopyState, outcome: Outcome) -> CopyState:
        block, count = rounds.emitted(outcome.draft, outcome.verdict)[0], outcome.verdict.count
        # Before the first chunk or round of a request not even the root is in the text.
        missing = ((ctx.position == 0) & (count > 0)).astype(jnp.int32)
        state = copy_model.prompt(state, ctx.root[:, None], missing, rates)
        return (copy_model.prompt if outcome.prefill else copy_model.observe)(state, block, count, rates)

    return Drafter(init, draft, observe, rows=longest + 1, depth=longest, kinds=frozenset((FORCED, DETERMINISTIC)), name=f"edit({longest})",
                   params=(params,), sources=("copied", "matched"))
