"""The types every piece of specjax shares. Everything else is a function between them.

A *round* plans, drafts, runs ONE target pass, verifies, commits and observes. Row 0 of a pass is the root (the last
committed token, not yet forwarded), rows 1.. are draft nodes; the row that judges a node is its parent's.

Shapes: B batch rows, R rows of a pass, T query rows of one forward, K longest path, V vocabulary, U draft vocabulary,
Q proposal rows, N output capacity.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Array = jax.Array

EMPTY, DETERMINISTIC, INDEPENDENT, WITHOUT_REPLACEMENT, FORCED, RIDER = range(6)
"""What a row is: nothing; a value chosen without coins; one of several draws from one law; one of several draws without
replacement; a token that must be committed (row 0, prompts); a row that rides in the pass and is never committed."""

KIND_NAMES = ("empty", "deterministic", "independent", "without_replacement", "forced", "rider")


def piece(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a factory return the SAME object for the same configuration.

    A piece is a NamedTuple of closures. Two calls would make two sets of closures, and `jit` would trace twice; with the
    cache, pieces compare and hash by their configuration. Arguments must therefore be hashable.

    Args:
      factory: the function that builds a piece.

    Returns:
      The cached factory, same signature.

    >>> @piece
    ... def adder(n: int = 1): return (lambda x: x + n,)
    >>> adder(2) is adder(2), adder(1) is adder(2)
    (True, False)
    """
    return functools.wraps(factory)(functools.cache(factory))


class Proposal(NamedTuple):
    """The laws that sampled nodes were drawn from.

    Attributes:
      log_q: f[B,Q,U] log-probabilities; a row may be sub-normalised (mass of values dropped after drawing removed).
      row: i32[B,R] q row of each node (two drafters may serve one parent).
      ids: i32[U] draft vocabulary -> target ids, or None when they are the same.
    """

    log_q: Array
    row: Array
    ids: Array | None = None


class Computed(NamedTuple):
    """Layers that a prefix-exit drafter already ran on the rows of its draft; the target pass resumes after them.

    Attributes:
      hidden: f[D,B,n] residual stream after the first `layer` blocks; column r belongs to row r (n may exceed or fall short of R
        by EMPTY rows).
      scratch: the target's scratch, filled for those blocks.
      layer: how many blocks were run (static).
    """

    hidden: Array
    scratch: Any
    layer: int


class Draft(NamedTuple):
    """A token tree over rows: parents before children, siblings in draw order, EMPTY rows last.

    Attributes:
      tokens: i32[B,R]; -1 on a sampled node means drawn and dropped ("void"): tested, always rejected.
      parents: i32[B,R]; row 0 is its own parent.
      kind: i32[B,R] one of the six kinds; row 0 is FORCED.
      score: f32[B,R] the drafter's own estimate that the node is reached; verification never reads it.
      source: i32[B,R] which drafter of the composition made the node.
      proposal: laws of the sampled nodes, or None when no node is sampled (a static fact of the composition).
      computed: layers already run on these rows, or None.
      own: the drafter's own outputs over rows, when a piece asks for them.
    """

    tokens: Array
    parents: Array
    kind: Array
    score: Array
    source: Array
    proposal: Proposal | None = None
    computed: Computed | None = None
    own: dict[str, Array] = {}


class Rows(NamedTuple):
    """One forward: T query rows against R scratch slots.

    Attributes:
      tokens: i32[B,T]. depth: i32[B,T] position relative to the root. mask: bool[B,T,R] slots each row sees.
      at: i32[] slot of the first query row; the T rows are written at ``at .. at + T - 1`` before attention reads.
    """

    tokens: Array
    depth: Array
    mask: Array
    at: Array | int


class Scores(NamedTuple):
    """What a verifier may read of the pass.

    Attributes:
      logits: f[B,R,V] raw target logits of each row, before any warp.
    """

    logits: Array


class Verdict(NamedTuple):
    """What a verifier decided.

    Attributes:
      path: i32[B,K+1]; path[:,0] = 0, then accepted rows, then -1.
      count: i32[B] rows to commit = tokens emitted = accepted + 1; 0 for a finished row.
      next_token: i32[B] the token after the path.
      go_on: f32[B,K+1] the law's chance to accept some child of the visited row, -1 where the row has no child or was not
        visited.
    """

    path: Array
    count: Array
    next_token: Array
    go_on: Array


class Plan(NamedTuple):
    """How much to draft.

    Attributes:
      depth: i32[B] longest path allowed. rows: i32[B] rows allowed, the root included (1 = plain decoding).
      arm: i32[] which alternative, shared by the batch. hint: anything `keep_going` needs.
    """

    depth: Array
    rows: Array
    arm: Array
    hint: Any = ()


class Signal(NamedTuple):
    """What an adaptive drafting loop shows the controller after each drafted token.

    Attributes:
      step: i32[] tokens drafted so far. top: f32[B] the drafter's largest probability. chosen: f32[B] that of the token.
    """

    step: Array
    top: Array
    chosen: Array


class Outcome(NamedTuple):
    """What a round (or a prefill chunk, whose rows are FORCED) shows to drafters and controllers.

    Attributes:
      draft, verdict, plan: of the round. features: what the pieces asked for, f[B,R,...]. rows: i32[] rows of the pass run.
      prefill: static; True when the rows are prompt tokens.
    """

    draft: Draft
    verdict: Verdict
    features: dict[str, Array]
    plan: Plan
    rows: Array
    prefill: bool = False


class Context(NamedTuple):
    """The read-only view of the round that every piece gets.

    Attributes:
      params: name -> parameter tree; the target's under "target". target: the Target. cache: its cache.
      root: i32[B] last committed token. index: i32[B] its index in the OUTPUT (-1: last prompt token).
      position: i32[B] its position in the text. warp: Warp; warp_state: its state. noise: the coins.
    """

    params: dict[str, Any]
    target: Target
    cache: Any
    root: Array
    index: Array
    position: Array
    warp: Warp
    warp_state: Any
    noise: Any


class Target(NamedTuple):
    """A model whose cache is opaque: read by a forward, written only by `commit`.

    Attributes:
      init: (params, batch, capacity) -> cache.
      scratch: (params, batch, rows) -> scratch, where the rows of one pass live until some are selected.
      forward: (params, cache, scratch, Rows, want) -> (features, scratch); `want` is a static tuple of feature names.
      embed: (params, tokens i32[B,T]) -> x. readout: (params, x, ids) -> logits f[B,T,V].
      run_layers: (params, cache, scratch, x, Rows, lo, hi, gates, taps) -> (x, scratch, tapped).
      select: (scratch, path) -> taken. commit: (cache, taken, count) -> cache.
      vocab, layers, context, width: sizes.
    """

    init: Callable[..., Any]
    scratch: Callable[..., Any]
    forward: Callable[..., Any]
    select: Callable[..., Any]
    commit: Callable[..., Any]
    vocab: int
    context: int
    layers: int = 0
    width: int = 0
    embed: Callable[..., Any] | None = None
    run_layers: Callable[..., Any] | None = None
    readout: Callable[..., Any] | None = None


class Drafter(NamedTuple):
    """Makes drafts.

    Attributes:
      init: (params, batch, capacity, depth) -> state; `depth` is the longest path of the whole composition.
      draft: (Context, state, Plan) -> (Draft, state).
      observe: (Context, state, Outcome) -> state; also sees every prefill chunk.
      rows: R, the root included. depth: K. kinds: what its nodes may be. needs: features it reads from Outcomes.
      params: names of parameter trees it reads, besides "target". vocab: of its tokens, None = the target's.
      name: for messages and statistics. sources: one name for each value of `Draft.source`.
      computes: layers its drafts arrive with (see `Computed`); 0 = none.
    """

    init: Callable[..., Any]
    draft: Callable[..., Any]
    observe: Callable[..., Any]
    rows: int
    depth: int
    kinds: frozenset[int]
    name: str
    needs: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    vocab: int | None = None
    sources: tuple[str, ...] = ()
    computes: int = 0


class Verifier(NamedTuple):
    """Decides which path is committed and which token follows.

    Attributes:
      verify: (Context, Draft, Scores) -> Verdict.
      accepts: kinds of node it can judge. lossless: "text" (same seed, same text), "law", or "lossy". coupled: True when it
        follows the noise of the text position, so that drafters may draw with the same noise; None when each row of a batch says so.
      name: for messages.
    """

    verify: Callable[..., Any]
    accepts: frozenset[int]
    lossless: str
    coupled: bool | None
    name: str


class Warp(NamedTuple):
    """The user's sampling settings as one law-making piece. Always called for a batch, never under `vmap`, so that what no row uses costs
    nothing.

    Attributes:
      init: (arrays of `wishes`, prompt i32[B,P], length i32[B], vocab) -> state.
      adjust: (state, logits f[B,T,V], path i32[B,T,K], depth i32[B,T]) -> logits before temperature; `path` holds the tokens from the root's
        child to the row that judges, -1 padded, and `depth` their number.
      law: the same arguments -> log-probabilities f[B,T,V].
      observe: (state, tokens i32[B,K+1], count i32[B]) -> state, for emitted tokens only; `init` has seen the prompt.
      greedy: (state) -> bool[B]; True promises that the law is the point mass at the largest adjusted logit, so that a batch of greedy
        requests need not normalise or draw anything.
      wishes: (settings of each row, vocab, ...) -> arrays on the host.
    """

    init: Callable[..., Any]
    adjust: Callable[..., Any]
    law: Callable[..., Any]
    observe: Callable[..., Any]
    greedy: Callable[..., Any]
    wishes: Callable[..., Any]


class Controller(NamedTuple):
    """Chooses how much to draft, nothing included, and learns.

    Attributes:
      init: (batch) -> state. plan: (Context, state) -> (Plan, state), before any value is drawn.
      keep_going: (hint, Signal) -> (hint, bool[B]). observe: (state, Outcome) -> state. name: for messages.
    """

    init: Callable[..., Any]
    plan: Callable[..., Any]
    keep_going: Callable[..., Any]
    observe: Callable[..., Any]
    name: str


class Method(NamedTuple):
    """A composition, checked: `specjax.round.compose` makes it. Hashable; equal configurations are equal Methods.

    Attributes:
      target, drafter, verifier, controller, warp: the pieces.
      buckets: row counts of the passes that are compiled, ascending; the first is 1.
      rows: R of a draft. depth: K. want: features asked of the target pass, "logits" included.
      logprobs: None, or how many alternatives are kept beside each token's log-probability.
    """

    target: Target
    drafter: Drafter
    verifier: Verifier
    controller: Controller
    warp: Warp
    buckets: tuple[int, ...]
    rows: int
    depth: int
    want: tuple[str, ...]
    logprobs: int | None = None
