"""The one table of names: every system of the literature that is built so far, and its composition.

`get("lookup")` gives an entry; `specjax.generate(model, prompts, method=get("lookup"))` composes it for the model. METHODS.md is
written from this table by ``python -m experiments.list_methods --write``.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from specjax.controllers.fixed import fixed
from specjax.drafters import copy_model
from specjax.drafters.combine import merge
from specjax.drafters.edit import edit
from specjax.drafters.lookup import lookup
from specjax.drafters.model import model as model_drafter
from specjax.drafters.none import none
from specjax.drafters.pace import paced
from specjax.drafters.self_draft import early_exit, layer_skip
from specjax.expand.dynamic import dynamic
from specjax.expand.static import chain, gumbel, independent, kary
from specjax.model import Model, from_layers
from specjax.round import compose
from specjax.types import Drafter, Method, Verifier
from specjax.verifiers.match import match
from specjax.verifiers.rejection import rejection, rejection_chain


class Entry(NamedTuple):
    """A named composition.

    Attributes:
      name: what `get` takes. origin: authors and year. what: one line. lossless: "text", "law" or "lossy".
      make: (Model) -> (Method, parameters by name).
    """

    name: str
    origin: str
    what: str
    lossless: str
    make: Callable[[Model], tuple[Method, dict[str, Any]]]

    def build(self, model: Model) -> tuple[Method, dict[str, Any]]:
        """The Method for a model, and the parameters it needs."""
        return self.make(model)


def _plain(model: Model, drafter: Drafter, verifier: Verifier) -> tuple[Method, dict[str, Any]]:
    return compose(model.target, drafter, verifier, fixed()), {"target": model.params}


def _edit(model: Model) -> tuple[Method, dict[str, Any]]:
    """Without a source until one is given: the longest suffix match of prompt and output."""
    method, params = _plain(model, edit(), match())
    return method, params | {"source": copy_model.spans([[]])}


def _by_itself(drafter: Callable[[Model], Drafter], verifier: Callable[[], Verifier] = match) -> Callable[[Model], Any]:
    return lambda model: _plain(model, drafter(model), verifier())


def _first_third(model: Model) -> Model:
    """The stand-in for a small draft model: the first third of the target's blocks, sharing embedding, norm and head."""
    return from_layers(model, tuple(range(max(1, model.config.layers // 3))))


def _with_small(drafter: Callable[[Model], Drafter], verifier: Callable[[], Verifier] = match) -> Callable[[Model], Any]:
    def make(model: Model) -> tuple[Method, dict[str, Any]]:
        small = _first_third(model)
        method, params = _plain(model, drafter(small), verifier())
        return method, params | {"draft": small.params}
    return make


def _alternate(model: Model) -> tuple[bool, ...]:
    """Every third block of the middle is left out; the first two and the last two run."""
    last = model.config.layers - 2
    return tuple(not (2 <= i < last and i % 3 == 0) for i in range(model.config.layers))


_ALL = (
    Entry("plain", "-", "no draft: the baseline of every ratio, in the same loop", "text", _by_itself(lambda m: none())),
    Entry("lookup", "Saxena 2023 (prompt lookup)",
          "what followed the longest earlier match of the text's own suffix, as many rows as pay", "text",
          _by_itself(lambda m: paced(lookup(((1, 15),))))),
    Entry("speculative_decoding", "Leviathan et al. 2023; Chen et al. 2023", "a small model drafts a sampled chain of 3; rejection",
          "law", _with_small(lambda d: model_drafter(d.target, chain(3)), rejection_chain)),
    Entry("model", "Leviathan et al. 2023, coupled", "a small model drafts a chain of 3 with the text's own noise; match", "text",
          _with_small(lambda d: model_drafter(d.target, chain(3)))),
    Entry("model_tree", "EAGLE-2's expansion, Li et al. 2024", "a small model grows a dynamic tree of 16 rows; match", "text",
          _with_small(lambda d: model_drafter(d.target, dynamic(4, 4, 16)))),
    Entry("kary", "static trees, Miao et al. 2023; Cai et al. 2024", "a small model, k-ary tree (3, 2, 1) of its likeliest tokens; match",
          "text", _with_small(lambda d: model_drafter(d.target, kary(3, 2, 1)))),
    Entry("multi_candidate", "Yang et al. 2024; SpecInfer, Miao et al. 2023", "a small model, independent candidates (3, 2, 1); rejection",
          "law", _with_small(lambda d: model_drafter(d.target, independent(3, 2, 1)), rejection)),
    Entry("recursive", "Jeon et al. 2024 (RSD-C)", "a small model, draws without replacement (3, 2, 1); rejection", "law",
          _with_small(lambda d: model_drafter(d.target, gumbel(3, 2, 1)), rejection)),
    Entry("layer_skip", "Zhang et al. 2023 (Draft & Verify)", "the target with some middle blocks left out drafts a chain of 3; match",
          "text", _by_itself(lambda m: layer_skip(chain(3), _alternate(m), _alternate(m)))),
    Entry("early_exit", "Elhoushi et al. 2024 (LayerSkip, untrained)", "the first half of the blocks drafts 3; the pass resumes there; match",
          "text", _by_itself(lambda m: early_exit(chain(3), max(1, m.config.layers // 2)))),
    Entry("lookup_and_model", "prefix merge of two drafters", "lookup and a small model's chain, merged to 16 rows; match", "text",
          _with_small(lambda d: merge(lookup(((2, 3), (5, 12))), model_drafter(d.target, chain(3)), rows=16))),
    Entry("edit", "-", "copies the text being edited through its edits: a soft pointer over source and output, a tree of where it may go on; match",
          "text", _edit),
)
TABLE = {entry.name: entry for entry in _ALL}


def get(name: str) -> Entry:
    """The entry of a name.

    Raises:
      ValueError: an unknown name; the known ones are listed.

    >>> get("lookup").lossless
    'text'
    """
    if name not in TABLE:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(TABLE)}")
    return TABLE[name]


def names() -> tuple[str, ...]:
    """All names."""
    return tuple(TABLE)
