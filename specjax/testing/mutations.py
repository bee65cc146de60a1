"""Five ways to break the spine, each with the check that must notice. A proof that no fault can turn red proves nothing.

A mutation replaces one function while a method is traced under a new name; the reference text is made before.
"""
from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import noise, tree
from specjax import round as rounds
from specjax.drafters import model as model_module
from specjax.testing.checks import Found, equal_drafters, full_rounds, tiny_texts
from specjax.types import Array, Draft, Rows, Verdict


class Mutation(NamedTuple):
    """`what` is broken; `owner`, `attribute` name the function; `broken` replaces it; `prepare` and `check` must notice."""

    what: str
    owner: Any
    attribute: str
    broken: Any
    prepare: Callable[[], Any]
    check: Callable[[Any, str], Found]


_rows, _ancestors, _emitted = tree.rows, tree.ancestors, rounds.emitted


def _shifted_position(draft: Draft) -> Rows:
    r = _rows(draft)
    return r._replace(depth=r.depth + (r.depth > 0).astype(jnp.int32))


def _wrong_parent(draft: Draft) -> Rows:
    """Each node reads the text of the row before its parent, when there is one."""
    other = jnp.maximum(draft.parents - 1, 0)
    return _rows(draft)._replace(mask=_rows(draft._replace(parents=other)).mask)


def _missing_mask_bit(parents: Array) -> Array:
    number = jnp.arange(parents.shape[0])
    parent = (number[None] == parents[:, None]) & (parents > 0)[:, None]
    return _ancestors(parents) & ~parent


def _stale(draft: Draft, verdict: Verdict) -> tuple[Array, Array]:
    """The tokens a drafter hears of, the first two only: what was accepted deeper is not read again."""
    tokens, source = _emitted(draft, verdict)
    return jnp.where(jnp.arange(tokens.shape[1])[None] < 2, tokens, 0), source


def _one_stream(given: noise.Noise, number: int) -> noise.Noise:
    del number
    return given


def _no_reference() -> None:
    return None


MUTATIONS = {
    "shifted_position": Mutation("draft rows stand one position too far", tree, "rows", _shifted_position, *tiny_texts("model")),
    "wrong_parent": Mutation("draft rows read another branch", tree, "rows", _wrong_parent, *tiny_texts("kary")),
    "missing_mask_bit": Mutation("draft rows do not see their parent", tree, "ancestors", _missing_mask_bit, *tiny_texts("model")),
    "stale_draft_cache": Mutation("the drafter does not read what was accepted", model_module, "rounds",
                                  types.SimpleNamespace(emitted=_stale), _no_reference, lambda _, label: full_rounds(label)),
    "swapped_seed_stream": Mutation("two drafters throw the same coins", noise, "child", _one_stream, _no_reference,
                                    lambda _, label: equal_drafters(label)),
}


@contextlib.contextmanager
def broken(name: str) -> Iterator[None]:
    """The spine with one mutation, restored at the end; only what is traced inside is affected.

    Raises:
      ValueError: an unknown name.
    """
    if name not in MUTATIONS:
        raise ValueError(f"unknown mutation {name!r}; known: {', '.join(MUTATIONS)}")
    m = MUTATIONS[name]
    sound = getattr(m.owner, m.attribute)
    setattr(m.owner, m.attribute, m.broken)
    try:
        yield
    finally:
        setattr(m.owner, m.attribute, sound)


def noticed(name: str) -> Found:
    """Runs the check of a mutation while the spine is broken; `ok` is False when it noticed.

    Raises:
      ValueError: an unknown name.
    """
    m = MUTATIONS.get(name)
    reference = m.prepare() if m else None
    with broken(name):
        return jax.block_until_ready(m.check(reference, name))
