"""Grammars as automata over token ids: the answer must be a word of the grammar.

An automaton is data, and three pure functions read it: `init`, `mask(state)` and `advance(state, token)`. Tokens that do the same in every
state share a class, so that a table of states x classes and one class a token say everything:

    allowed(s, t) = next[s, class[t]] >= 0,   or t is a stop id and s is final

The warp asks for the mask along every visited path of a draft, and moves the committed state by accepted tokens only.

Automata come from regular expressions and from JSON schemas, both read by the library `outlines-core` (extra `grammar`) as a deterministic
automaton over bytes, which is run here over the bytes of every token.
"""
from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

MAX_CELLS = 1 << 25
"""Most states x vocabulary entries of a mask (4 MiB as bits)."""
MAX_STATES = 4096
MAX_EXPANDED = 1 << 16
"""Longest pattern, with its counted repetitions written out: what lies above would take minutes to read."""


@dataclasses.dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton over token ids; state 0 is the first.

    Attributes:
      following: i16[S,C] state after a token of each class, -1 = not allowed. classes: i32[V] class of each token. final: bool[S] whether the
        answer may end there. source: what it was made from, for messages.
    """

    following: np.ndarray
    classes: np.ndarray
    final: np.ndarray
    source: str = ""

    def init(self) -> int:
        """The state before the first token."""
        return 0

    def mask(self, state: int) -> np.ndarray:
        """bool[V]: tokens that may come in a state; stop ids come on top where `final` says so."""
        return self.following[state][self.classes] >= 0

    def advance(self, state: int, token: int) -> int:
        """The state after a token, -1 if it is not allowed."""
        return int(self.following[state, self.classes[token]])

    def check(self, vocab: int, banned: Sequence[int] = (), stop_ids: Sequence[int] = ()) -> None:
        """Refuses a grammar that can come to a state where no token may follow.

        Raises:
          ValueError: another vocabulary, or such a state.
        """
        if len(self.classes) != vocab:
            raise ValueError(f"the grammar was made for a vocabulary of {len(self.classes)} tokens, the target has {vocab}")
        usable = np.ones(vocab, bool)
        usable[list({*banned, *stop_ids})] = False
        some = np.zeros(self.following.shape[1], bool)
        some[self.classes[usable]] = True
        inside, seen, queue = (self.following >= 0) & some, {0}, [0]
        while queue:
            state = queue.pop()
            if not inside[state].any() and not (self.final[state] and set(stop_ids) - set(banned)):
                why = "and no stop id can end the answer there" if self.final[state] else "with these banned tokens and stop ids"
                raise ValueError(f"the grammar {self.source!r} allows nothing in state {state}, {why}")
            new = set(self.following[state][inside[state]].tolist()) - seen
            seen |= new
            queue += new


def from_bytes(following: np.ndarray, final: np.ndarray, token_bytes: Sequence[bytes | None], source: str = "") -> Automaton:
    """An automaton over tokens from one over bytes.

    Args:
      following: int[S,256] next state of each byte, -1 = not allowed. final: bool[S]. token_bytes: of each token id, None or b"" for tokens
        that are no text (they are never allowed). source: for messages.

    Returns:
      An Automaton without tokens that lead to where no word ends.

    Raises:
      ValueError: states x vocabulary beyond the bound, or a grammar without any word.

    >>> digits = np.full((2, 256), -1); digits[:, 48:58] = 1
    >>> a = from_bytes(digits, np.asarray([False, True]), [b"7", b"a", b"42", None])
    >>> a.mask(0).tolist(), a.advance(0, 2)
    ([True, False, True, False], 1)
    """
    states, vocab = len(following), len(token_bytes)
    if states * vocab > MAX_CELLS or states > MAX_STATES:
        raise ValueError(f"the grammar {source!r} has {states} states: with {vocab} tokens that is {states * vocab} mask bits; at most "
                         f"{MAX_STATES} states and {MAX_CELLS} bits are allowed")
    table = np.concatenate([np.asarray(following, np.int16), np.full((1, 256), -1, np.int16)])  # the last row is what -1 reads
    lengths = np.asarray([len(b) if b else 0 for b in token_bytes])
    order = np.argsort(-lengths, kind="stable")
    padded = np.zeros((vocab, max(1, int(lengths.max(initial=1)))), np.uint8)
    for i, b in enumerate(token_bytes):
        if b:
            padded[i, :len(b)] = np.frombuffer(b, np.uint8)
    at = np.broadcast_to(np.arange(states, dtype=np.int16)[:, None], (states, vocab)).copy()
    for position in range(padded.shape[1]):
        longer = order[:int((lengths > position).sum())]
        at[:, longer] = table[at[:, longer], padded[longer, position][None]]
    at[:, lengths == 0] = -1
    columns, classes = np.unique(at, axis=1, return_inverse=True)
    columns = _alive(columns, np.asarray(final, bool))
    if columns[0].max(initial=-1) < 0 and not final[0]:
        raise ValueError(f"the grammar {source!r} allows nothing: it has no word in the vocabulary")
    return Automaton(columns, classes.reshape(-1).astype(np.int32), np.asarray(final, bool), source)


def _alive(columns: np.ndarray, final: np.ndarray) -> np.ndarray:
    """The table without steps to states from which no final state can be reached."""
    alive = final.copy()
    while True:
        reaches = alive | (alive[np.maximum(columns, 0)] & (columns >= 0)).any(axis=1)
        if np.array_equal(reaches, alive):
            return np.where((columns >= 0) & alive[np.maximum(columns, 0)], columns, -1).astype(np.int16)
        alive = reaches


def expanded_length(pattern: str) -> int:
    """The length of a regular expression with its counted repetitions written out: a bound of the work to read it.

    >>> expanded_length("(ab{3}){10}"), expanded_length(r"\\d{2}[a-z]{4}x*")
    (40, 7)
    """
    groups, last, at = [0], 0, 0  # lengths of the open groups; length of the last atom
    while at < len(pattern):
        c, step = pattern[at], 1
        count = re.match(r"\{(\d*)(,?)(\d*)\}", pattern[at:]) if c == "{" else None
        if count is not None:
            groups[-1] += last * (max(1, int(count[3] or count[1] or 1)) - 1)
            step = len(count[0])
        elif c == "(":
            groups.append(0)
        elif c == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif c not in "|*+?^$":
            atom = re.match(r"\\(?:[pPxuU]\{[^}]*\}|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern[at:], re.DOTALL)
            groups[-1] += 1
            last, step = 1, len(atom[0])
        at += step
    return sum(groups)


def bytes_automaton(pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """A regular expression as (int[S,256] next state of each byte, bool[S] final), state 0 first.

    Raises:
      ValueError: a pattern that the library does not read, or the library is missing.

    >>> table, final = bytes_automaton("a(b|c)")
    >>> table.shape[1], final.tolist().count(True)
    (256, 1)
    """
    try:
        from outlines_core import Index, Vocabulary
    except ImportError as error:
        raise ValueError("grammars need the extra `grammar`: pip install -e \".[grammar]\"") from error
    if expanded_length(pattern) > MAX_EXPANDED:
        raise ValueError(f"regular expression {pattern[:80]!r}: with its repetitions written out it has {expanded_length(pattern)} parts; at most "
                         f"{MAX_EXPANDED} are allowed")
    try:
        index = Index(pattern, Vocabulary(256, {bytes([i]): [i] for i in range(256)}))
    except ValueError as error:
        raise ValueError(f"regular expression {pattern!r}: {error}") from None
    steps, ends = index.get_transitions(), index.get_final_states()
    names = [index.get_initial_state()]
    for state in (*steps, *(s for to in steps.values() for s in to.values())):
        names.append(state)
    number = {state: i for i, state in enumerate(dict.fromkeys(names))}
    table = np.full((len(number), 256), -1, np.int32)
    for state, to in steps.items():
        for byte, after in to.items():
            if byte < 256:
                table[number[state], byte] = number[after]
    return table, np.asarray([state in ends for state in number])


def regex(pattern: str, token_bytes: Sequence[bytes | None]) -> Automaton:
    """The answer must match a regular expression, as a whole.

    Args:
      pattern: in the syntax of Rust's `regex`, without look-around. token_bytes: of the target's tokens, from
        `specjax.weights.tokenizer.token_bytes`.

    Raises:
      ValueError: see `from_bytes` and `bytes_automaton`.

    >>> a = regex("(yes|no)", [b"yes", b"no", b"maybe", b"y", b"es"])
    >>> a.mask(0).tolist(), a.mask(a.advance(0, 3)).tolist()
    ([True, True, False, True, False], [False, False, False, False, True])
    """
    return from_bytes(*bytes_automaton(pattern), token_bytes, pattern)


def json_schema(schema: dict[str, Any] | str, token_bytes: Sequence[bytes | None]) -> Automaton:
    """The answer must be a JSON value of a schema, with at most one space between its parts.

    Args:
      schema: a JSON schema, as a dict or its text. token_bytes: as for `regex`.

    Raises:
      ValueError: a schema that the library does not read; see also `regex`.

    >>> a = json_schema({"type": "boolean"}, [b"true", b"false", b"null"])
    >>> a.mask(0).tolist()
    [True, True, False]
    """
    try:
        from outlines_core.json_schema import build_regex_from_schema
    except ImportError as error:
        raise ValueError("grammars need the extra `grammar`: pip install -e \".[grammar]\"") from error
    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        pattern = build_regex_from_schema(text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"JSON schema: {error}") from None
    return regex(pattern, token_bytes)
