"""Token trees as arrays over rows: parents before children, row 0 the root and its own parent.

Because the root is a fixed point of `parents`, pointer doubling needs no special case: after j steps a row has seen its
ancestors within 2^j, ``seen' = seen | seen[p]``, ``p' = p[p]``.
"""
from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from specjax.types import DETERMINISTIC, EMPTY, FORCED, INDEPENDENT, WITHOUT_REPLACEMENT, Array, Draft, Proposal, Rows


def _doublings(rows: int) -> int:
    return max(1, math.ceil(math.log2(max(rows, 2))))


def ancestors(parents: Array) -> Array:
    """Who sees whom in one tree: each row sees itself and its ancestors, the root included.

    Args:
      parents: i32[R].

    Returns:
      bool[R,R]; [i, j] is True when j is i or an ancestor of i.

    >>> ancestors(jnp.asarray([0, 0, 1, 0])).astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]
    """
    seen, p = jnp.eye(parents.shape[0], dtype=bool), parents
    for _ in range(_doublings(parents.shape[0])):
        seen, p = seen | seen[p], p[p]
    return seen | (jnp.arange(parents.shape[0]) == 0)[None]


def depths(parents: Array) -> Array:
    """Distance of each row from the root: i32[R] from i32[R].

    >>> depths(jnp.asarray([0, 0, 1, 0])).tolist()
    [0, 1, 2, 1]
    """
    d, p = (parents != jnp.arange(parents.shape[0])).astype(jnp.int32), parents
    for _ in range(_doublings(parents.shape[0])):
        d, p = d + d[p], p[p]
    return d


def rows(draft: Draft) -> Rows:
    """The target pass of a whole draft: T = R, every row sees its ancestors and itself; EMPTY rows see the root only."""
    mask = jax.vmap(ancestors)(draft.parents)
    return Rows(jnp.maximum(draft.tokens, 0), jax.vmap(depths)(draft.parents), mask, 0)


def first(draft: Draft, count: int) -> Draft:
    """The draft cut to its first `count` rows (static). A cut by row number is closed under ancestors."""
    proposal = draft.proposal
    if proposal is not None:
        proposal = proposal._replace(row=proposal.row[:, :count])
    own = {name: value[:, :count] for name, value in draft.own.items()}
    return draft._replace(tokens=draft.tokens[:, :count], parents=draft.parents[:, :count], kind=draft.kind[:, :count],
                          score=draft.score[:, :count], source=draft.source[:, :count], proposal=proposal, own=own)


def live_rows(draft: Draft) -> Array:
    """i32[B]: one more than the last row in use."""
    used = jnp.where(draft.kind != EMPTY, jnp.arange(draft.kind.shape[1])[None] + 1, 0)
    return jnp.max(used, axis=1)


def drop(draft: Draft, gone: Array) -> Draft:
    """Empties the rows of `gone` bool[B,R]; the caller sees to it that descendants go too."""
    gone = gone & (jnp.arange(draft.kind.shape[1]) > 0)[None]
    return draft._replace(kind=jnp.where(gone, EMPTY, draft.kind), tokens=jnp.where(gone, 0, draft.tokens),
                          parents=jnp.where(gone, 0, draft.parents), score=jnp.where(gone, 0.0, draft.score))


def clip(draft: Draft, allowed_rows: Array, allowed_depth: Array) -> Draft:
    """Cuts a draft by row number and by depth, never by value: such a cut keeps every law exact.

    Args:
      draft: R rows. allowed_rows: i32[B], the root included. allowed_depth: i32[B].

    Returns:
      The draft; cut rows are EMPTY.
    """
    number = jnp.arange(draft.kind.shape[1])[None]
    deep = jax.vmap(depths)(draft.parents) > allowed_depth[:, None]
    return drop(draft, (number >= allowed_rows[:, None]) | deep)


def pad(draft: Draft, count: int) -> Draft:
    """The draft with EMPTY rows appended up to `count` rows (static)."""
    extra = count - draft.kind.shape[1]
    if extra == 0:
        return draft
    wide = lambda x: jnp.pad(x, ((0, 0), (0, extra)))  # noqa: E731
    proposal = draft.proposal
    if proposal is not None:
        proposal = proposal._replace(row=wide(proposal.row))
    own = {name: jnp.pad(x, [(0, 0), (0, extra)] + [(0, 0)] * (x.ndim - 2)) for name, x in draft.own.items()}
    return Draft(wide(draft.tokens), wide(draft.parents), wide(draft.kind), wide(draft.score), wide(draft.source), proposal,
                 draft.computed, own)


def root_only(root: Array, total: int) -> Draft:
    """A draft of nothing: `root` i32[B] in row 0 and `total` - 1 EMPTY rows."""
    return chain(root, jnp.zeros((root.shape[0], total - 1), jnp.int32), jnp.zeros_like(root))


def chain(root: Array, tokens: Array, count: Array, kind: int = DETERMINISTIC, score: Array | None = None) -> Draft:
    """A chain below the root.

    Args:
      root: i32[B]. tokens: i32[B,K]. count: i32[B] tokens in use. kind: of the tokens. score: f32[B,K] or None (1).

    Returns:
      A Draft of K + 1 rows.

    >>> d = chain(jnp.asarray([7]), jnp.asarray([[8, 9]]), jnp.asarray([1]))
    >>> d.tokens.tolist(), d.parents.tolist(), d.kind.tolist()
    ([[7, 8, 0]], [[0, 0, 0]], [[4, 1, 0]])
    """
    batch, k = tokens.shape
    number = jnp.arange(k, dtype=jnp.int32)[None]
    used = number < count[:, None]
    one = jnp.ones((batch, 1), jnp.int32)
    score = jnp.ones((batch, k), jnp.float32) if score is None else score
    return Draft(
        tokens=jnp.concatenate([root[:, None], jnp.where(used, tokens, 0)], axis=1),
        parents=jnp.concatenate([0 * one, jnp.where(used, number, 0)], axis=1),
        kind=jnp.concatenate([FORCED * one, jnp.where(used, kind, EMPTY)], axis=1),
        score=jnp.concatenate([jnp.ones((batch, 1), jnp.float32), jnp.where(used, score, 0.0)], axis=1),
        source=jnp.zeros((batch, k + 1), jnp.int32))


def first_with_token(draft: Draft) -> Array:
    """bool[B,R]: rows that are the first among their siblings to carry their token (duplicates are counted once)."""
    same = ((draft.tokens[:, :, None] == draft.tokens[:, None, :]) & (draft.parents[:, :, None] == draft.parents[:, None, :])
            & (draft.kind[:, None, :] != EMPTY))
    number = jnp.arange(draft.tokens.shape[1])
    earlier = (number[None, :] < number[:, None]) & (number[None, :] > 0)
    return ~jnp.any(same & earlier[None], axis=-1) & (draft.kind != EMPTY) & (number > 0)[None]


def as_deterministic(draft: Draft) -> Draft:
    """Redeclares sampled nodes as values chosen without coins.

    Needed wherever nodes are chosen BY THEIR VALUE (the best N, deduplication, confidence cuts): what survives such a choice
    is no longer a draw from its q row, and declared as sampled it would bias the output.
    """
    sampled = (draft.kind == INDEPENDENT) | (draft.kind == WITHOUT_REPLACEMENT)
    void = sampled & (draft.tokens < 0)
    kind = jnp.where(void, EMPTY, jnp.where(sampled, DETERMINISTIC, draft.kind))
    return draft._replace(kind=kind, proposal=None)


def concatenate(drafts: list[Draft]) -> Draft:
    """Hangs the trees of several drafts below one root, in order, nothing merged; proposals are stacked."""
    offset, parts, q, q_rows = 1, [], [], 0
    for draft in drafts:
        moved = jnp.where(draft.parents == 0, 0, draft.parents + offset - 1)
        parts.append((draft.tokens[:, 1:], moved[:, 1:], draft.kind[:, 1:], draft.score[:, 1:], draft.source[:, 1:]))
        if draft.proposal is not None:
            q.append((draft.proposal.log_q, draft.proposal.row[:, 1:] + q_rows))
            q_rows += draft.proposal.log_q.shape[1]
        else:
            q.append((None, jnp.zeros_like(draft.parents[:, 1:])))
        offset += draft.tokens.shape[1] - 1
    head = drafts[0]
    fields = [jnp.concatenate([h[:, :1], *(p[i] for p in parts)], axis=1)
              for i, h in enumerate((head.tokens, head.parents, head.kind, head.score, head.source))]
    proposal = None
    if q_rows:
        ids = [d.proposal.ids for d in drafts if d.proposal is not None]
        if any(i is not ids[0] for i in ids):
            raise ValueError("drafts with different draft vocabularies cannot share one proposal; redeclare them deterministic")
        row = jnp.concatenate([jnp.zeros_like(head.parents[:, :1]), *(r for _, r in q)], axis=1)
        proposal = Proposal(jnp.concatenate([law for law, _ in q if law is not None], axis=1), row, ids[0])
    return Draft(*fields, proposal=proposal)


def keep(draft: Draft, chosen: Array, count: int) -> Draft:
    """Packs the rows of `chosen` into the first `count` rows, in row order.

    Args:
      draft: R rows, without proposal. chosen: bool[B,R], closed under ancestors, row 0 included.
      count: rows of the result (static); surplus rows are dropped from the end.

    Returns:
      The packed draft, EMPTY rows last.
    """
    def one(tokens, parents, kind, score, source, chosen):
        new = jnp.cumsum(chosen) - 1
        at = jnp.where(chosen & (new < count), new, count)

        def put(values, fill):
            return jnp.full(count, fill, values.dtype).at[at].set(values, mode="drop")

        return put(tokens, 0), put(new[parents].astype(jnp.int32), 0), put(kind, EMPTY), put(score, 0.0), put(source, 0)

    fields = jax.vmap(one)(draft.tokens, draft.parents, draft.kind, draft.score, draft.source, chosen)
    return Draft(*fields)


MERGES = ("max", "noisy_or", "sum")
"""Scores of a node that several drafters made: the largest; 1 - prod(1 - s), sources that agree support each other; the sum, at most 1."""


def same_paths(draft: Draft, depth: int) -> Array:
    """bool[B,R,R]: which live rows spell the same tokens from the root. By pointer doubling: rows agree on their last 2^(k+1) tokens if
    they agree on the last 2^k and so do their ancestors 2^k above; only the root agrees with the root.

    Args:
      draft: any. depth: of the deepest node (static).
    """
    def one(tokens: Array, parents: Array, kind: Array) -> Array:
        number = jnp.arange(tokens.shape[0])
        node = (kind != EMPTY) & (number > 0)
        same = (tokens[:, None] == tokens[None]) & node[:, None] & node[None]
        same = same | ((number == 0)[:, None] & (number == 0)[None])
        up = parents
        for _ in range(_doublings(depth + 1)):
            same, up = same & same[up][:, up], up[up]
        return same

    return jax.vmap(one)(draft.tokens, draft.parents, draft.kind)


def merge_prefixes(draft: Draft, count: int, depth: int, how: str = "max") -> Draft:
    """Merges nodes that spell the same path, and keeps the best `count` rows by score.

    A merged node has the source of its first copy. No score exceeds the parent's, so the best rows, ties to the shallower and earlier,
    are closed under ancestors, and a later cut by row number keeps the best too.

    Args:
      draft: a deterministic draft (see `as_deterministic`). count: rows to keep, the root included (static).
      depth: of the deepest node (static). how: one of `MERGES`.

    Returns:
      A deterministic Draft of `count` rows, the best first.

    Raises:
      ValueError: an unknown `how`.
    """
    if how not in MERGES:
        raise ValueError(f"how is {how!r}: one of {', '.join(MERGES)}")
    total = draft.tokens.shape[1]

    def one(tokens: Array, parents: Array, kind: Array, score: Array, source: Array, same: Array) -> tuple[Array, ...]:
        level_of, number = depths(parents), jnp.arange(total)
        canon = jnp.argmax(same, axis=1).astype(jnp.int32)
        first_copy = (kind != EMPTY) & (canon == number)
        mine = jnp.where(same, score[None], 0.0)
        best = {"max": lambda: jnp.max(mine, axis=1), "sum": lambda: jnp.minimum(jnp.sum(mine, axis=1), 1.0),
                "noisy_or": lambda: 1 - jnp.prod(1 - mine, axis=1)}[how]()
        parent = canon[parents]
        up = parent
        for _ in range(_doublings(total)):
            best, up = jnp.minimum(best, best[up]), up[up]
        rank = jnp.where(number == 0, jnp.inf, jnp.where(first_copy, best, -1.0))
        order = jnp.lexsort((number, level_of, -rank))[:count]
        place = jnp.zeros(total, jnp.int32).at[order].set(jnp.arange(count, dtype=jnp.int32))
        live = first_copy[order]
        put = lambda x, fill: jnp.where(live, x, fill).astype(x.dtype)  # noqa: E731
        best = jnp.where(jnp.arange(count) == 0, score[0], best[order])
        return put(tokens[order], 0), put(place[parent[order]], 0), put(kind[order], EMPTY), put(best, 0.0), put(source[order], 0)

    return Draft(*jax.vmap(one)(draft.tokens, draft.parents, draft.kind, draft.score, draft.source, same_paths(draft, depth)))
