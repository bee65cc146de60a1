"""Grammars that requests name by their text, made once and kept: reading one takes up to seconds, in which nobody else may wait."""
from __future__ import annotations

import collections
import threading

from specjax import grammar
from specjax.model import Model
from specjax.weights.token_bytes import token_bytes


class Grammars:
    """The automata of a model's vocabulary, the last `kept` of them; may be used from several threads.

    Args:
      model: whose tokens. kept: how many.
    """

    def __init__(self, model: Model, kept: int = 32):
        self._model, self._kept, self._lock = model, kept, threading.Lock()
        self._made: collections.OrderedDict[tuple[str, str], grammar.Automaton] = collections.OrderedDict()
        self._bytes: list[bytes | None] | None = None

    def get(self, kind: str, text: str) -> grammar.Automaton:
        """The automaton of a grammar.

        Args:
          kind: "regex" or "json_schema". text: of it.

        Raises:
          ValueError: a grammar that cannot be read, has no word, or is too large.
        """
        make = {"regex": grammar.regex, "json_schema": grammar.json_schema}[kind]
        with self._lock:  # one at a time: reading is work for one core
            if (kind, text) not in self._made:
                if self._bytes is None:
                    self._bytes = token_bytes(self._model.tokenizer, self._model.target.vocab)
                self._made[kind, text] = make(text, self._bytes)
            self._made.move_to_end((kind, text))
            while len(self._made) > self._kept:
                self._made.popitem(last=False)
            return self._made[kind, text]
