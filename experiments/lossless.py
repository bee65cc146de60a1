"""Proves that the output law is the target's, or says which check is red.

    python -m experiments.lossless               # every case, and every match method on the real target
    python -m experiments.lossless --quick       # a case of each kind, no model; under a minute
    python -m experiments.lossless --mutate wrong_parent      # breaks the spine on purpose and shows the check that notices
    python -m experiments.lossless --json        # one JSON document on stdout and nothing else

Exit code 1 if anything is red.
"""
from __future__ import annotations

import json
import pathlib
import sys

from absl import app, flags

_QUICK = flags.DEFINE_bool("quick", False, "A case of each kind only, and no pretrained model.")
_MUTATE = flags.DEFINE_string("mutate", "", "Break the spine by this mutation and run the check that must notice: shifted_position, wrong_parent, "
                              "missing_mask_bit, stale_draft_cache or swapped_seed_stream.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON document on stdout and nothing else.")
_OUT = flags.DEFINE_string("out", "", "Also write the JSON record to this file.")
_TARGET = flags.DEFINE_string("target", "smollm2-135m-instruct", "Model of the text checks: a known name, a .gguf file, or a safetensors folder.")
_PROMPTS = flags.DEFINE_integer("prompts", 10, "Prompts of the text checks.", lower_bound=1, upper_bound=10)
_TOKENS = flags.DEFINE_integer("tokens", 128, "Tokens a prompt of the text checks.", lower_bound=1)

PROMPTS = ("Write one sentence about the sea, then say it again.", "List the first ten even numbers.", "Why is the sky blue?",
           "Translate to French: the house is small and the garden is large.", "Write a Python function that reverses a list.",
           "Summarize in one line: the cat sat on the mat, the dog lay by the door, and the rain fell all day on the roof.",
           "What is 17 times 23? Show the steps.", "Name three rivers in Europe and one city on each of them.",
           "Write a short letter to a friend who is ill.", "Repeat after me: to be, or not to be, that is the question.")


def main(argv: list[str]) -> None:
    """Runs the checks and prints a table."""
    if len(argv) > 1:
        sys.exit(f"unexpected argument {argv[1]!r}; see --help")
    import jax
    jax.config.update("jax_default_matmul_precision", "highest")
    from specjax.testing import lossless, mutations
    if _MUTATE.value:
        if _MUTATE.value not in mutations.MUTATIONS:
            print(f"unknown mutation {_MUTATE.value!r}; known: {', '.join(mutations.MUTATIONS)}", file=sys.stderr)
            sys.exit(2)
        found = mutations.noticed(_MUTATE.value)
        verdict = "GREEN, not noticed" if found.ok else "RED"
        print(f"{_MUTATE.value}, {mutations.MUTATIONS[_MUTATE.value].what}: {verdict}  {found.name}  ({found.value:g}; {found.note})")
        sys.exit(0 if found.ok else 1)
    named, target, prompts = lossless.law_checks(_QUICK.value), "", []
    if not _QUICK.value:
        import specjax
        model = specjax.load(_TARGET.value)
        target, prompts = model.name, [model.encode(p, chat=model.chat is not None) for p in PROMPTS[:_PROMPTS.value]]
        named += lossless.text_checks(model, prompts, _TOKENS.value)
    found = []
    for verdict, seconds in lossless.run(named):
        found.append((verdict, seconds))
        if not _JSON.value:
            print(f"{'ok ' if verdict.ok else 'RED'}  {verdict.value:9.2e}  {verdict.name:<68}  {verdict.note}  [{seconds:.1f} s]", flush=True)
    document = lossless.record(found, target, len(prompts), _TOKENS.value if prompts else 0)
    if _OUT.value:
        pathlib.Path(_OUT.value).write_text(json.dumps(document, indent=1) + "\n")
    if _JSON.value:
        print(json.dumps(document))
    red = [f.name for f, _ in found if not f.ok]
    if not _JSON.value:
        print(f"{len(found)} checks, {len(red)} red" + (": " + "; ".join(red) if red else ""))
    sys.exit(1 if red else 0)


if __name__ == "__main__":
    app.run(main)
