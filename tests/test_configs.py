"""Every method has a config, every config names what exists, and a command takes one."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specjax import config, methods

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(p for p in (ROOT / "configs").glob("*.py") if p.name != "__init__.py")


def test_every_method_has_a_config_of_its_name():
    assert {p.stem for p in FILES} >= set(methods.names())


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_config_names_a_method_that_exists(path):
    fields = config.read(str(path))
    assert methods.get(fields["method"]).name == path.stem


def run(*flags: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "experiments.decode", *flags], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("text, message", [
    ("def get_config():\n    return {'method': 'plain'}\n", "frozen dataclass"), ("", "get_config"),
    ("import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass A:\n    nothing: int = 1\ndef get_config():\n    return A()\n", "nothing"),
    ("from specjax.config import Decode\ndef get_config():\n    return Decode('no_such')\n", "no_such"),
    ("from specjax.config import Decode\ndef get_config():\n    return Decode('plain', max_new_tokens=0)\n", "max_new_tokens is 0"),
])
def test_a_bad_config_is_one_clear_error(tmp_path, text, message):
    (tmp_path / "c.py").write_text(text)
    done = run(f"--config={tmp_path}/c.py")
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_flag_that_is_given_wins(tmp_path):
    (tmp_path / "c.py").write_text("from specjax.config import Decode\ndef get_config():\n    return Decode('no_such')\n")
    done = run(f"--config={tmp_path}/c.py", "--method=other_such")
    assert done.returncode == 2 and "other_such" in done.stderr


def test_a_config_that_is_not_there():
    done = run("--config=nowhere.py")
    assert done.returncode == 2 and "nowhere.py" in done.stderr
