"""One round: plan, draft, ONE target pass, verify, commit, observe.

The pass runs in the branch of a `switch` over row counts, chosen AFTER drafting; the cache is only read inside, and the K + 1
accepted rows are committed outside, in place. What is not committed was never written: there is no rollback. A prefill chunk
is the same pass with FORCED rows (`forced`), and plain decoding is the round whose draft has one row.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import tree
from specjax.noise import Noise
from specjax.sampling import temperature
from specjax.types import (
    EMPTY,
    FORCED,
    KIND_NAMES,
    RIDER,
    Array,
    Context,
    Controller,
    Draft,
    Drafter,
    Method,
    Outcome,
    Plan,
    Scores,
    Target,
    Verdict,
    Verifier,
    Warp,
)

FLATS = (1, 4, 16, 32, 64, 128, 256)
"""Row counts between which a pass costs nearly the same (measured on a CPU: 5 to 16 rows differ by less than a tenth, 9 to 15
are slower than 16); a draft is padded to the next one."""

RUNNING, STOPPED, FULL = range(3)
"""Finish reasons: still running, a stop id was emitted, the length limit was reached."""


class Statistics(NamedTuple):
    """Counts per batch row; `shared` holds those of the batch.

    Attributes:
      rounds: i32[B]. emitted: i32[B] tokens. drafted: i32[B] nodes. drafted_at, accepted_at: i32[B,K] rounds that had a node at
        depth d + 1, and that accepted one. go_on, visited: f32[B], i32[B] sum and count of the law's chance to go on.
      by_source: i32[B,S] accepted tokens of each drafter. shared: i32[buckets] passes of each size.
    """

    rounds: Array
    emitted: Array
    drafted: Array
    drafted_at: Array
    accepted_at: Array
    go_on: Array
    visited: Array
    by_source: Array
    shared: Array


class LogProbs(NamedTuple):
    """Log-probabilities of emitted tokens under the model's own law: raw logits, temperature 1, before every setting.

    Attributes:
      want: i32[B] alternatives that a row asked for, -1 = nothing. chosen: f32[B,N]. ids: i32[B,N,n] the likeliest tokens, the likeliest first;
        top: f32[B,N,n] theirs.
    """

    want: Array
    chosen: Array
    ids: Array
    top: Array


class State(NamedTuple):
    """What a generation carries from round to round. Every leaf has leading axis B, except under `shared`.

    Attributes:
      cache: the target's. root: i32[B] last committed token. index: i32[B] its index in the output, -1 before the first.
      position: i32[B] its position in the text. request: i32[B] ids that key the coins. warp, drafter, controller: states.
      tokens: i32[B,N] output. source: i32[B,N] 0 = the target's own token, s + 1 = drafted by source s.
      limit: i32[B] most tokens to emit. stops: i32[B,E] stop ids, -1 padded. reason: i32[B] RUNNING, STOPPED or FULL.
      statistics: counts. seed: u32[B]. draft: i32[B] most tokens to draft a round. coupled: bool[B] whether the row follows the text's noise,
        read where the verifier leaves it to the rows. logprobs: None where the method keeps none.
    """

    cache: Any
    root: Array
    index: Array
    position: Array
    request: Array
    warp: Any
    drafter: Any
    controller: Any
    tokens: Array
    source: Array
    limit: Array
    stops: Array
    reason: Array
    statistics: Statistics
    seed: Array
    draft: Array
    coupled: Array
    logprobs: LogProbs | None = None


def compose(target: Target, drafter: Drafter, verifier: Verifier, controller: Controller, warp: Warp | None = None,
            buckets: tuple[int, ...] | None = None) -> Method:
    """Checks a composition and freezes it.

    Args:
      target, drafter, verifier, controller, warp: the pieces; the default warp is temperature.
      buckets: row counts of the compiled passes, ascending, first 1; default: the flats up to the drafter's rows.

    Returns:
      A Method. Equal pieces give an equal Method, so `jit` traces once.

    Raises:
      ValueError: a verifier that cannot judge the drafter's nodes, or a drafter of another vocabulary; both sides are named.
    """
    foreign = drafter.kinds - verifier.accepts
    if foreign:
        kinds = ", ".join(KIND_NAMES[k] for k in sorted(foreign))
        raise ValueError(f"verifier {verifier.name!r} cannot judge the {kinds} nodes of drafter {drafter.name!r}")
    if drafter.vocab is not None and drafter.vocab != target.vocab:
        raise ValueError(f"drafter {drafter.name!r} speaks a vocabulary of {drafter.vocab} tokens, the target one of {target.vocab}")
    if drafter.computes and drafter.computes >= target.layers:
        raise ValueError(f"drafter {drafter.name!r} exits after {drafter.computes} layers; the target has only {target.layers}")
    if buckets is None:
        wide = [f for f in FLATS if f < drafter.rows]
        top = next((f for f in FLATS if f >= drafter.rows), -(-drafter.rows // 64) * 64)
        buckets = (*wide, top)
    if buckets[0] != 1 or list(buckets) != sorted(set(buckets)) or buckets[-1] < drafter.rows:
        raise ValueError(f"buckets {buckets} must start at 1, ascend, and reach the {drafter.rows} rows of drafter {drafter.name!r}")
    want = ("logits", *(n for n in drafter.needs if n != "logits"))
    return Method(target, drafter, verifier, controller, warp or temperature(), tuple(buckets), buckets[-1], drafter.depth, want)


def start(m: Method, params: dict[str, Any], *, root: Array, capacity: int, room: int, limit: Array, stops: Array, request: Array,
          seed: Array, warp: Any, draft: Array | None = None, coupled: Array | None = None, want: Array | None = None) -> State:
    """The state before the first token of a prompt is forwarded.

    Args:
      m, params: the composition and its parameters. root: i32[B] first prompt token. capacity: S, cache slots (static).
      room: N, output capacity (static), at least the largest limit. limit, stops, request, warp: as in `State`. seed: u32[] or u32[B].
      draft, coupled: as in `State`, default no limit and True. want: of `LogProbs`, default nothing.

    Returns:
      A State at position 0.
    """
    batch, k = root.shape[0], max(m.depth, 1)
    zero = jnp.zeros(batch, jnp.int32)
    sources = max(1, len(m.drafter.sources))
    statistics = Statistics(zero, zero, zero, jnp.zeros((batch, k), jnp.int32), jnp.zeros((batch, k), jnp.int32),
                            jnp.zeros(batch, jnp.float32), zero, jnp.zeros((batch, sources), jnp.int32),
                            jnp.zeros(len(m.buckets), jnp.int32))
    out = jnp.full((batch, room + m.depth + 1), -1, jnp.int32)
    logprobs = None
    if m.logprobs is not None:
        wide = (*out.shape, m.logprobs)
        logprobs = LogProbs(zero - 1 if want is None else want, jnp.zeros(out.shape, jnp.float32), jnp.zeros(wide, jnp.int32),
                            jnp.zeros(wide, jnp.float32))
    return State(m.target.init(params["target"], batch, capacity), root, zero - 1, zero, request, warp,
                 m.drafter.init(params, batch, capacity, m.depth), m.controller.init(batch), out, jnp.zeros_like(out), limit, stops,
                 jnp.where(limit > 0, RUNNING, FULL), statistics, jnp.broadcast_to(seed, (batch,)),
                 jnp.full(batch, k, jnp.int32) if draft is None else draft, jnp.ones(batch, bool) if coupled is None else coupled, logprobs)


def remember(new: State, old: State) -> State:
    """A fresh state with what an earlier one of the same Method learned: the fields named `shared` of drafter and controller.

    Raises:
      ValueError: states of other pieces, or shared tables of another shape.
    """
    def pick(path: tuple[Any, ...], a: Array, b: Array) -> Array:
        if not any(getattr(key, "name", None) == "shared" for key in path):
            return a
        if a.shape != b.shape:
            raise ValueError(f"the memory{jax.tree_util.keystr(path)} has shape {b.shape}, this state needs {a.shape}")
        return jnp.array(b)  # a copy: states are donated

    return new._replace(**{name: jax.tree_util.tree_map_with_path(pick, getattr(new, name), getattr(old, name))
                           for name in ("drafter", "controller")})


def context(m: Method, params: dict[str, Any], s: State) -> Context:
    """The read-only view of a round."""
    noise = Noise(s.seed, s.request, s.coupled if m.verifier.coupled is None else m.verifier.coupled)
    return Context(params, m.target, s.cache, s.root, s.index, s.position, m.warp, s.warp, noise)


def round(m: Method, params: dict[str, Any], s: State) -> State:  # noqa: A001  the field's word
    """One round of the method on every row that still runs; finished rows stay as they are."""
    ctx = context(m, params, s)
    plan, controller = m.controller.plan(ctx, s.controller)
    # A drafter that weighs the rows of a batch against each other must not count those that are finished or nearly so.
    plan = plan._replace(rows=jnp.where((s.reason == RUNNING) & (s.draft > 0), plan.rows, 1),
                         depth=jnp.minimum(jnp.minimum(plan.depth, s.draft), s.limit - s.index - 2))
    draft, drafter = m.drafter.draft(ctx, s.drafter, plan)
    draft = tree.pad(tree.clip(draft, plan.rows, plan.depth), m.rows)

    def judge(x: Draft, scores: Scores) -> Verdict:
        return stop(m.verifier.verify(ctx, x, scores), x, s)

    s = s._replace(drafter=drafter, controller=controller)
    return advance(m, params, s, ctx, draft, plan, m.buckets, judge)


def advance(m: Method, params: dict[str, Any], s: State, ctx: Context, draft: Draft, plan: Plan, buckets: tuple[int, ...],
            judge: Callable[[Draft, Scores], Verdict], prefill: bool = False) -> State:
    """The pass over a draft and everything after it; `round` and prefill share it."""
    batch, longest = s.root.shape[0], buckets[-1] if prefill else m.depth + 1
    kept = tuple(n for n in m.want if n != "logits" or "logits" in m.drafter.needs)

    def branch(rows: int) -> Callable[[], tuple[Any, ...]]:
        def run() -> tuple[Any, ...]:
            x = tree.first(draft, rows)
            scratch, extra = m.target.scratch(params["target"], batch, rows), {}
            if draft.computed is not None:
                at = jnp.minimum(jnp.arange(rows), draft.computed.hidden.shape[2] - 1)
                scratch = m.target.select(draft.computed.scratch, jnp.broadcast_to(at, (batch, rows)))
                extra = {"resume": (draft.computed.hidden[:, :, at], draft.computed.layer)}
            features, work = m.target.forward(params["target"], s.cache, scratch, tree.rows(x), m.want, **extra)
            verdict = _fit(judge(x, Scores(features["logits"])), longest)
            notes = None if prefill or s.logprobs is None else note(s.logprobs, x, verdict, features["logits"])
            return verdict, m.target.select(work, verdict.path), {n: _pad_rows(features[n], buckets[-1]) for n in kept}, notes
        return run

    live = jnp.max(jnp.where(s.reason == RUNNING, tree.live_rows(draft), 1))
    which = jnp.sum(live > jnp.asarray(buckets[:-1], jnp.int32)).astype(jnp.int32)
    branches = [branch(r) for r in buckets]
    verdict, taken, features, notes = branches[0]() if len(branches) == 1 else jax.lax.switch(which, branches)
    outcome = Outcome(draft, verdict, features, plan, jnp.asarray(buckets, jnp.int32)[which], prefill)
    block, source = emitted(draft, verdict)
    return (s if prefill else emit(s, m, draft, verdict, block, source, which, notes))._replace(
        cache=m.target.commit(s.cache, taken, verdict.count),
        root=jnp.where(verdict.count > 0, verdict.next_token, s.root), position=s.position + verdict.count,
        warp=s.warp if prefill else m.warp.observe(s.warp, block, verdict.count), drafter=m.drafter.observe(ctx, s.drafter, outcome),
        controller=s.controller if prefill else m.controller.observe(s.controller, outcome))


def _pad_rows(x: Array, rows: int) -> Array:
    return jnp.pad(x, [(0, 0), (0, rows - x.shape[1])] + [(0, 0)] * (x.ndim - 2))


def _fit(v: Verdict, width: int) -> Verdict:
    """The verdict with a path of `width` = K + 1 columns, whatever the rows of the pass were."""
    def fit(x: Array) -> Array:
        return jnp.pad(x, ((0, 0), (0, max(0, width - x.shape[1]))), constant_values=-1)[:, :width]

    return v._replace(path=fit(v.path), go_on=fit(v.go_on))


def emitted(draft: Draft, verdict: Verdict) -> tuple[Array, Array]:
    """What a verdict emits.

    Returns:
      (tokens i32[B,K+1], -1 beyond count; source i32[B,K+1], 0 for the target's own token, s + 1 for source s).
    """
    width = verdict.path.shape[1]
    rows = jnp.maximum(jnp.roll(verdict.path, -1, axis=1), 0)
    at, last = jnp.arange(width)[None], verdict.count[:, None] - 1
    tokens = jnp.take_along_axis(draft.tokens, rows, axis=1)
    source = jnp.take_along_axis(draft.source, rows, axis=1) + 1
    tokens = jnp.where(at < last, tokens, jnp.where(at == last, verdict.next_token[:, None], -1))
    return tokens, jnp.where(at < last, source, 0)


def note(old: LogProbs, draft: Draft, verdict: Verdict, logits: Array) -> tuple[Array, Array, Array]:
    """Log-probabilities of what a verdict emits, from the rows that judged it; zeros if no row of the batch wants any.

    Returns:
      (chosen f32[B,K+1], ids i32[B,K+1,n], top f32[B,K+1,n]).
    """
    block, n = emitted(draft, verdict)[0], old.ids.shape[2]

    def some() -> tuple[Array, Array, Array]:
        rows = jnp.take_along_axis(logits, jnp.maximum(verdict.path, 0)[..., None], axis=1).astype(jnp.float32)
        total = jax.scipy.special.logsumexp(rows, axis=-1, keepdims=True)
        chosen = jnp.take_along_axis(rows, jnp.maximum(block, 0)[..., None], axis=2) - total
        top, ids = jax.lax.top_k(rows, n)
        return chosen[..., 0], ids, top - total

    def none() -> tuple[Array, Array, Array]:
        zero = jnp.zeros((*block.shape, n), jnp.float32)
        return jnp.zeros(block.shape, jnp.float32), zero.astype(jnp.int32), zero

    return jax.lax.cond(jnp.any(old.want >= 0), some, none)


def stop(verdict: Verdict, draft: Draft, s: State) -> Verdict:
    """Ends a verdict at the first stop id or at the length limit; finished rows commit nothing."""
    tokens, _ = emitted(draft, verdict)
    at = jnp.arange(tokens.shape[1])[None]
    hit = jnp.any(tokens[:, :, None] == s.stops[:, None, :], axis=-1) & (tokens >= 0)
    until = jnp.min(jnp.where(hit, at + 1, tokens.shape[1]), axis=1)
    count = jnp.minimum(jnp.minimum(verdict.count, until), s.limit - s.index - 1)
    count = jnp.where(s.reason == RUNNING, count, 0)
    last = jnp.take_along_axis(tokens, jnp.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
    path = jnp.where(at < jnp.maximum(count, 1)[:, None], verdict.path, -1)
    return Verdict(path, count, jnp.where(count > 0, last, s.root), verdict.go_on)


def emit(s: State, m: Method, draft: Draft, verdict: Verdict, block: Array, source: Array, which: Array,
         notes: tuple[Array, Array, Array] | None = None) -> State:
    """Writes the emitted tokens, counts them, and marks the rows that are finished."""
    width, batch = block.shape[1], s.root.shape[0]
    column = jnp.arange(width)[None]
    at = jnp.where(column < verdict.count[:, None], s.index[:, None] + 1 + column, s.tokens.shape[1])
    b = jnp.arange(batch)[:, None]
    index = s.index + verdict.count
    stopped = jnp.any(verdict.next_token[:, None] == s.stops, axis=1) & (verdict.count > 0)
    reason = jnp.where(s.reason != RUNNING, s.reason,
                       jnp.where(stopped, STOPPED, jnp.where(index + 1 >= s.limit, FULL, RUNNING)))
    old, active = s.statistics, (verdict.count > 0).astype(jnp.int32)
    depth = jnp.arange(old.drafted_at.shape[1])[None] + 1
    node = (draft.kind != EMPTY) & (draft.kind != RIDER) & (jnp.arange(draft.kind.shape[1]) > 0)[None]
    deepest = jnp.max(jnp.where(node, jax.vmap(tree.depths)(draft.parents), 0), axis=1)
    seen = (verdict.go_on >= 0) & (verdict.path >= 0)
    names = jnp.arange(old.by_source.shape[1])[None, None] + 1
    statistics = Statistics(
        old.rounds + active, old.emitted + verdict.count, old.drafted + jnp.sum(node, axis=1) * active,
        old.drafted_at + (deepest[:, None] >= depth).astype(jnp.int32) * active[:, None],
        old.accepted_at + (verdict.count[:, None] - 1 >= depth).astype(jnp.int32),
        old.go_on + jnp.sum(jnp.where(seen, verdict.go_on, 0.0), axis=1) * active.astype(jnp.float32),
        old.visited + jnp.sum(seen, axis=1) * active,
        old.by_source + jnp.sum(source[:, :, None] == names, axis=1), old.shared.at[which].add(1))
    if notes is not None:
        kept = (old.at[b, at].set(new, mode="drop") for old, new in zip(s.logprobs[1:], notes, strict=True))
        s = s._replace(logprobs=LogProbs(s.logprobs.want, *kept))
    return s._replace(tokens=s.tokens.at[b, at].set(block, mode="drop"), source=s.source.at[b, at].set(source, mode="drop"),
                      index=index, reason=reason, statistics=statistics)


def halt(s: State, rows: Array) -> State:
    """Ends the rows bool[B]: they emit nothing more and cost no further rows of a pass."""
    return s._replace(reason=jnp.where(rows & (s.reason == RUNNING), STOPPED, s.reason))


def forced(m: Method, params: dict[str, Any], s: State, prompt: Array, length: Array, chunk: int) -> State:
    """One prefill chunk: commits up to `chunk` prompt tokens of each row and shows them to the drafter.

    Args:
      m, params: the composition. s: a state whose root is ``prompt[position]``. prompt: i32[B,P]. length: i32[B] tokens in use.
      chunk: rows of the pass (static).

    Returns:
      The state after the chunk; a row is filled when its root is the last prompt token.
    """
    batch = s.root.shape[0]
    at = jnp.minimum(s.position[:, None] + jnp.arange(chunk + 1)[None], prompt.shape[1] - 1)
    block = jnp.take_along_axis(prompt, at, axis=1)
    count = jnp.clip(length - 1 - s.position, 0, chunk)
    draft = tree.chain(s.root, block[:, 1:chunk], jnp.maximum(count - 1, 0), FORCED)
    number = jnp.arange(chunk)[None]
    path = jnp.where(number < jnp.maximum(count, 1)[:, None], number, -1)
    follower = jnp.take_along_axis(block, count[:, None], axis=1)[:, 0]

    def judge(x: Draft, scores: Scores) -> Verdict:
        del x, scores
        return Verdict(path, count, follower, jnp.full(path.shape, -1.0, jnp.float32))

    plan = Plan(jnp.full(batch, chunk), jnp.full(batch, chunk), jnp.int32(0))
    return advance(m, params, s, context(m, params, s), draft, plan, (chunk,), judge, prefill=True)
