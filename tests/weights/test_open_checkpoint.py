"""One door: names, files, folders, hub ids; and a clear word where there is nothing behind it."""
from __future__ import annotations

import subprocess
import sys
import types

import pytest
from tiny_checkpoints import TINY, random_tensors

from specjax.weights import CheckpointError, check_names, expected_names, open_checkpoint


def test_files_and_folders(write_gguf, write_folder):
    assert open_checkpoint(str(write_gguf(TINY, random_tensors(TINY)))).name == "tiny"
    assert open_checkpoint(write_folder(TINY, random_tensors(TINY))).name == "tiny"  # a Path will do


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(CheckpointError, match=r"'smollm' is no checkpoint; known names: smollm2-135m-instruct;.*gguf"):
        open_checkpoint("smollm")
    with pytest.raises(CheckpointError, match=r"nowhere\.gguf: no such file"):
        open_checkpoint("nowhere.gguf")


def test_a_folder_wins_over_a_hub_id_of_the_same_spelling(write_folder, monkeypatch, tmp_path):
    write_folder(TINY, random_tensors(TINY)).rename(tmp_path / "name")
    monkeypatch.chdir(tmp_path.parent)
    assert open_checkpoint(f"{tmp_path.name}/name").config == TINY


def test_hub_ids(write_folder, monkeypatch):
    folder = write_folder(TINY, random_tensors(TINY))
    asked = []

    def snapshot_download(repository, allow_patterns):
        asked.append((repository, allow_patterns))
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    assert open_checkpoint("some/model").name == "some/model"
    assert asked[0][0] == "some/model"
    assert "model.safetensors" in asked[0][1]

    def fail(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=fail))
    with pytest.raises(CheckpointError, match=r"'some/model' is no folder here, and.*OSError: no route to host"):
        open_checkpoint("some/model")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"pip install huggingface_hub"):
        open_checkpoint("some/model")


def test_W10_check_names_names_what_is_wrong():
    shapes = expected_names(TINY)
    check_names(TINY, shapes)
    with pytest.raises(CheckpointError, match=r"missing tensor.*: lm_head\.weight$"):
        check_names(TINY, {name: shape for name, shape in shapes.items() if name != "lm_head.weight"})
    with pytest.raises(CheckpointError, match=r"surplus tensor.*: w0, w1, w2, w3 and 2 more"):
        check_names(TINY, shapes | {f"w{i}": (1,) for i in range(6)})


def test_importing_the_package_is_cheap():
    heavy = {"gguf", "tokenizers", "safetensors", "jinja2", "huggingface_hub"}
    program = f"import sys, specjax.weights; print({heavy} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
