"""Slots are batch rows: moving one request's row between states, all on the device.

Every leaf of a `specjax.round.State` has leading axis B, except below a field named `shared`; that rule is all that is used here.
A request is prefilled in a state of one row, put into a slot of the running state, and taken out again if its text is to be continued.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from specjax import round as rounds
from specjax.round import STOPPED, State
from specjax.types import Array


def is_shared(path: tuple[Any, ...]) -> bool:
    """Whether a leaf's path leads through a field named `shared`."""
    return any(getattr(step, "name", None) == "shared" for step in path)


def by_row(rowwise: Callable[..., Any], *states: Any) -> Any:
    """Maps leaves with a batch axis; shared leaves are taken from the first state.

    >>> from specjax.drafters.match_state import empty
    >>> by_row(lambda x: x[:1], empty(3, 8)).text.shape
    (1, 8)
    """
    return jax.tree_util.tree_map_with_path(lambda path, x, *rest: x if is_shared(path) else rowwise(x, *rest), *states)


def with_shared(state: Any, owner: Any) -> Any:
    """`state` with the shared leaves of `owner`: what all requests learn together goes where work is done next."""
    return jax.tree_util.tree_map_with_path(lambda path, x, y: y if is_shared(path) else x, state, owner)


@functools.partial(jax.jit, donate_argnames=("state",))
def put(state: State, row: State, slot: Array) -> State:
    """Writes a state of one row into `slot` i32[] of `state`, in place."""
    return by_row(lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, slot, axis=0), state, row)


@jax.jit
def take(state: State, slot: Array) -> State:
    """A copy of one slot, as a state of one row."""
    return by_row(lambda x: jax.lax.dynamic_slice_in_dim(x, slot, 1, axis=0), state)


@functools.partial(jax.jit, donate_argnames=("state",))
def halt(state: State, slots: Array) -> State:
    """Ends the rows of `slots` bool[B], see `round.halt`."""
    return rounds.halt(state, slots)


@jax.jit
def arrange(state: State, slots: Array) -> State:
    """A state of other width: row i is row ``slots[i]`` of the old one, finished and empty where that is -1.

    Args:
      state: B rows. slots: i32[W].

    Returns:
      A state of W rows.
    """
    new = by_row(lambda x: x[jnp.maximum(slots, 0)], state)
    return new._replace(reason=jnp.where(slots >= 0, new.reason, STOPPED))


@jax.jit
def continued(old: State, fresh: State) -> State:
    """A fresh request on the cache of an old one whose whole text it continues.

    Args:
      old: a state of one row; its text is a prefix of the new prompt, so its root is a prompt token too. fresh: the new request at position 0.

    Returns:
      The new request with the old one's cache, drafter and position; prefill goes on from there.
    """
    return fresh._replace(cache=old.cache, drafter=old.drafter, root=old.root, position=old.position)
