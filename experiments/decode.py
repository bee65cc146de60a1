"""Generates with a speculative method and measures it against plain decoding in the same run.

    python -m experiments.decode
    python -m experiments.decode --prompt="Write a poem about rain." --temperature=0.7 --method=model
    python -m experiments.decode --prompts_file=prompts.jsonl --batch=4 --json > record.json

The answer appears as it is made; what came from a draft is in green. Below it: tokens per second of both sides, where the time goes,
and whether the two texts are the same.
"""
from __future__ import annotations

import contextlib
import gc
import json
import sys
import time

from absl import flags

from experiments import command

_STARTED = time.perf_counter()
_DEFAULT = ("Correct the spelling and grammar of this text and write it out in full: \"Yesterday me and my brother goed to the old lighthouse at "
            "the end of the beach. The keeper of the lighthouse show us the big lamp, and he telled us that the lamp of the lighthouse have "
            "burn every night since a hundred year. We was very impress by the big lamp and by the old keeper of the lighthouse.\"")

_PROMPT = flags.DEFINE_string("prompt", _DEFAULT, "What to answer or continue.")
_FILE = flags.DEFINE_string("prompts_file", None, "Prompts, one a line, or JSON objects one a line with prompt, text, turns or tokens; "
                            "takes the place of --prompt.")
_METHOD = flags.DEFINE_string("method", "lookup", "Name in METHODS.md; python -m experiments.list_methods prints them.")
_TOKENS = flags.DEFINE_integer("max_new_tokens", 200, "Most tokens to generate for each prompt.")
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "0 takes the likeliest token each time; 1 samples the model's own law.")
_SEED = flags.DEFINE_integer("seed", 0, "Of all random draws: the same seed gives the same text.")
_BATCH = flags.DEFINE_integer("batch", 1, "Prompts that are generated together.")
_TARGET = flags.DEFINE_string("target", "smollm2-135m-instruct", "This model (fetched once), or a safetensors folder, a .gguf file, a hub id.")
_CHAT = flags.DEFINE_bool("chat", True, "Present a prompt as a user's turn, where the model has a chat template; --nochat continues the raw text.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed repetitions of plain decoding and of the method, in alternation; medians count.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON document on stdout and nothing else. Its text and tokens are lists when there are "
                          "several prompts.")


def main(argv: list[str]) -> None:
    """Checks everything, streams, measures, prints."""
    del argv
    with command.checking():
        for name, value in (("batch", _BATCH.value), ("repeats", _REPEATS.value), ("max_new_tokens", _TOKENS.value)):
            if value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1")
        if _FILE.value is not None and flags.FLAGS["prompt"].present:
            raise ValueError("--prompt and --prompts_file exclude each other")
    gc.disable()  # until the first text: tracing makes millions of objects that live on, and looking through them costs half a second
    import specjax
    from specjax import api, compare, compile_cache, console, cost_split, decode, measure, report
    from specjax.model import from_checkpoint, outline
    from specjax.prompts import read_prompts
    from specjax.sampling import check_temperature
    from specjax.weights import open_checkpoint
    compile_cache.keep_compiled()
    with command.checking():
        prompts = [_PROMPT.value] if _FILE.value is None else read_prompts(_FILE.value)
        if not prompts[0]:
            raise ValueError("the prompt is empty: at least one token is needed")
        check_temperature(_TEMPERATURE.value)
        entry = specjax.methods.get(_METHOD.value)
        imported = time.perf_counter()
        checkpoint = open_checkpoint(_TARGET.value)
        shapes = outline(checkpoint)
        ids = api.token_ids(shapes, prompts, _CHAT.value and checkpoint.chat is not None)
        method, needed = entry.build(shapes)
        decode.check_request(method, ids, max_new_tokens=_TOKENS.value, temperature=_TEMPERATURE.value)
        compiling = decode.compile_ahead(method, needed, ids[:_BATCH.value], max_new_tokens=_TOKENS.value, stop_ids=checkpoint.eos)
        try:
            model = from_checkpoint(checkpoint)
        except (ValueError, OSError):
            decode.wait(compiling)  # the interpreter must not end under the compiler
            raise
    plain, fast = (compare.Side(*e.build(model)) for e in (specjax.methods.get("plain"), entry))
    loaded = time.perf_counter()
    decode.wait(compiling)
    settings = compare.Settings(_TOKENS.value, _TEMPERATURE.value, _SEED.value, _REPEATS.value)
    pairs, first_text, middle, cost = [], None, None, None
    for start in range(0, len(ids), _BATCH.value):
        some, requests = ids[start:start + _BATCH.value], range(start, min(start + _BATCH.value, len(ids)))
        state = compare.begin(model, fast, some, requests, settings)
        first_text = first_text or time.perf_counter()
        gc.enable()
        if not _JSON.value:
            console.show(model, decode.stream(fast.method, fast.params, state, 1), start, sys.stdout)
        pairs.append(compare.compare(model, (plain, fast), some, requests, settings))
        if cost is None:
            timed = pairs[0][1]
            middle = compare.middle(model, fast, some, requests, settings, sum(timed.passes.values()))
            cost = cost_split.split(*fast, middle, timed.passes, timed.decode_s)
    begun = {"total": first_text - _STARTED, "imports": imported - _STARTED, "weights": loaded - imported, "programs": first_text - loaded}
    r = report.record(model, entry, fast.method.drafter.sources, settings, _BATCH.value, pairs, cost, measure.read_bandwidth(model.params), begun)
    print(json.dumps(r, ensure_ascii=False, allow_nan=False) if _JSON.value else f"\n{console.table(r)}")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the reader of a pipe may have gone
        command.run(main)
