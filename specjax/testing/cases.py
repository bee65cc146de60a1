"""The cases of the exact law: every expansion and every mix of siblings that drafters can make, on vocabularies of 3 to 6."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.drafters.choose import cascade, select
from specjax.drafters.combine import beside, limit, merge
from specjax.drafters.graft import graft, hierarchy, pruned_merge
from specjax.drafters.model import model
from specjax.drafters.pace import paced
from specjax.expand.base import Expansion
from specjax.expand.dynamic import dynamic
from specjax.expand.static import chain, gumbel, independent, kary
from specjax.grammar import Automaton
from specjax.settings import Settings
from specjax.testing import negative
from specjax.testing.draws import Case, Leaf
from specjax.testing.table_lm import table_target
from specjax.types import INDEPENDENT, WITHOUT_REPLACEMENT, Context, Draft, Drafter, Plan, piece

Sampled = (INDEPENDENT, WITHOUT_REPLACEMENT)


def _leaf(vocab: int, depth: int, expansion: Expansion, params: str, stream: int) -> Leaf:
    kind = next((k for k in Sampled if k in expansion.kinds), 0)
    return Leaf(model(table_target(vocab, depth), expansion, params), stream, kind, expansion.levels)


def case(name: str, vocab: int, *expansions: Expansion, join: Callable[..., Drafter] | None = None, at: float = 1.0, seed: int = 0,
         settings: Settings | None = None) -> Case:
    """A case of table drafters, the first with the parameters "draft", the second with "draft2", and so on again.

    Args:
      name: for messages. vocab: V. *expansions: one a drafter. join: makes one drafter of them. at: temperature. seed: of the tables.
      settings: take the place of `at`.
    """
    depth = max(e.depth for e in expansions)
    streams = range(1, 1 + len(expansions)) if len(expansions) > 1 else (0,)
    leaves = [_leaf(vocab, depth, e, ("draft", "draft2")[i % 2], s) for i, (e, s) in enumerate(zip(expansions, streams, strict=True))]
    drafters = [leaf.drafter for leaf in leaves]
    drafter = drafters[0] if join is None else join(*drafters)
    return Case(name, vocab, depth, drafter, tuple(leaf for leaf in leaves if leaf.kind), at, seed, settings)


@piece
def interleaved(drafter: Drafter, order: tuple[int, ...]) -> Drafter:
    """The drafter with the rows of its one-level tree in another order: draws of two groups take turns."""
    at = jnp.asarray(order)

    def draft(ctx: Context, state: Any, plan: Plan) -> tuple[Draft, Any]:
        made, state = drafter.draft(ctx, state, plan)
        proposal = made.proposal._replace(row=made.proposal.row[:, at])
        return made._replace(tokens=made.tokens[:, at], kind=made.kind[:, at], score=made.score[:, at], proposal=proposal), state

    return drafter._replace(draft=draft, name=f"interleaved({drafter.name})")


@piece
def armed(drafter: Drafter, arm: int) -> Drafter:
    """The drafter under a controller that always chooses `arm`."""
    def draft(ctx: Context, state: Any, plan: Plan) -> tuple[Draft, Any]:
        return drafter.draft(ctx, state, plan._replace(arm=jnp.int32(arm)))

    return drafter._replace(draft=draft, name=f"armed({drafter.name}, {arm})")


def exact_cases() -> list[Case]:
    """Cases that every lossless verifier must pass."""
    return [
        case("chain of 3, independent", 4, chain(3)),
        case("chain of 2, V 6, temperature 0.7", 6, chain(2), at=0.7),
        case("chain of 2, greedy", 5, chain(2), at=0.0),
        case("k-ary (2, 2) of the likeliest", 6, kary(2, 2)),
        case("independent (2, 2)", 3, independent(2, 2)),
        case("without replacement (2, 2)", 4, gumbel(2, 2)),
        case("without replacement (3, 1), the whole support", 3, gumbel(3, 1)),
        case("deterministic beside without replacement", 4, kary(1, 1), gumbel(2, 1), join=beside),
        case("deterministic beside independent", 4, kary(1, 1), independent(2, 1), join=beside),
        case("without replacement beside deterministic", 5, gumbel(2), kary(2), join=beside),
        case("two drafters, independent", 3, independent(2, 1), chain(2), join=beside),
        case("two drafters, without replacement", 4, gumbel(2), gumbel(2), join=beside),
        case("two drafters, interleaved without replacement", 4, gumbel(2), gumbel(2), join=lambda a, b: interleaved(beside(a, b), (0, 1, 3, 2, 4))),
        case("two drafters, mixed draws, depth 2", 3, gumbel(2, 1), chain(2), join=beside),
        case("merge of two sampled drafters", 3, independent(2, 1), chain(2), join=lambda a, b: merge(a, b, rows=5)),
        case("sampled chain cut to the rows that pay", 4, chain(2), join=lambda d: paced(d, ((1, ((1, 1.0), (2, 1.2), (3, 1.9))),))),
        case("noisy-or merge of two sampled drafters", 3, gumbel(2), independent(2), join=lambda a, b: merge(a, b, rows=3, how="noisy_or")),
        case("cascade of two sampled drafters", 3, chain(2), independent(2, 1), join=lambda a, b: cascade(a, b, least=(0.7,))),
        case("graft of two sampled drafters", 3, gumbel(2, 1), chain(2), join=lambda a, b: graft(a, b, rows=4, stages=((1, 0.5, 1), (2, 0.4, 2)))),
        case("hierarchy of two sampled drafters", 3, independent(2), gumbel(2), join=lambda a, b: hierarchy(a, b, need=2, rows=4)),
        case("pruned merge of two sampled drafters", 3, gumbel(2), chain(2), join=lambda a, b: pruned_merge(a, b, rows=4, least=0.2)),
        case("the second of two selected drafters", 3, gumbel(2), chain(2), join=lambda a, b: armed(select(a, b), 1)),
        case("the first of two selected drafters", 4, kary(2), gumbel(2, 1), join=lambda a, b: armed(select(a, b), 0)),
        case("dynamic (3, 3, 6)", 5, dynamic(3, 3, 6)),
        case("void nodes", 5, independent(2), join=lambda d: negative.drop_unlikely(d, 0.25, void=True)),
        case("void nodes without replacement", 5, gumbel(3), join=lambda d: negative.drop_unlikely(d, 0.08, void=True)),
        case("void nodes in a chain", 4, chain(2), join=lambda d: negative.drop_unlikely(d, 0.25, void=True)),
    ]


def settings_cases() -> list[Case]:
    """Each setting alone and all together, on trees and chains whose deeper rows see the path."""
    end = Automaton(np.asarray([[1, -1], [0, 1], [-1, -1]], np.int16), np.asarray([0, 1, 1, 0]), np.asarray([False, True, False]), "(a(b|c)*)+")
    every = {"temperature": 0.8, "top_k": 3, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.3, "presence_penalty": 0.2,
             "frequency_penalty": 0.4, "logit_bias": ((1, 0.5),), "stop_ids": (3,), "min_new_tokens": 1}
    wishes = [{"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.4}, {"typical_p": 0.6}, {"repetition_penalty": 1.8}, {"presence_penalty": 1.0},
              {"frequency_penalty": -1.2}, {"logit_bias": ((0, 2.0), (2, -1.0))}, {"banned": (1,)}, {"stop_ids": (0, 2), "min_new_tokens": 2},
              {"stop_ids": (3,), "grammar": end}, every]
    shapes = [("independent (2, 2)", 3, independent(2, 2)), ("chain of 2", 4, chain(2)), ("without replacement (2, 1)", 4, gumbel(2, 1))]
    out = []
    for i, wish in enumerate(wishes):
        name, vocab, expansion = shapes[1 + i % 2] if "stop_ids" in wish or "grammar" in wish else shapes[i % 3]
        out.append(case(f"{'all' if wish is every else ' '.join(wish)}: {name}", vocab, expansion, settings=Settings(**{"temperature": 1.0, **wish})))
    return out


def chain_cases() -> list[Case]:
    """Chains on which the parallel rule must decide as the walk does."""
    return [
        case("sampled chain of 3", 5, chain(3)),
        case("chain of 3 with void nodes", 5, chain(3), join=lambda d: negative.drop_unlikely(d, 0.2, void=True)),
        case("chain of 3 cut to 2", 5, chain(3), join=lambda d: limit(d, 2)),
        case("chain of 3 of the likeliest", 5, chain(3, "top")),
    ]


def wrong_cases() -> list[Case]:
    """Cases that are biased; the proof must say so."""
    return [
        case("argmax declared as sampled", 4, independent(1), join=negative.argmax_as_sampled),
        case("unlikely samples silently dropped", 4, independent(1), join=lambda d: negative.drop_unlikely(d, 0.3, void=False)),
        case("top-p on the stored law only", 4, independent(1), join=lambda d: negative.top_p_on_one_side(d, 0.7)),
        case("better of two declared as sampled", 4, independent(2), join=negative.better_of_two),
    ]
