"""What a terminal shows: text as it comes, drafted tokens in colour, and a table of the figures."""
from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

import numpy as np

from specjax.round import State
from specjax.text_stream import Decoder, Pieces

_DRAFTED, _PLAIN = "\x1b[32m", "\x1b[0m"


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour: the stream is a terminal, and NO_COLOR is not set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


class Writer:
    """Writes one text to a stream as its tokens come.

    Args:
      decoder: ids to text. stream: where to. colour: mark text that came from a draft.
    """

    def __init__(self, decoder: Decoder, stream: TextIO, colour: bool):
        self._pieces, self._stream, self._colour, self._written = Pieces(decoder), stream, colour, 0

    def update(self, tokens: Sequence[int], drafted: Sequence[int]) -> None:
        """Writes what is new in the text so far; `drafted` has 0 for the target's own tokens."""
        for token, source in zip(tokens[self._written:], drafted[self._written:], strict=True):
            self._write(self._pieces.push(token), source > 0)
        self._written = len(tokens)
        self._stream.flush()

    def end(self) -> None:
        """Writes what was held back, and a line break."""
        self._write(self._pieces.rest() + "\n", False)
        self._stream.flush()

    def _write(self, text: str, drafted: bool) -> None:
        if text:
            self._stream.write(f"{_DRAFTED}{text}{_PLAIN}" if drafted and self._colour else text)


def show(model: Decoder, states: Iterable[State], first: int, stream: TextIO) -> None:
    """Writes the texts of a batch: a single one as it comes, several one after the other when all are done.

    Args:
      model: decodes. states: of the generation, from `specjax.decode.stream`. first: number of the first prompt. stream: where to.
    """
    colour, writer, done = wants_colour(stream), Writer(model, stream, wants_colour(stream)), []
    for s in states:
        count = np.asarray(s.index) + 1
        done = [(np.asarray(s.tokens)[b, :n].tolist(), np.asarray(s.source)[b, :n].tolist()) for b, n in enumerate(count)]
        if len(done) == 1:
            writer.update(*done[0])
    if len(done) == 1:
        writer.end()
        return
    for b, (tokens, source) in enumerate(done):
        stream.write(f"--- prompt {first + b}\n")
        writer = Writer(model, stream, colour)
        writer.update(tokens, source)
        writer.end()


def table(r: dict[str, Any]) -> str:
    """The record of `specjax.report` as lines of text."""
    return "\n".join(f"{name:>22}  {value}" for name, value in _lines(r))


def _lines(r: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "method", f"{r['method']} on {r['target']}, temperature {r['temperature']:g}, seed {r['seed']}, batch {r['batch']}, {r['dtype']}"
    yield "plain", f"{r['plain_tokens_per_second']:.1f} tokens/s  (prefill {1e3 * r['plain_prefill_seconds']:.0f} ms, not in it)"
    yield "speculative", f"{r['tokens_per_second']:.1f} tokens/s  (prefill {1e3 * r['prefill_seconds']:.0f} ms, not in it)"
    yield "speedup", f"{r['speedup']:.2f}x  (median of {r['repeats']} repetitions, in alternation)"
    yield "tau", f"{r['tau']:.2f} tokens a round  ({sum(r['token_counts'])} tokens, {r['rounds']} rounds, {r['drafted']} drafted)"
    yield "acceptance", f"{r['acceptance']:.3f}"
    yield "by depth", " ".join(f"{x:.2f}" for x in r["acceptance_at"]) or "-"
    yield "passes by rows", ", ".join(f"{n} of {rows}" for rows, n in r["passes"].items() if n)
    cost = r["cost"]
    total = cost["draft_ms"] + cost["pass_ms"] + cost["rest_ms"]
    yield "cost", ", ".join(f"{name} {cost[key]:.0f} ms ({100 * cost[key] / total:.0f}%)" for name, key in
                            (("drafting", "draft_ms"), ("target passes", "pass_ms"), ("verify, commit, observe", "rest_ms")))
    yield "of one", f"draft {cost['one_draft_ms']:.2f} ms; pass of " + ", ".join(f"{n} rows {ms:.1f} ms" for n, ms in cost["one_pass_ms"].items())
    yield "bandwidth bound", (f"{r['bound_tokens_per_second']:.1f} tokens/s: {r['bytes_per_token'] / 1e6:.0f} MB of weights a token at "
                              f"{r['bandwidth']:.1f} GB/s; plain reaches {100 * r['plain_tokens_per_second'] / r['bound_tokens_per_second']:.0f}%")
    yield "in repeat loops", f"{100 * r['loop_share']:.0f}% of the tokens"
    yield "identical to plain", _same(r)
    start = r["start"]
    yield "start to first text", (f"{start['total']:.1f} s  (imports {start['imports']:.1f}, weights {start['weights']:.1f}, "
                                  f"programs and prefill {start['programs']:.1f})")
    yield "machine", f"{r['machine']}, {r['cores']} cores, jax {r['versions']['jax']}, peak memory {r['peak_memory_mb']:.0f} MB"


def _same(r: dict[str, Any]) -> str:
    if r["same_as_plain"]:
        return "yes, token for token"
    first = next(p for p in r["prompts"] if not p["same_as_plain"])
    where = f"no: prompt {first['index']} differs from token {first['first_difference']} on"
    promises = {"law": "this method promises the law, not the text", "text": "this method promises the text: a near-tie of rounding, or a bug"}
    return f"{where} ({promises.get(r['lossless'], 'this method is lossy')})"
