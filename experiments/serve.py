"""Serves a model with speculative decoding over HTTP, in OpenAI's interface: completions and chat completions, whole or streamed.

    pip install -e ".[serve]" && python -m experiments.serve
    curl localhost:8000/v1/chat/completions -H "content-type: application/json" -d '{"messages": [{"role": "user", "content": "Hello!"}]}'

Any OpenAI client works with base_url=http://localhost:8000/v1. All programs are compiled before the first request is taken.
"""
from __future__ import annotations

import sys
import time

from absl import flags

from experiments import command

_TARGET = flags.DEFINE_string("target", "smollm2-135m-instruct", "This model (fetched once), or a safetensors folder, a .gguf file, a hub id.")
_METHOD = flags.DEFINE_string("method", "lookup", "Name in METHODS.md; \"plain\" serves without speculation.")
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen on.")
_PORT = flags.DEFINE_integer("port", 8000, "Port to listen on; 0 takes a free one.", lower_bound=0, upper_bound=65535)
_SLOTS = flags.DEFINE_integer("slots", 4, "Requests decoded together.", lower_bound=1)
_CAPACITY = flags.DEFINE_integer("capacity", 2048, "Cache slots of a request: its prompt, its new tokens and the rows of one pass.", lower_bound=1)
_NEW = flags.DEFINE_integer("max_new_tokens", 1024, "Most tokens of one answer.", lower_bound=1)
_QUEUE = flags.DEFINE_integer("queue", 64, "Requests that may wait; more are refused with 429.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 4, "Rounds between two deliveries: more is a little faster and streams in larger pieces.", lower_bound=1)
_KEPT = flags.DEFINE_integer("kept", 4, "Finished conversations whose caches are kept for the next turn.", lower_bound=0)
_STATES = flags.DEFINE_integer("grammar_states", 1024, "States of the largest grammar (regex, JSON schema); 0 refuses grammars.", lower_bound=0)
_CLASSES = flags.DEFINE_integer("grammar_classes", 512, "Classes of tokens of the largest grammar.", lower_bound=0)
_LOGPROBS = flags.DEFINE_integer("logprobs", 5, "Most alternatives beside a token's log-probability.", lower_bound=0, upper_bound=20)
_BODY = flags.DEFINE_integer("max_body", 1 << 20, "Longest body of a request, in bytes.", lower_bound=1)
_ANSWERING = flags.DEFINE_integer("max_requests", 64, "HTTP requests answered at the same time; more are refused with 429.", lower_bound=1)


def main(argv: list[str]) -> None:
    """Loads, compiles, serves until Ctrl-C."""
    del argv
    with command.checking():
        try:
            import starlette  # noqa: F401
            import uvicorn
        except ImportError as error:
            raise ValueError(f"serving needs the extra `serve` ({error.name} is missing): pip install -e \".[serve]\"") from None
        import specjax
        from specjax import api, compile_cache
        from specjax.serving.engine import Engine
        from specjax.serving.http import Bounds, application
        from specjax.serving.tickets import Limits
        from specjax.serving.worker import Worker
        entry = specjax.methods.get(_METHOD.value)
        limits = Limits(_SLOTS.value, _CAPACITY.value, _NEW.value, _QUEUE.value, _ROUNDS.value, kept=_KEPT.value, logprobs=_LOGPROBS.value,
                        grammar=(_STATES.value, _CLASSES.value) if _STATES.value and _CLASSES.value else (0, 0))
        model = specjax.load(_TARGET.value)
        engine = Engine(model, *api.bind(model, entry), limits)
    compile_cache.keep_compiled()
    begun = time.perf_counter()
    print(f"compiling for {', '.join(map(str, engine.widths))} slots ...", file=sys.stderr, flush=True)
    engine.warm_up()
    ready = f"ready after {time.perf_counter() - begun:.0f} s: {model.name}, {entry.name}"
    print(f"{ready}, http://{_HOST.value}:{_PORT.value}/v1", file=sys.stderr, flush=True)
    worker = Worker(engine)
    try:
        uvicorn.run(application(model, worker, Bounds(body=_BODY.value, requests=_ANSWERING.value)), host=_HOST.value, port=_PORT.value,
                    log_level="warning", timeout_graceful_shutdown=2)
    finally:
        worker.close()


if __name__ == "__main__":
    command.run(main)
