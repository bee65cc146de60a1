"""Whole generations on the device: one `while_loop` over rounds, output buffers and statistics carried in the state, which is
donated; nothing goes to the host inside. The stream is the same loop, run in chunks; plain decoding the same loop with one row.
"""
from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import requests, tree
from specjax import round as rounds
from specjax.requests import logprobs_of, pad_prompts  # noqa: F401  a part of this module's interface
from specjax.settings import Settings, as_list
from specjax.types import Array, Method, Target

CHUNK = 64
"""Rows of a prefill pass."""

OPTIONS = {"xla_cpu_copy_insertion_use_region_analysis": True}
"""Compiler options of every loop over rounds. Without this one the CPU compiler copies the whole cache at the block loop of each
layer (measured: 5 ms of a 28 ms pass), because it does not see that the loop only reads it; other backends ignore it."""


def capacity_for(longest_prompt: int, max_new_tokens: int, rows: int, step: int = 256) -> int:
    """Cache slots for a request: its tokens and one pass of slack, rounded up so that few sizes are ever compiled.

    >>> capacity_for(40, 200, 16)
    512
    """
    return -(-(longest_prompt + max_new_tokens + max(rows, CHUNK)) // step) * step


@functools.partial(jax.jit, static_argnames=("m",), donate_argnames=("state",), compiler_options=OPTIONS)
def run(m: Method, params: dict[str, Any], state: rounds.State, budget: Array) -> rounds.State:
    """Rounds until every row is finished, at most `budget` i32[] of them."""
    def unfinished(carry: tuple[Array, rounds.State]) -> Array:
        return (carry[0] < budget) & jnp.any(carry[1].reason == rounds.RUNNING)

    def body(carry: tuple[Array, rounds.State]) -> tuple[Array, rounds.State]:
        return carry[0] + 1, rounds.round(m, params, carry[1])

    return jax.lax.while_loop(unfinished, body, (jnp.int32(0), state))[1]


@functools.partial(jax.jit, static_argnames=("m", "chunk"), donate_argnames=("state",), compiler_options=OPTIONS)
def prefill_chunk(m: Method, params: dict[str, Any], state: rounds.State, prompt: Array, length: Array, chunk: int) -> rounds.State:
    """One pass of `prefill`, so that other requests can decode in between."""
    return rounds.forced(m, params, state, prompt, length, chunk)


@functools.partial(jax.jit, static_argnames=("m", "chunk"), donate_argnames=("state",), compiler_options=OPTIONS)
def prefill(m: Method, params: dict[str, Any], state: rounds.State, prompt: Array, length: Array, chunk: int = CHUNK) -> rounds.State:
    """Commits each prompt but its last token, which becomes the root; drafters observe every chunk.

    Args:
      m, params, state: the composition and a state at a position inside the prompt. prompt: i32[B,P]. length: i32[B], at least 1.
      chunk: rows of a pass (static).

    Returns:
      The state, ready for `run`.
    """
    def body(s: rounds.State) -> rounds.State:
        return rounds.forced(m, params, s, prompt, length, chunk)

    return jax.lax.while_loop(lambda s: jnp.any(s.position < length - 1), body, state)


def check_request(m: Method, prompts: list[list[int]], *, settings: Settings | Sequence[Settings] | None = None, **few: Any) -> None:
    """Refuses a request that cannot be served; nothing is allocated or compiled. Arguments as for `begin`.

    Raises:
      ValueError: a value out of its range; it is named.
    """
    if not prompts:
        raise ValueError("there is no prompt")
    rows = _settings(prompts, settings, few)
    requests.check(requests.equipped(m, rows), prompts, rows)


def _settings(prompts: list[list[int]], settings: Settings | Sequence[Settings] | None, few: dict[str, Any]) -> list[Settings]:
    return requests.as_settings(len(prompts), **few) if settings is None else as_list(settings, len(prompts))


def begin(m: Method, params: dict[str, Any], prompts: list[list[int]], *, settings: Settings | Sequence[Settings] | None = None,
          least_capacity: int = 0, memory: rounds.State | None = None, **few: Any) -> rounds.State:
    """Checks a request, allocates its state and prefills it.

    Args:
      m, params: the composition, equipped for the settings (`requests.equipped`). prompts: token ids. settings: one, or one a prompt.
        Instead of them `few`: max_new_tokens and temperature (one, or one a prompt), seed, request_ids, stop_ids. least_capacity: cache slots
        at least, so that requests of several lengths share one program. memory: a finished state of the same method, whose shared tables
        (past answers, learned successors) this request begins with.

    Returns:
      A prefilled State.

    Raises:
      ValueError: a value out of its range, before anything is compiled.
    """
    if not prompts:
        raise ValueError("there is no prompt")
    rows = _settings(prompts, settings, few)
    requests.check(m, prompts, rows)
    capacity, room, r = _arrange(m, prompts, rows, least_capacity)
    state = _start(m, params, capacity, room, r)
    return prefill(m, params, state if memory is None else rounds.remember(state, memory), r.prompt, r.length)


def fresh(m: Method, params: dict[str, Any], prompts: list[list[int]], settings: Sequence[Settings], *, capacity: int, room: int,
          grammar: tuple[int, int] | None = None) -> rounds.State:
    """The state of checked requests before their prompts are read, in sizes that the caller chooses: for engines.

    Args:
      m, params, prompts, settings: as for `begin`. capacity: cache slots, and the width of the padded prompts. room: most tokens of an answer.
      grammar: (states, classes) of grammar tables, default as large as needed.
    """
    return _start(m, params, capacity, room, jax.tree.map(jnp.asarray, requests.arrays(m, prompts, settings, capacity, grammar)))


def _arrange(m: Method, prompts: list[list[int]], settings: Sequence[Settings], least: int = 0) -> tuple[int, int, requests.Requests]:
    """Checked requests as (cache slots, room for answers, arrays on the device)."""
    r = requests.arrays(m, prompts, settings)
    capacity = max(capacity_for(int(r.length.max()), int(r.limit.max()), m.rows), least)
    return capacity, -(-int(r.limit.max()) // 64) * 64, jax.tree.map(jnp.asarray, r)


def compile_ahead(m: Method, params: dict[str, Any], prompts: list[list[int]], *, max_new_tokens: int | list[int],
                  stop_ids: tuple[int, ...] = ()) -> list[threading.Thread]:
    """Begins to compile what a checked request will need, beside other work such as reading the weights; `begin` and `run` then find it.

    Args:
      m: the composition. params: its parameters or their shapes. prompts, max_new_tokens, stop_ids: as for `begin`.

    Returns:
      Threads for `wait`. They do not keep the program alive.
    """
    capacity, room, r = _arrange(m, prompts, requests.as_settings(len(prompts), max_new_tokens=max_new_tokens, stop_ids=stop_ids))
    state = jax.eval_shape(lambda p, r: _start(m, p, capacity, room, r), params, r)
    jobs = (lambda: run.lower(m, params, state, jnp.int32(0)).compile(), lambda: prefill.lower(m, params, state, r.prompt, r.length).compile())
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    return threads


def wait(threads: list[threading.Thread]) -> None:
    """Until what `compile_ahead` began is done."""
    for thread in threads:
        thread.join()


@functools.partial(jax.jit, static_argnames=("m", "capacity", "room"))
def _start(m: Method, params: dict[str, Any], capacity: int, room: int, r: requests.Requests) -> rounds.State:
    return rounds.start(m, params, root=r.prompt[:, 0], capacity=capacity, room=room, limit=r.limit, stops=r.stops, request=r.request, seed=r.seed,
                        warp=m.warp.init(r.warp, r.prompt, r.length, m.target.vocab), draft=r.draft, coupled=r.coupled, want=r.want)


def finish(m: Method, params: dict[str, Any], state: rounds.State) -> rounds.State:
    """Runs a state to its end."""
    return run(m, params, state, jnp.int32(2**31 - 1))


def stream(m: Method, params: dict[str, Any], state: rounds.State, rounds_per_chunk: int = 4) -> Iterator[rounds.State]:
    """Yields the state after every few rounds, the last one finished. The yielded state is the loop's own and is donated to the
    next chunk: read what you need before asking for the next."""
    while True:
        state = run(m, params, state, jnp.int32(rounds_per_chunk))
        yield state
        if not bool(jnp.any(state.reason == rounds.RUNNING)):
            return


@functools.partial(jax.jit, static_argnames=("target", "read", "chunk", "capacity"), compiler_options=OPTIONS)
def forced_read(target: Target, params: Any, tokens: Array, length: Array, read: Callable[..., Any], chunk: int, capacity: int, extra: Any) -> Any:
    """Teacher-forces texts through the plain model and keeps what `read` makes of each row's logits.

    Args:
      target, params: the model. tokens: i32[B,P]. length: i32[B]. read: (logits f[B,C,V], following i32[B,C], at i32[B,C], extra)
        -> tree of [B,C,...]; `following` is the token after the row and `at` the row's position (static function).
      chunk: C rows a pass. capacity: cache slots, at least P + C. extra: data for `read`.

    Returns:
      The tree of `read`, [B,P,...]; entries at positions >= length - 1 mean nothing.
    """
    batch, total = tokens.shape
    steps = -(-total // chunk)
    padded = jnp.pad(tokens, ((0, 0), (0, steps * chunk + 1 - total)))

    def body(cache: Any, i: Array) -> tuple[Any, Any]:
        block = jax.lax.dynamic_slice_in_dim(padded, i * chunk, chunk + 1, axis=1)
        draft = tree.chain(block[:, 0], block[:, 1:chunk], jnp.full(batch, chunk - 1))
        features, work = target.forward(params, cache, target.scratch(params, batch, chunk), tree.rows(draft), ("logits",))
        at = jnp.broadcast_to(i * chunk + jnp.arange(chunk), (batch, chunk))
        out = read(features["logits"], block[:, 1:], at, extra)
        path = jnp.broadcast_to(jnp.arange(chunk), (batch, chunk))
        return target.commit(cache, target.select(work, path), jnp.full(batch, chunk)), out

    _, outs = jax.lax.scan(body, target.init(params, batch, capacity), jnp.arange(steps))
    del length
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(batch, steps * chunk, *x.shape[3:])[:, :total], outs)


def _log_probability(logits: Array, following: Array, at: Array, extra: Any) -> Array:
    del at, extra
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    return jnp.take_along_axis(log_p, following[..., None], axis=-1)[..., 0]


def score_tokens(target: Target, params: Any, prompt: list[int], continuation: list[int]) -> np.ndarray:
    """Log-probability of each continuation token given all before it, teacher-forced, at temperature 1.

    Args:
      target, params: the model. prompt, continuation: token ids, the prompt at least one.

    Returns:
      f32[len(continuation)].

    Raises:
      ValueError: an empty prompt, an id outside the vocabulary, or a text longer than the context.
    """
    text = [*prompt, *continuation]
    pad_prompts([prompt], target.vocab)
    tokens, lengths = pad_prompts([text], target.vocab)
    if len(text) > target.context:
        raise ValueError(f"{len(text)} tokens exceed the context of {target.context}")
    if not continuation:
        return np.zeros(0, np.float32)
    capacity = tokens.shape[1] + 2 * CHUNK
    out = forced_read(target, params, jnp.asarray(tokens), jnp.asarray(lengths), _log_probability, min(CHUNK, tokens.shape[1]), capacity, ())
    return np.asarray(out)[0, len(prompt) - 1:len(text) - 1]
