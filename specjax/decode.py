"""Whole generations on the device: one `while_loop` over rounds, output buffers and statistics carried in the state, which is
donated; nothing goes to the host inside. The stream is the same loop, run in chunks; plain decoding the same loop with one row.
"""
from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import round as rounds
from specjax import tree
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


def pad_prompts(prompts: list[list[int]], vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts as one array, padded to a power of two so that few sizes are compiled.

    Args:
      prompts: token ids. vocab: of the target.

    Returns:
      (tokens i32[B,P], lengths i32[B]).

    Raises:
      ValueError: no prompt, an empty prompt, or an id outside the vocabulary.

    >>> pad_prompts([[1, 2], [3]], 10)[1].tolist()
    [2, 1]
    """
    if not prompts:
        raise ValueError("there is no prompt")
    for i, p in enumerate(prompts):
        if len(p) == 0:
            raise ValueError(f"prompt {i} is empty: at least one token is needed")
        bad = [t for t in p if not 0 <= t < vocab]
        if bad:
            raise ValueError(f"prompt {i} holds token id {bad[0]}, outside the vocabulary of {vocab} tokens")
    longest = max(len(p) for p in prompts)
    width = max(CHUNK, 1 << (longest - 1).bit_length())
    out = np.zeros((len(prompts), width), np.int32)
    for i, p in enumerate(prompts):
        out[i, :len(p)] = p
    return out, np.asarray([len(p) for p in prompts], np.int32)


def check_request(m: Method, prompts: list[list[int]], *, max_new_tokens: int | list[int], temperature: float | list[float] = 0.0,
                  request_ids: list[int] | None = None) -> None:
    """Refuses a request that cannot be served; nothing is allocated or compiled.

    Args:
      m: the composition. prompts: token ids. max_new_tokens, temperature: one value, or one a prompt. request_ids: one a prompt.

    Raises:
      ValueError: a value out of its range; it is named.
    """
    from specjax.sampling import check_temperature
    pad_prompts(prompts, m.target.vocab)
    limits = [int(n) for n in max_new_tokens] if np.ndim(max_new_tokens) else [int(max_new_tokens)] * len(prompts)
    if len(limits) != len(prompts):
        raise ValueError(f"{len(limits)} values of max_new_tokens for {len(prompts)} prompts")
    for n in limits:
        if n < 1:
            raise ValueError(f"max_new_tokens is {n}: it must be at least 1")
    for t in np.broadcast_to(np.asarray(temperature, np.float64), (len(prompts),)):
        check_temperature(float(t))
    if request_ids is not None and len(request_ids) != len(prompts):
        raise ValueError(f"{len(request_ids)} request ids for {len(prompts)} prompts")
    for i, (p, limit) in enumerate(zip(prompts, limits, strict=True)):
        if len(p) > m.target.context:
            raise ValueError(f"prompt {i} has {len(p)} tokens; the target's context holds {m.target.context}")
        if len(p) + limit + m.rows > m.target.context:
            raise ValueError(f"prompt {i}: {len(p)} prompt tokens + {limit} new tokens + {m.rows} rows of a pass exceed the context of "
                             f"{m.target.context}")


def begin(m: Method, params: dict[str, Any], prompts: list[list[int]], *, max_new_tokens: int | list[int], temperature: float | list[float] = 0.0,
          seed: int = 0, request_ids: list[int] | None = None, stop_ids: tuple[int, ...] = (), least_capacity: int = 0,
          memory: rounds.State | None = None) -> rounds.State:
    """Checks a request, allocates its state and prefills it.

    Args:
      m, params: the composition. prompts: token ids. max_new_tokens, temperature: one value, or one a prompt.
      seed: of all coins. request_ids: one a prompt; default 0, 1, ... stop_ids: ids that end a row. least_capacity: cache slots at
        least, so that requests of several lengths share one program. memory: a finished state of the same method, whose shared tables
        (past answers, learned successors) this request begins with.

    Returns:
      A prefilled State.

    Raises:
      ValueError: a value out of its range, before anything is compiled.
    """
    check_request(m, prompts, max_new_tokens=max_new_tokens, temperature=temperature, request_ids=request_ids)
    sizes, values, tokens, lengths = _arrange(m, prompts, max_new_tokens, temperature, seed, request_ids, stop_ids, least_capacity)
    state = _start(m, params, *sizes, *values)
    return prefill(m, params, state if memory is None else rounds.remember(state, memory), tokens, lengths)


def _arrange(m: Method, prompts: list[list[int]], max_new_tokens: int | list[int], temperature: float | list[float], seed: int,
             request_ids: list[int] | None, stop_ids: tuple[int, ...], least: int = 0) -> tuple[tuple[int, int], tuple[Any, ...], Array, Array]:
    """A checked request as (sizes and values for `_start`, prompts i32[B,P], lengths i32[B])."""
    from specjax.sampling import TemperatureState
    tokens, lengths = pad_prompts(prompts, m.target.vocab)
    batch = len(prompts)
    limits = np.broadcast_to(np.asarray(max_new_tokens, np.int64), (batch,))
    temperatures = np.broadcast_to(np.asarray(temperature, np.float32), (batch,))
    ids = list(range(batch)) if request_ids is None else request_ids
    capacity = max(capacity_for(int(lengths.max()), int(limits.max()), m.rows), least)
    stops = np.full((batch, max(1, len(stop_ids))), -1, np.int32)
    stops[:, :len(stop_ids)] = stop_ids
    values = (jnp.asarray(tokens[:, 0]), jnp.asarray(limits, jnp.int32), jnp.asarray(stops), jnp.asarray(ids, jnp.int32),
              jnp.uint32(seed & 0xFFFFFFFF), TemperatureState(jnp.asarray(temperatures)))
    return (capacity, -(-int(limits.max()) // 64) * 64), values, jnp.asarray(tokens), jnp.asarray(lengths)


def compile_ahead(m: Method, params: dict[str, Any], prompts: list[list[int]], *, max_new_tokens: int | list[int],
                  stop_ids: tuple[int, ...] = ()) -> list[threading.Thread]:
    """Begins to compile what a checked request will need, beside other work such as reading the weights; `begin` and `run` then find it.

    Args:
      m: the composition. params: its parameters or their shapes. prompts, max_new_tokens, stop_ids: as for `begin`.

    Returns:
      Threads for `wait`. They do not keep the program alive.
    """
    sizes, values, tokens, lengths = _arrange(m, prompts, max_new_tokens, 0.0, 0, None, stop_ids)
    state = jax.eval_shape(lambda p, *v: _start(m, p, *sizes, *v), params, *values)
    jobs = (lambda: run.lower(m, params, state, jnp.int32(0)).compile(), lambda: prefill.lower(m, params, state, tokens, lengths).compile())
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    return threads


def wait(threads: list[threading.Thread]) -> None:
    """Until what `compile_ahead` began is done."""
    for thread in threads:
        thread.join()


@functools.partial(jax.jit, static_argnames=("m", "capacity", "room"))
def _start(m: Method, params: dict[str, Any], capacity: int, room: int, root: Array, limit: Array, stops: Array, request: Array, seed: Array,
           warp: Any) -> rounds.State:
    return rounds.start(m, params, root=root, capacity=capacity, room=room, limit=limit, stops=stops, request=request, seed=seed, warp=warp)


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
