"""An OpenAI-compatible endpoint over an engine: completions and chat completions, whole or streamed, as an ASGI application.

A request that cannot be served is answered at once with a JSON error object (4xx); one for which there is no room with 429. What a client has not
read yet waits in memory, bounded by the answer's length, so a slow client holds up nobody; a client that has gone frees its slot.
"""
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from specjax.grammar import Automaton
from specjax.model import Model
from specjax.serving.grammars import Grammars
from specjax.serving.protocol import ChatCompletion, Completion, Refused, Sampling, parse
from specjax.serving.tickets import Busy, Event, Ticket
from specjax.serving.worker import Worker
from specjax.settings import Settings


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a client may send: `body` bytes; `prompts` of one request; `requests` answered at the same time."""

    body: int = 1 << 20
    prompts: int = 16
    requests: int = 64


class _Choice:
    """One sample of an answer: its ticket, and the news that the engine's thread left for the event loop."""

    def __init__(self, worker: Worker, prompt: list[int], settings: Settings):
        loop, self.news = asyncio.get_running_loop(), asyncio.Queue()

        def listen(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have closed
                loop.call_soon_threadsafe(self.news.put_nowait, event)

        self.ticket: Ticket = worker.submit(prompt, settings, listen)

    async def events(self) -> AsyncIterator[Event]:
        while True:
            event = await self.news.get()
            yield event
            if event.reason is not None:
                return


def application(model: Model, worker: Worker, bounds: Bounds | None = None) -> Starlette:
    """The ASGI application.

    Args:
      model: encodes prompts and renders chats. worker: drives the engine. bounds: limits of what a client may send.

    Returns:
      A Starlette application with /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics.
    """
    bounds, served, grammars = bounds or Bounds(), {"count": 0}, Grammars(model)

    async def body_of(request: Request) -> bytes:
        if int(request.headers.get("content-length") or 0) > bounds.body:
            raise Refused(413, f"the body is longer than {bounds.body} bytes")
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > bounds.body:
                raise Refused(413, f"the body is longer than {bounds.body} bytes")
            parts.append(part)
        return b"".join(parts)

    async def answer(request: Request, kind: type[Completion] | type[ChatCompletion]) -> Any:
        asked = parse(kind, await body_of(request))
        if asked.model is not None and asked.model != model.name:
            raise Refused(404, f"model {asked.model!r} is not served here; {model.name!r} is", "model")
        chat = isinstance(asked, ChatCompletion)
        prompts, limit = (_chat_prompt(model, asked), _chat_limit(asked, worker)) if chat else (_prompts(model, asked), asked.max_tokens)
        if len(prompts) * asked.n > bounds.prompts:
            raise Refused(400, f"{len(prompts)} prompts x n = {asked.n} exceed the {bounds.prompts} samples of one request", "prompt")
        wanted = (asked.top_logprobs if asked.logprobs else None) if chat else asked.logprobs
        automaton = await _grammar(grammars, asked)
        settings, choices = asked.settings(limit if limit else 1, model.eos, wanted, automaton), []
        if limit is None:  # a chat without a limit may fill what its prompt leaves of the capacity
            room = worker.engine.room_for(len(prompts[0]))
            settings = [dataclasses.replace(s, max_new_tokens=max(1, room)) for s in settings]
        try:
            for prompt in prompts:
                for s in settings:
                    choices.append(_Choice(worker, prompt, s))
        except (ValueError, Busy) as error:
            for choice in choices:
                choice.ticket.cancel()
            raise Refused(429 if isinstance(error, Busy) else 400, str(error)) from None
        head = {"id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex, "created": int(time.time()), "model": model.name}
        if asked.stream:
            return StreamingResponse(_stream(model, head, asked, choices, chat), media_type="text/event-stream")
        return JSONResponse(await _whole(request, model, head, choices, chat))

    def guarded(kind: type[Completion] | type[ChatCompletion]) -> Any:
        async def handler(request: Request) -> Any:
            if served["count"] >= bounds.requests:
                return _refuse(Refused(429, f"{bounds.requests} requests are being answered, which is the limit"))
            served["count"] += 1
            response = None
            try:
                response = await answer(request, kind)
                if isinstance(response, StreamingResponse):
                    response.body_iterator = _counted(response.body_iterator, served)
                return response
            except Refused as error:
                return _refuse(error)
            except ClientDisconnect:
                return _refuse(Refused(499, "the client has gone"))
            finally:
                if not isinstance(response, StreamingResponse):
                    served["count"] -= 1
        return handler

    async def models(request: Request) -> JSONResponse:
        del request
        return JSONResponse({"object": "list", "data": [{"id": model.name, "object": "model", "created": 0, "owned_by": "specjax"}]})

    async def health(request: Request) -> JSONResponse:
        del request
        return JSONResponse({"status": "ok"} if worker.failure is None else {"status": "failed"}, 200 if worker.failure is None else 503)

    async def metrics(request: Request) -> JSONResponse:
        del request
        e = worker.engine
        return JSONResponse({"active": e.active, "pending": e.pending, "slots": e.limits.slots, "answering": served["count"], **e.counts})

    async def unknown(request: Request, error: Exception) -> JSONResponse:
        status = getattr(error, "status_code", 500)
        return _refuse(Refused(status, f"{request.method} {request.url.path}: {getattr(error, 'detail', 'the server failed')}"))

    routes = [Route("/v1/completions", guarded(Completion), methods=["POST"]),
              Route("/v1/chat/completions", guarded(ChatCompletion), methods=["POST"]), Route("/v1/models", models),
              Route("/health", health), Route("/metrics", metrics)]
    return Starlette(routes=routes, exception_handlers={404: unknown, 405: unknown, 500: unknown})


async def _grammar(grammars: Grammars, asked: Sampling) -> Automaton | None:
    named = asked.grammar()
    if named is None:
        return None
    try:
        return await asyncio.to_thread(grammars.get, *named)
    except ValueError as error:
        raise Refused(400, str(error), "regex" if named[0] == "regex" else "response_format") from None


def _refuse(error: Refused) -> JSONResponse:
    return JSONResponse(error.body(), error.status, headers={"Retry-After": "1"} if error.status == 429 else None)


async def _counted(parts: Any, served: dict[str, int]) -> AsyncIterator[Any]:
    try:
        async for part in parts:
            yield part
    finally:
        served["count"] -= 1
        with contextlib.suppress(Exception):
            await parts.aclose()


def _prompts(model: Model, asked: Completion) -> list[list[int]]:
    given = asked.prompt
    if isinstance(given, list) and not given:
        raise Refused(400, "prompt: there is none", "prompt")
    try:
        several = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
        return [model.encode(p) if isinstance(p, str) else p for p in several]
    except ValueError as error:
        raise Refused(400, str(error), "prompt") from None


def _chat_prompt(model: Model, asked: ChatCompletion) -> list[list[int]]:
    from specjax.weights.chat import render
    from specjax.weights.tokenizer import encode
    if model.chat is None:
        raise Refused(400, f"{model.name} has no chat template", "messages")
    try:
        text = render(model.chat, [{"role": "system" if m.role == "developer" else m.role, "content": m.content} for m in asked.messages])
    except ValueError as error:
        raise Refused(400, str(error), "messages") from None
    return [encode(model.tokenizer, text, add_bos=False)]


def _chat_limit(asked: ChatCompletion, worker: Worker) -> int | None:
    limits = {asked.max_tokens, asked.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise Refused(400, "max_tokens and max_completion_tokens contradict each other", "max_tokens")
    return limits.pop() if limits else None


def _logprobs(model: Model, tokens: list[int], found: Any, chat: bool) -> Any:
    """The log-probabilities of some tokens, in the form of either interface; `found`: (chosen, [(id, value), ...]) of each token."""
    if found is None:
        return None
    text = lambda i: model.decode([i])  # noqa: E731
    if chat:
        item = lambda i, p: {"token": text(i), "logprob": p, "bytes": list(text(i).encode())}  # noqa: E731
        items = [item(t, p) | {"top_logprobs": [item(*x) for x in top]} for t, (p, top) in zip(tokens, found, strict=True)]
        return {"content": items, "refusal": None}
    return {"tokens": [text(t) for t in tokens], "token_logprobs": [p for p, _ in found],
            "top_logprobs": [{text(i): p for i, p in top} for _, top in found], "text_offset": None}


async def _whole(request: Request, model: Model, head: dict[str, Any], choices: list[_Choice], chat: bool) -> dict[str, Any]:
    async def gone() -> None:
        while not await request.is_disconnected():
            await asyncio.sleep(0.2)

    async def all_done() -> None:
        for choice in choices:
            async for _ in choice.events():
                pass

    done, watch = asyncio.ensure_future(all_done()), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({done, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise ClientDisconnect
        done.result()
    finally:
        for task in (done, watch):
            task.cancel()
        for choice in choices:
            choice.ticket.cancel()  # nothing happens to a finished one
    tickets = [c.ticket for c in choices]
    if any(t.reason == "error" for t in tickets):
        raise Refused(500, "the engine failed")
    answers = [{"index": i, "finish_reason": t.reason, "logprobs": _logprobs(model, t.tokens, t.logprobs, chat),
                **({"message": {"role": "assistant", "content": t.text}} if chat else {"text": t.text})} for i, t in enumerate(tickets)]
    return {**head, "object": "chat.completion" if chat else "text_completion", "choices": answers, "usage": _usage(tickets)}


def _usage(tickets: list[Ticket]) -> dict[str, Any]:
    prompt, made = sum(len(t.prompt) for t in {tuple(t.prompt): t for t in tickets}.values()), sum(len(t.tokens) for t in tickets)
    counts = [t.statistics for t in tickets if t.statistics is not None]
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": sum(t.reused for t in tickets)},
            "completion_tokens_details": {"accepted_prediction_tokens": sum(c.accepted for c in counts),
                                          "rejected_prediction_tokens": sum(c.drafted - c.accepted for c in counts)}}


async def _stream(model: Model, head: dict[str, Any], asked: Sampling, choices: list[_Choice], chat: bool) -> AsyncIterator[str]:
    """Server-sent events; ends with [DONE]. Closing it (a client that has gone) cancels what is left."""
    head = head | {"object": "chat.completion.chunk" if chat else "text_completion"}
    usage = asked.stream_options is not None and asked.stream_options.include_usage
    joined: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    async def forward(i: int, choice: _Choice) -> None:
        async for event in choice.events():
            await joined.put((i, event))

    tasks = [asyncio.ensure_future(forward(i, c)) for i, c in enumerate(choices)]
    try:
        if chat:
            for i in range(len(choices)):
                opening = {"index": i, "delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}
                yield _line(head | {"choices": [opening]})
        left = len(choices)
        while left:
            i, event = await joined.get()
            left -= event.reason is not None
            logprobs = _logprobs(model, event.tokens, event.logprobs, chat)
            body = {"delta": {"content": event.text} if event.text else {}} if chat else {"text": event.text}
            yield _line(head | {"choices": [{"index": i, "finish_reason": event.reason, "logprobs": logprobs, **body}]})
        if usage:
            yield _line(head | {"choices": [], "usage": _usage([c.ticket for c in choices])})
        yield "data: [DONE]\n\n"
    finally:
        for task in tasks:
            task.cancel()
        for choice in choices:
            choice.ticket.cancel()


def _line(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
