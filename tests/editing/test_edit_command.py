"""`python -m experiments.edit` and what it is made of: the request, the growing diff, the file that is replaced whole or not at all."""
import dataclasses
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specjax import decode
from specjax.applications import editing
from specjax.model import Model
from specjax.testing.replay import known_text

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "alpha one\nbeta two\n\ngamma three\ndelta four\nepsilon five\n"
TARGET = "alpha one\nbeta 2\n\nnew line\ngamma three\nepsilon five\n"
LIMIT = 190


def letters() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def editor(answer: str, instruction: str, fenced: bool, source: str = SOURCE, end: bool = True) -> Model:
    """A model that answers one request with a known text, and ends it."""
    tokenizer = letters()
    model = Model(known_text(257), {}, None, "known", tokenizer, None, (256,))
    ids = [*editing.prompt_ids(model, instruction, source, fenced), *tokenizer.encode(answer).ids, *([256] if end else [])]
    text = np.zeros((1, 2048), np.int32)
    text[0, :len(ids)] = ids
    return dataclasses.replace(model, params={"text": jnp.asarray(text)})


@pytest.fixture
def cli(capsys, monkeypatch):
    """Runs the command in this process with a given model: (exit code, stdout, stderr)."""
    command = importlib.import_module("experiments.command")
    before = set(flags.FLAGS)
    module = importlib.import_module("experiments.edit")
    own = set(flags.FLAGS) - before

    def run(model: Model | None, *args: str) -> tuple[int, str, str]:
        import specjax
        from specjax import compile_cache
        monkeypatch.setattr(specjax, "load", lambda name: model)
        monkeypatch.setattr(compile_cache, "keep_compiled", lambda: None)
        with flagsaver.flagsaver():
            flags.FLAGS.unparse_flags()
            with pytest.raises(SystemExit) as ended:
                command.run(module.main, ["edit", *args])
            out = capsys.readouterr()
            return int(ended.value.code or 0), out.out, out.err

    yield run
    for name in own:
        delattr(flags.FLAGS, name)
    sys.modules.pop("experiments.edit")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(SOURCE)
    return path


def run(cli, path, answer=TARGET, *args, end=True, fenced=False):
    return cli(editor(answer, "change it", fenced, end=end), f"--file={path}", "--instruction=change it", f"--max_new_tokens={LIMIT}", *args)


def test_the_diff_of_an_edit(cli, file):
    code, out, err = run(cli, file)
    assert code == 0 and err == ""
    assert out.splitlines()[:8] == ["  alpha one", "+ beta 2", "- beta two", "  ", "+ new line", "  gamma three", "- delta four", "  epsilon five"]
    assert "not written" in out and file.read_text() == SOURCE
    assert os.listdir(file.parent) == ["notes.txt"]
    assert "\x1b" not in out


def test_write_replaces_and_keeps_a_backup_each_time(cli, file):
    file.chmod(0o640)
    code, out, _ = run(cli, file, TARGET, "--write", "--json")
    record = json.loads(out)
    assert code == 0 and file.read_text() == TARGET == record["text"] and (file.stat().st_mode & 0o777) == 0o640
    assert record["written"] and Path(record["backup"]).read_text() == SOURCE
    copied = record["drafted"]["copied"]
    assert copied > 0.5 * record["tokens"] and sum(record["drafted"].values()) + record["own"] == record["tokens"]
    assert record["tau"] == pytest.approx(record["tokens"] / record["rounds"]) and record["tau"] > 2.5 and record["complete"]
    file.write_text(SOURCE)
    again = json.loads(run(cli, file, TARGET, "--write", "--json")[1])
    assert again["backup"] != record["backup"] and len(os.listdir(file.parent)) == 3


def test_an_answer_that_does_not_end_is_never_written(cli, file):
    code, out, _ = run(cli, file, TARGET * 8, "--write", end=False)
    assert code == 1 and "not complete" in out and file.read_text() == SOURCE and os.listdir(file.parent) == ["notes.txt"]


def test_an_unchanged_answer_writes_nothing(cli, file):
    code, out, _ = run(cli, file, SOURCE, "--write")
    assert code == 0 and "nothing changed" in out and os.listdir(file.parent) == ["notes.txt"]


def test_a_fenced_answer_ends_with_its_fence(cli, tmp_path):
    path = tmp_path / "stock.py"
    path.write_text(SOURCE)
    code, out, _ = run(cli, path, TARGET + "```\nI changed it.", "--write", "--json", fenced=True)
    assert code == 0 and path.read_text() == TARGET == json.loads(out)["text"]


def test_a_link_is_followed_and_a_failed_write_changes_nothing(file, monkeypatch):
    link = file.with_name("link.txt")
    link.symlink_to(file)
    editing.write_back(link, "new\n")
    assert link.is_symlink() and file.read_text() == "new\n"
    before = sorted(os.listdir(file.parent))
    monkeypatch.setattr(editing.os, "fsync", lambda handle: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        editing.write_back(file, "other\n")
    assert file.read_text() == "new\n" and sorted(os.listdir(file.parent)) == before


@pytest.mark.parametrize(("content", "said"), [(b"", "is empty"), (b" \n\n", "is empty"), (b"ab\0cd", "binary"), (b"ab\xff\xfe", "not UTF-8")])
def test_bad_files_are_one_line_and_exit_code_2(cli, tmp_path, monkeypatch, content, said):
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    monkeypatch.setattr(decode, "begin", lambda *a, **k: pytest.fail("something was compiled"))
    code, out, err = cli(None, f"--file={path}", "--instruction=do it", "--write")
    assert code == 2 and out == "" and err.count("\n") == 1 and said in err and path.read_bytes() == content


def test_other_bad_input(cli, file, monkeypatch):
    monkeypatch.setattr(decode, "begin", lambda *a, **k: pytest.fail("something was compiled"))
    model = editor(TARGET, "change it", False)
    short = dataclasses.replace(model, target=model.target._replace(context=100))
    for who, args, said in ((model, ["--instruction=x"], "--file"), (model, [f"--file={file}"], "--instruction"),
                            (model, [f"--file={file}", "--instruction= "], "--instruction"),
                            (model, [f"--file={file}.no", "--instruction=x"], "No such file"),
                            (model, [f"--file={file.parent}", "--instruction=x"], "directory"),
                            (model, [f"--file={file}", "--instruction=x", "--method=no"], "unknown method"),
                            (model, [f"--file={file}", "--instruction=x", "--temperature=-1"], "temperature is -1"),
                            (short, [f"--file={file}", "--instruction=x"], "context of 100")):
        code, out, err = cli(who, *args)
        assert code == 2 and out == "" and err.startswith("error:") and err.count("\n") == 1 and said in err, err
    assert file.read_text() == SOURCE


def test_a_mistyped_flag_is_answered_at_once():
    done = subprocess.run([sys.executable, "-m", "experiments.edit", "--fil=x"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error:") and done.stderr.count("\n") == 1


def test_the_diff_holds_both_texts():
    """Unchanged and gone lines are the source, unchanged and new ones the target, whatever the texts."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, b = ([f"{'line ' * int(k % 3)}{k}\n" for k in rng.integers(0, 6, rng.integers(0, 12))] for _ in range(2))
        diff = editing.LineDiff(a)
        pairs = [p for line in b for p in diff.push(line)] + diff.end()
        assert [x for m, x in pairs if m != "+"] == a and [x for m, x in pairs if m != "-"] == b


def test_line_ends_are_those_of_the_source():
    assert editing.like("a\nb", "x\r\ny\r\n") == "a\r\nb\r\n" and editing.like("a\nb\n\n", "x") == "a\nb"
