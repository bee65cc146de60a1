"""What an expansion is: a function that turns a next-token step into a tree. Drafter factories call it."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from specjax.types import Array, Context, Draft, Rows

Step = Callable[[Any, Rows], tuple[Array, Any]]
"""(carry, Rows) -> (logits f[B,T,V], carry): the drafter's model on T nodes, whose slots the Rows name."""


class Expansion(NamedTuple):
    """Grows a tree with a drafter's next-token step.

    Attributes:
      expand: (Context, step, first f[B,V] logits below the root, carry) -> (Draft, carry).
      rows: R, the root included. depth: K. slots: scratch slots that the steps address; slot 0 is the root.
      kinds: what the nodes may be. levels: nodes of each level when slot n is row n (a static tree), else ().
      name: for messages.
    """

    expand: Callable[[Context, Step, Array, Any], tuple[Draft, Any]]
    rows: int
    depth: int
    slots: int
    kinds: frozenset[int]
    levels: tuple[int, ...]
    name: str
