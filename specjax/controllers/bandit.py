"""A bandit over the arms of a `select`: tokens per unit of cost, with an upper confidence bound on a fading memory (discounted UCB).

Each arm a keeps ``n_a <- g n_a + [a was run]`` and ``r_a <- g r_a + reward``, the reward of a round being tokens per running request over
the cost of its pass; the arm with the largest ``r_a / n_a + c sqrt(log(sum n) / n_a)`` runs next, an arm never tried first. Costs come
from a table, not from a clock, so that a seed gives one run. The choice reads past outcomes only, so any law may follow it.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax.controllers.fixed import UNLIMITED
from specjax.types import Array, Context, Controller, Outcome, Plan, Signal, piece

COSTS = ((1, 1.0), (4, 1.5), (16, 2.4), (32, 4.6))
"""(rows, cost of a pass in passes of one row): the default target on two CPU cores. `python -m experiments.speed` measures others."""


def cost_of(rows: Array, costs: tuple[tuple[int, float], ...]) -> Array:
    """f32: the cost of a pass of `rows` rows, that of the next row count of the table, the last one's in proportion beyond its end.

    >>> cost_of(jnp.asarray([1, 9, 64]), COSTS).tolist()
    [1.0, 2.4000000953674316, 9.199999809265137]
    """
    at = jnp.sum(rows[..., None] > jnp.asarray([r for r, _ in costs[:-1]]).reshape((1,) * rows.ndim + (-1,)), axis=-1)
    beyond = jnp.maximum(rows.astype(jnp.float32) / np.float32(costs[-1][0]), 1.0)
    return jnp.asarray([c for _, c in costs], jnp.float32)[at] * beyond


class Pulls(NamedTuple):
    """Fading counts and rewards of the arms: f32[A] each."""

    count: Array
    reward: Array


class BanditState(NamedTuple):
    """`shared`: the arms are the batch's."""

    shared: Pulls


@piece
def bandit(arms: int, costs: tuple[tuple[int, float], ...] = COSTS, memory: float = 0.98, explore: float = 0.2) -> Controller:
    """Chooses an arm a round.

    Args:
      arms: A. costs: (rows, cost) of passes, ascending. memory: g, what is left of a count after a round. explore: c.

    Returns:
      A Controller whose state is shared by the batch.

    Raises:
      ValueError: fewer than two arms, a memory outside (0, 1], or costs that do not ascend.
    """
    if arms < 2 or not 0 < memory <= 1 or explore < 0:
        raise ValueError(f"arms is {arms}, memory is {memory}, explore is {explore}: two arms or more, a memory in (0, 1], explore from 0 on")
    check_costs(costs)

    def init(batch: int) -> BanditState:
        del batch
        return BanditState(Pulls(jnp.zeros(arms, jnp.float32), jnp.zeros(arms, jnp.float32)))

    def plan(ctx: Context, state: BanditState) -> tuple[Plan, BanditState]:
        n = state.shared.count
        seen = jnp.maximum(n, 1e-6)
        bound = state.shared.reward / seen + explore * jnp.sqrt(jnp.log(jnp.maximum(jnp.sum(n), 1.0)) / seen)
        arm = jnp.argmax(jnp.where(n < 1e-3, jnp.inf, bound)).astype(jnp.int32)
        many = jnp.full(ctx.root.shape, UNLIMITED, jnp.int32)
        return Plan(many, many, arm), state

    def keep_going(hint: Any, signal: Signal) -> tuple[Any, Array]:
        return hint, jnp.ones(signal.top.shape, bool)

    def observe(state: BanditState, outcome: Outcome) -> BanditState:
        count = outcome.verdict.count.astype(jnp.float32)
        tokens = jnp.sum(count) / jnp.maximum(jnp.sum(count > 0).astype(jnp.float32), 1.0)
        mine = (jnp.arange(arms) == outcome.plan.arm).astype(jnp.float32)
        gain = tokens / cost_of(outcome.rows, costs)
        return BanditState(Pulls(state.shared.count * memory + mine, state.shared.reward * memory + mine * gain))

    return Controller(init, plan, keep_going, observe, f"bandit({arms})")


def check_costs(costs: tuple[tuple[int, float], ...]) -> None:
    """Refuses a table of costs that is empty or does not ascend from one row on.

    Raises:
      ValueError: such a table.
    """
    rows, prices = [r for r, _ in costs], [c for _, c in costs]
    if not costs or rows[0] != 1 or rows != sorted(set(rows)) or min(prices) <= 0 or prices != sorted(prices):
        raise ValueError(f"costs is {costs}: (rows, cost) pairs, ascending from one row on, are needed")
