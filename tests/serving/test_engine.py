"""Continuous batching: every request gets the text of its own solo plain run, whatever comes and goes beside it."""
from __future__ import annotations

import dataclasses
import functools
import gc
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import api, decode, methods, requests
from specjax.model import Model
from specjax.serving import slots
from specjax.serving.engine import Engine
from specjax.serving.tickets import Busy, Limits, Ticket
from specjax.settings import Settings
from specjax.testing.retrace import compilations
from tests import tiny

LIMITS = Limits(slots=4, capacity=192, new_tokens=24, queue=256, rounds=3, chunk=32, kept=2)


class Letters:
    """A tokenizer of one letter a token, so that stop strings can be tried on a random model."""

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        del skip_special_tokens
        return "".join(chr(48 + t) for t in tokens)


@functools.cache
def model() -> Model:
    return dataclasses.replace(tiny.model(), tokenizer=Letters())


@functools.cache
def engine() -> Engine:
    made = Engine(model(), *api.bind(model(), methods.get("lookup")), LIMITS)
    made.warm_up()
    return made


def solo(prompt: list[int], settings: Settings) -> list[int]:
    """Plain decoding of one request alone, in the same sizes; stop strings are left to the caller."""
    m, params = methods.get("plain").build(model())
    m = requests.fully_equipped(m, 0)
    plain = dataclasses.replace(settings, draft=None, verifier=None, logprobs=None)
    state = decode.fresh(m, params, [prompt], [plain], capacity=LIMITS.capacity, room=LIMITS.new_tokens)
    padded = np.zeros((1, LIMITS.capacity), np.int32)
    padded[0, :len(prompt)] = prompt
    state = decode.prefill(m, params, state, jnp.asarray(padded), jnp.asarray([len(prompt)], jnp.int32), LIMITS.chunk)
    return api.collect(model(), m, decode.finish(m, params, state)).tokens[0]


def cut(tokens: list[int], stops: tuple[str, ...]) -> tuple[list[int], str]:
    """A solo text with its stop strings applied: (ids up to the one that completes the stop, text before it)."""
    text = Letters().decode(tokens)
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return tokens[:end], text[:min(starts)]
    return tokens, text


def some_request(r: random.Random, number: int) -> tuple[list[int], Settings]:
    """A random prompt with random settings; every kind of setting occurs."""
    motif = [r.randrange(1, 64) for _ in range(r.randint(1, 5))]
    prompt = (motif * 20)[:r.randint(1, 70)]
    maybe = lambda value, neutral: value if r.random() < 0.3 else neutral  # noqa: E731
    new = r.randint(1, 24)
    return prompt, Settings(
        max_new_tokens=new, min_new_tokens=maybe(r.randint(0, new), 0), temperature=r.choice([0.0, 0.0, 0.5, 1.0, 1.3]),
        top_k=maybe(r.randint(1, 20), 0),
        top_p=maybe(r.uniform(0.3, 1.0), 1.0), min_p=maybe(r.uniform(0, 0.3), 0.0), repetition_penalty=maybe(r.uniform(0.8, 1.5), 1.0),
        presence_penalty=maybe(r.uniform(-1, 1), 0.0), frequency_penalty=maybe(r.uniform(-1, 1), 0.0),
        logit_bias=maybe(((r.randrange(64), 3.0),), ()), stop_ids=maybe((r.randrange(32), 32 + r.randrange(32)), ()),
        stop=maybe((chr(48 + r.randrange(64)), chr(48 + r.randrange(64)) * 2), ()), seed=r.randrange(2**32), request_id=number,
        draft=r.choice([None, None, None, 0, 2]))


def test_two_hundred_requests_with_random_settings_equal_their_solo_plain_runs():
    r, asked, tickets = random.Random(7), [], []
    e = engine()
    widths = set()
    for number in range(200):
        asked.append(some_request(r, number))
        tickets.append(e.submit(*asked[-1]))
        for _ in range(r.choice([0, 0, 1, 2, 6])):
            e.step()
            widths.add(len(e._held))
    e.run()
    assert widths >= {1, 2, 4}, "the load must grow and shrink the state"
    assert sum(t.statistics.drafted for t in tickets) > 100 and sum(t.statistics.accepted for t in tickets) > 50
    for number, ((prompt, settings), ticket) in enumerate(zip(asked, tickets, strict=True)):
        tokens, text = cut(solo(prompt, settings), settings.stop)
        assert (ticket.tokens, ticket.text) == (tokens, text), (number, settings)
        ended = (settings.stop and text != Letters().decode(tokens)) or tokens[-1] in settings.stop_ids
        assert ticket.reason == ("stop" if ended else "length"), (number, settings)
        assert ticket.statistics.tokens == len(tokens)


def test_X10_traffic_compiles_nothing_and_X04_leaves_no_arrays():
    e, r = engine(), random.Random(1)

    def traffic() -> None:
        for number in range(40):
            e.submit(*some_request(r, number))
            for _ in range(r.randint(0, 3)):
                e.step()
        e.run()
        while len(e._held) > 1:  # back to the smallest width, so that the two counts mean the same
            e._idle_steps = 4
            e.submit([1], Settings(max_new_tokens=24))
            e.run()
    traffic()
    gc.collect()
    before = len(jax.live_arrays())
    with compilations() as counts:
        traffic()
    gc.collect()
    assert counts.compiled == 0
    assert abs(len(jax.live_arrays()) - before) <= 2 * len(jax.tree.leaves(e._state)) * LIMITS.kept // LIMITS.kept


def test_a_cancelled_request_frees_its_slot_and_others_go_on():
    e = engine()
    tickets = [e.submit([5 + i, 6], Settings(max_new_tokens=24, temperature=1.0, seed=i)) for i in range(6)]
    while e.active < 4:
        e.step()
    tickets[1].cancel()   # in a slot
    tickets[5].cancel()   # waiting
    e.step()
    assert tickets[1].reason == tickets[5].reason == "cancelled" and tickets[1].wait(0)
    e.run()
    for i in (0, 2, 3, 4):
        assert tickets[i].tokens == solo(tickets[i].prompt, tickets[i].settings) and tickets[i].reason == "length"
    assert e.active == e.pending == 0


def test_a_full_queue_pushes_back_and_takes_requests_again_later():
    small = Engine(model(), *api.bind(model(), methods.get("lookup")), dataclasses.replace(LIMITS, queue=2))
    first = [small.submit([1], Settings(max_new_tokens=1)) for _ in range(2)]
    with pytest.raises(Busy, match="2 requests are waiting"):
        small.submit([1], Settings(max_new_tokens=1))
    small.run()
    assert all(t.wait(0) for t in first)
    small.submit([1], Settings(max_new_tokens=1))
    small.run()


@pytest.mark.parametrize("prompt, settings, message", [
    ([], Settings(), "empty"), ([64], Settings(), "token id 64"), ([1] * 180, Settings(max_new_tokens=8), "capacity of 192"),
    ([1], Settings(max_new_tokens=25), "at most 24"), ([1], Settings(temperature=float("nan")), "temperature"),
    ([1], Settings(n=2, max_new_tokens=2), "n is 2"),
    ([1], Settings(top_p=0.0, max_new_tokens=2), "top_p"), ([1], Settings(stop=("",), max_new_tokens=2), "stop"),
])
def test_a_request_that_cannot_be_served_is_refused_and_harms_nobody(prompt, settings, message):
    e = engine()
    good = e.submit([9, 8, 7], Settings(max_new_tokens=6, seed=3, temperature=0.9))
    with pytest.raises(ValueError, match=message):
        e.submit(prompt, settings)
    e.run()
    assert good.tokens == solo(good.prompt, good.settings)


def test_a_listener_that_fails_loses_only_its_own_request():
    e, seen = engine(), []

    def broken(event):
        raise RuntimeError("no")
    bad = e.submit([3], Settings(max_new_tokens=24), broken)
    good = e.submit([4], Settings(max_new_tokens=24), seen.append)
    e.run()
    assert bad.reason == "cancelled" and good.reason == "length"
    assert [t for event in seen for t in event.tokens] == good.tokens and "".join(event.text for event in seen) == good.text
    assert [event.reason for event in seen][-1] == "length" and len(seen) > 1


def two_turns(e: Engine) -> tuple[Ticket, Ticket]:
    first = e.submit([7, 8, 9, 7, 8], Settings(max_new_tokens=12, temperature=0.8, seed=4))
    e.run()
    second = e.submit(first.prompt + first.tokens + [5, 6], Settings(max_new_tokens=12, temperature=0.8, seed=5, repetition_penalty=1.2))
    e.run()
    return first, second


def test_Q04_L15_a_second_turn_continues_the_cache_of_the_first():
    first, second = two_turns(engine())
    assert second.reused == len(first.prompt) + len(first.tokens) - 1
    assert second.tokens == solo(second.prompt, second.settings)
    fresh = Engine(model(), *api.bind(model(), methods.get("lookup")), dataclasses.replace(LIMITS, kept=0))
    again = two_turns(fresh)[1]
    assert again.reused == 0 and again.tokens == second.tokens
    assert again.statistics == second.statistics, "the drafter's state was reused too"


def test_Q01_a_row_moved_to_another_slot_and_width_goes_on_as_if_nothing_had_happened():
    m, params = api.bind(model(), methods.get("lookup"))
    begin = lambda: decode.begin(m, params, [[1, 2, 3, 1, 2], [9], [4, 4, 4]], max_new_tokens=20, temperature=0.7)  # noqa: E731
    whole = api.collect(model(), m, decode.finish(m, params, begin())).tokens
    half = decode.run(m, params, begin(), jnp.int32(3))
    moved = api.collect(model(), m, decode.finish(m, params, slots.arrange(half, jnp.asarray([2, -1, 0, 1], jnp.int32)))).tokens
    assert [moved[2], moved[3], moved[0]] == whole
    alone = slots.take(decode.run(m, params, begin(), jnp.int32(3)), jnp.int32(1))
    assert api.collect(model(), m, decode.finish(m, params, alone)).tokens[0] == whole[1]


def test_limits_that_contradict_each_other_are_refused():
    for wrong in ({"slots": 0}, {"capacity": 10}, {"rounds": 0}, {"kept": -1}, {"capacity": 5000}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Engine(model(), *api.bind(model(), methods.get("lookup")), dataclasses.replace(LIMITS, **wrong))
