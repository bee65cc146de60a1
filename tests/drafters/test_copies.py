"""Chains copied from one place, each against the published rule in plain Python, on random strings of three letters."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import copies, match_state
from specjax.testing.draws import blank_context
from specjax.testing.replay import replay
from specjax.types import Plan

SIZE = 40


def drafts(drafter, texts: list[list[int]], prompt: int):
    """The drafts of a drafter that has read the texts; the first `prompt` tokens are the prompt."""
    batch = len(texts)
    state = drafter.init({}, batch, SIZE, 0)
    block = jnp.asarray([t + [0] * (SIZE - len(t)) for t in texts], jnp.int32)
    n = jnp.asarray([len(t) for t in texts])

    @jax.jit
    def run(block, n):
        s = jax.vmap(match_state.append, in_axes=(0, 0, 0, None))(state, block, n, 60)
        ctx = blank_context({}, None, None, batch, jnp.float32(0), None)
        root = jnp.take_along_axis(block, n[:, None] - 1, axis=1)[:, 0]
        ctx = ctx._replace(root=root, position=n - 1, index=n - 1 - prompt)
        return drafter.draft(ctx, s, Plan(n, n, jnp.int32(0)))[0]

    d = run(block, n)
    return [[int(t) for t, k in zip(d.tokens[b], d.kind[b], strict=True) if k][1:] for b in range(batch)]


def _find(text: list[int], inside: list[int], g: int, room: int) -> int:
    """First place in `inside` after which `room` tokens stand and before which the last g tokens of the text do; -1 = none."""
    for i in range(len(inside) - g - room + 1):
        if inside[i:i + g] == text[-g:] and i + g < len(text):
            return i + g
    return -1


def by_prompt_lookup(text: list[int], prompt: int) -> list[int]:
    for g in (3, 2, 1):
        at = _find(text, text, g, 4)
        if at > 0:
            return text[at:at + 4]
    return []


def by_llma(text: list[int], prompt: int) -> list[int]:
    for g in (5, 4, 3, 2, 1):
        at = _find(text, text[:prompt], g, 1)
        if at > 0:
            return text[at:min(at + 6, prompt)]
    return []


def by_anpd(text: list[int], prompt: int) -> list[int]:
    """Counts in dictionaries; ties go to the follower seen last, as among matches of one length the most recent stands first."""
    out, context = [], list(text)
    for _ in range(4):
        for n in (3, 2, 1):
            key = tuple(context[-n:])
            at = [i for i in range(n, len(text)) if tuple(text[i - n:i]) == key]
            if at:
                votes = {t: sum(text[i] == t for i in at) for t in text}
                best = max(votes.values())
                out.append(next(text[i] for i in reversed(at) if votes[text[i]] == best))
                break
        else:
            return out
        context.append(out[-1])
    return out


class Automaton:
    """A suffix automaton with the earliest end of every state (Blumer et al.), the structure that the published drafter keeps."""

    def __init__(self):
        self.next, self.link, self.length, self.end, self.last = [{}], [-1], [0], [0], 0

    def add(self, token: int, end: int) -> None:
        cur, p = len(self.next), self.last
        self.next.append({}), self.link.append(0), self.length.append(self.length[p] + 1), self.end.append(end)
        while p >= 0 and token not in self.next[p]:
            self.next[p][token], p = cur, self.link[p]
        if p >= 0:
            q = self.next[p][token]
            if self.length[q] == self.length[p] + 1:
                self.link[cur] = q
            else:
                clone = len(self.next)
                self.next.append(dict(self.next[q])), self.link.append(self.link[q])
                self.length.append(self.length[p] + 1), self.end.append(self.end[q])
                while p >= 0 and self.next[p].get(token) == q:
                    self.next[p][token], p = clone, self.link[p]
                self.link[q] = self.link[cur] = clone
        self.last = cur


def by_automaton(text: list[int], prompt: int) -> list[int]:
    """The longest suffix that ended before: the suffix link of the whole text's state."""
    a = Automaton()
    for i, t in enumerate(text):
        a.add(t, i)
    state = a.link[a.last]
    if state <= 0:
        return []
    at = a.end[state] + 1
    return text[at:at + min(2 * a.length[state], 7)]


RULES = {"prompt_lookup": (copies.prompt_lookup(3, 4), by_prompt_lookup), "llma": (copies.llma(5, 6), by_llma),
         "anpd": (copies.anpd(4, 4, 32), by_anpd), "automaton": (copies.automaton(2.0, 7), by_automaton)}


@pytest.mark.parametrize("name", RULES)
def test_copies_equal_the_published_rule(name: str):
    rng, (drafter, rule), prompt = np.random.default_rng(0), RULES[name], 6
    texts = [rng.integers(0, 3, n).tolist() for n in rng.integers(7, SIZE, 60)]
    got = drafts(drafter, texts, prompt)
    assert got == [rule(t, prompt) for t in texts]
    assert sum(bool(g) for g in got) > 30


def test_the_recent_end_of_an_automaton_differs():
    text = [1, 2, 3, 8, 1, 2, 4, 9, 1, 2]
    assert drafts(copies.automaton(2.0, 4), [text], 1) == [[3, 8, 1, 2]]
    assert drafts(copies.automaton(2.0, 4, earliest=False), [text], 1) == [[4, 9, 1, 2]]


TEXT = "the cat saw the dog and the dog saw the cat and the cat ran to the dog and the dog ran to the cat and sat".split()
PINNED = {"prompt_lookup": 14, "llma": 17, "anpd": 14, "automaton": 14}


def _passes(rule, text: list[int], prompt: int) -> int:
    """Passes of a generation by the plain rule: the draft is cut at the end of the text, its agreeing head and one token more are kept."""
    n, passes = prompt, 0
    while n < len(text):
        good = [a == b for a, b in zip(rule(text[:n], prompt)[:len(text) - n - 1], text[n:], strict=False)]
        n, passes = n + 1 + (good.index(False) if False in good else len(good)), passes + 1
    return passes


def test_tau_of_copies_is_pinned():
    ids = {w: i + 1 for i, w in enumerate(dict.fromkeys(TEXT))}
    text = [ids[w] for w in TEXT]
    got = {name: replay(drafter, [text[:6]], [text[6:]]).passes[0] for name, (drafter, _) in RULES.items()}
    assert got == {name: _passes(rule, text, 6) for name, (_, rule) in RULES.items()} == PINNED


@pytest.mark.parametrize("make", [lambda: copies.prompt_lookup(0), lambda: copies.llma(length=0), lambda: copies.automaton(0.0),
                                  lambda: copies.anpd(1)])
def test_wrong_sizes_are_refused(make):
    with pytest.raises(ValueError, match=r"is (0|1|0\.0): "):
        make()
