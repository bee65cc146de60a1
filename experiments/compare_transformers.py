"""The same work by Hugging Face transformers and by specjax: same weights, dtype, threads and prompts, in alternation, in one run.

    pip install -e ".[compare]" && python -m experiments.compare_transformers
    python -m experiments.compare_transformers --record=tests/data/smollm2_greedy.json     # writes what the tests compare with

Greedy decoding of a fixed number of tokens, prompt by prompt; the prefill is timed apart on both sides (one new token), and what is compared is
the time of the tokens after the first. transformers runs the model that is made of the very tensors specjax loads, with its own cache.
"""
from __future__ import annotations

import datetime
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from absl import flags

from experiments import command

_TARGET = flags.DEFINE_string("target", "smollm2-135m-instruct", "Model: a known name, a .gguf file, or a safetensors folder.")
_METHOD = flags.DEFINE_string("method", "lookup", "Name in specjax.methods, beside plain decoding.")
_TOKENS = flags.DEFINE_integer("max_new_tokens", 128, "Tokens of each answer; stop ids are ignored on all sides.", lower_bound=2)
_PROMPTS = flags.DEFINE_integer("prompts", 5, "How many of the built-in prompts.", lower_bound=1, upper_bound=5)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed repetitions of each side, alternating; medians count.", lower_bound=1)
_THREADS = flags.DEFINE_integer("threads", os.cpu_count() or 1, "Threads of torch; JAX uses all cores.", lower_bound=1)
_RECORD = flags.DEFINE_string("record", None, "Write 64 greedy tokens of transformers for every prompt here, with gaps, and stop.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON line on stdout, nothing else.")

PROMPTS = (("Why do cats purr? Answer in three sentences.", True), ("def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n", False),
           ("Translate to Spanish: The train leaves at nine, and the station is far from here.", True),
           ("Shopping list for a picnic:\n1. bread\n2. cheese\n3.", False),
           ("The old harbour was quiet in winter. Only two boats were left, and", False))


def transformers_model(checkpoint: Any) -> Any:
    """The transformers model of an opened checkpoint of the LLaMA family without rope scaling, float32.

    Raises:
      ValueError: torch or transformers is missing, or the family has no counterpart here.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ValueError(f"{error.name} is missing: pip install -e \".[compare]\"") from None
    c = checkpoint.config
    if c.family not in ("llama", "mistral", "qwen2", "qwen3") or c.rope_scaling is not None or c.rope_divisors is not None:
        raise ValueError(f"{checkpoint.name}: the comparison is made for models without rope scaling")
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[c.family]
    config = getattr(transformers, f"{name}Config")(
        vocab_size=c.vocab, hidden_size=c.width, intermediate_size=c.ffn, num_hidden_layers=c.layers, num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads, head_dim=c.head_dim, max_position_embeddings=c.context, rms_norm_eps=c.norm_eps, tie_word_embeddings=c.tied,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta}, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    model = model.to_empty(device="cpu").float().eval()
    weights = {key: torch.from_numpy(read().copy()) for key, read in checkpoint.tensors.items()}
    missing, surplus = model.load_state_dict(weights, strict=False)
    if surplus or set(missing) - ({"lm_head.weight"} if c.tied else set()):
        raise ValueError(f"{checkpoint.name}: tensors do not fit transformers' {name}: {sorted({*missing, *surplus})[:4]}")
    model.tie_weights()
    rotary = model.model.rotary_emb  # its table is a buffer, not a weight: made anew, since the model was made without memory
    model.model.rotary_emb = type(rotary)(config)
    return model


def generate(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """Greedy tokens by transformers' own generate, exactly `tokens` of them."""
    import torch
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, use_cache=True)
    return out[0, len(prompt):].tolist()


def record(model: Any, checkpoint: Any, prompts: list[list[int]], path: str) -> None:
    """Writes the greedy tokens of every prompt with the gap between the two best logits at each step."""
    import torch
    import transformers
    texts = []
    for (text, chat), prompt in zip(PROMPTS, prompts, strict=True):
        tokens = generate(model, prompt, 64)
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1:-1]
        best = torch.topk(logits, 2).values
        texts.append({"text": text, "chat": chat and checkpoint.chat is not None, "prompt": prompt, "tokens": tokens,
                      "gaps": [round(float(a - b), 5) for a, b in best]})
    document = {"target": checkpoint.name, "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}, float32",
                "date": datetime.date.today().isoformat(), "texts": texts}
    part = Path(path + ".part")
    part.write_text(json.dumps(document) + "\n", encoding="utf-8")
    part.replace(path)


def main(argv: list[str]) -> None:
    """Compares, or records."""
    del argv
    with command.checking():
        from specjax.weights import open_checkpoint
        checkpoint = open_checkpoint(_TARGET.value)
        theirs = transformers_model(checkpoint)
    import jax
    import torch
    import transformers

    from specjax import compare, compile_cache, methods
    from specjax.model import from_checkpoint
    torch.set_num_threads(_THREADS.value)
    with command.checking():
        entry = methods.get(_METHOD.value)
        ours = from_checkpoint(checkpoint)
    prompts = [ours.encode(text, chat=chat and ours.chat is not None) for text, chat in PROMPTS]
    if _RECORD.value:
        record(theirs, checkpoint, prompts, _RECORD.value)
        return
    compile_cache.keep_compiled()
    sides = {"plain": compare.Side(*methods.get("plain").build(ours)), entry.name: compare.Side(*entry.build(ours))}
    settings, rows = compare.Settings(_TOKENS.value, stop=False, repeats=1), []
    say = (lambda *a: None) if _JSON.value else (lambda *a: print(*a, flush=True))
    for number, prompt in enumerate(prompts[:_PROMPTS.value]):
        seconds: dict[str, list[float]] = {name: [] for name in ("transformers", *sides)}
        generate(theirs, prompt, 2)
        for side in sides.values():
            compare.advance(side, compare.begin(ours, side, [prompt], [number], settings), 1)
        for _ in range(_REPEATS.value):
            begun = time.perf_counter()
            generate(theirs, prompt, 1)
            first = time.perf_counter()
            text = generate(theirs, prompt, _TOKENS.value)
            seconds["transformers"].append(time.perf_counter() - first - (first - begun))
            for name, side in sides.items():
                state = compare.begin(ours, side, [prompt], [number], settings)
                begun = time.perf_counter()
                state = compare.advance(side, state, 2**31 - 1)
                # The first token costs a pass here and none there, where the prefill gives it.
                seconds[name].append((time.perf_counter() - begun) * (_TOKENS.value - 1) / _TOKENS.value)
                if name == "plain":
                    mine = state.tokens[0, :_TOKENS.value].tolist()
        same = next((i for i, (a, b) in enumerate(zip(text, mine, strict=True)) if a != b), None)
        speed = {name: (_TOKENS.value - 1) / statistics.median(s) for name, s in seconds.items()}
        rows.append({"prompt": number, "tokens_per_second": speed, "first_difference": same})
        say(f"prompt {number}: " + ", ".join(f"{name} {v:.1f} tokens/s" for name, v in speed.items())
            + ("; texts equal" if same is None else f"; texts part at token {same}"))
    ratio = {name: statistics.fmean(r["tokens_per_second"][name] / r["tokens_per_second"]["transformers"] for r in rows) for name in sides}
    say("over transformers: " + ", ".join(f"{name} {v:.2f}x" for name, v in ratio.items()))
    print(json.dumps({"target": ours.name, "ratio": ratio, "prompts": rows, "new_tokens": _TOKENS.value, "dtype": "float32",
                      "threads": _THREADS.value, "date": datetime.date.today().isoformat(),
                      "versions": {"jax": jax.__version__, "torch": torch.__version__, "transformers": transformers.__version__}}))


if __name__ == "__main__":
    command.run(main)
