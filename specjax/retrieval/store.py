"""Stores on disk: a corpus of tokens with its index, written whole or not at all, memory-mapped, and refused when it is not what it says.

Layout: 8 bytes of magic, a version (u32) and the length of the header (u32), the header as JSON, padding to 64 bytes, then the arrays one
after the other, each at a multiple of 64 bytes. The header names the tokenizer's fingerprint, each array's dtype, shape and place, and the
sha256 of everything behind the header; 32 bytes behind the header hold the sha256 of the header itself.
"""
from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MAGIC, VERSION, ALIGN = b"SPJXSTOR", 1, 64
KINDS = ("tokens", "dense")


class Store(NamedTuple):
    """An open store: its `kind`, the `fingerprint` of its tokenizer, the `vocab` of its ids, its `arrays`, what was said about its `source`."""

    kind: str
    fingerprint: str
    vocab: int
    arrays: dict[str, np.ndarray]
    source: str


def write(path: str | Path, kind: str, arrays: Mapping[str, np.ndarray], *, fingerprint: str, vocab: int, source: str = "") -> None:
    """Writes a store to a temporary name, then renames it.

    Args:
      path: of the file. kind: one of KINDS. arrays: by name. fingerprint: of the tokenizer. vocab: ids are below it. source: a remark.

    Raises:
      ValueError: an unknown kind. OSError: it cannot be written; nothing is left behind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: known are {', '.join(KINDS)}")
    path, described, at, digest = Path(path), {}, 0, hashlib.sha256()
    pieces = []
    for name, x in arrays.items():
        x = np.ascontiguousarray(x)
        described[name] = {"dtype": x.dtype.str, "shape": list(x.shape), "at": at}
        gap = -x.nbytes % ALIGN
        pieces.append((x, gap))
        digest.update(x.data if x.size else b"")
        digest.update(bytes(gap))
        at += x.nbytes + gap
    header = json.dumps({"kind": kind, "fingerprint": fingerprint, "vocab": int(vocab), "source": source, "arrays": described, "bytes": at,
                         "sha256": digest.hexdigest()}, sort_keys=True).encode()
    head = MAGIC + struct.pack("<II", VERSION, len(header)) + header + hashlib.sha256(header).digest()
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(head + bytes(-len(head) % ALIGN))
            for x, gap in pieces:
                stream.write(x.data if x.size else b"")
                stream.write(bytes(gap))
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def read(path: str | Path, *, kind: str, fingerprint: str | None = None, verify: bool = True) -> Store:
    """Opens a store, its arrays mapped from the file.

    Args:
      path: of the file. kind: that it must be of. fingerprint: of the tokenizer at hand, None = any. verify: read everything once and compare
        the checksum.

    Returns:
      A Store.

    Raises:
      ValueError: no store, another version, cut short, changed, of another kind, or of another tokenizer. OSError: it cannot be read.
    """
    path = Path(path)
    with open(path, "rb") as stream:
        start = stream.read(16)
        if len(start) < 16 or start[:8] != MAGIC:
            raise ValueError(f"{path} is no datastore (python -m experiments.build_datastore makes one)")
        version, length = struct.unpack("<II", start[8:])
        if version != VERSION:
            raise ValueError(f"{path} is a datastore of version {version}; this program reads version {VERSION}: build it again")
        header, check = stream.read(length), stream.read(32)
        if len(header) < length or hashlib.sha256(header).digest() != check:
            raise ValueError(f"{path} is damaged: its header does not fit its checksum")
        found: dict[str, Any] = json.loads(header)
        begin = 16 + length + 32
        begin += -begin % ALIGN
        size = os.fstat(stream.fileno()).st_size
        if size != begin + found["bytes"]:
            raise ValueError(f"{path} is damaged: {size} bytes, and its header speaks of {begin + found['bytes']}")
        if found["kind"] != kind:
            raise ValueError(f"{path} is a datastore of kind {found['kind']!r}; one of kind {kind!r} is needed")
        if fingerprint is not None and found["fingerprint"] != fingerprint:
            raise ValueError(f"{path} was built with another tokenizer (fingerprint {found['fingerprint'][:12] or 'none'}, "
                             f"here {fingerprint[:12] or 'none'}): its ids mean other words")
        if verify:
            stream.seek(begin)
            digest = hashlib.sha256()
            while block := stream.read(1 << 22):
                digest.update(block)
            if digest.hexdigest() != found["sha256"]:
                raise ValueError(f"{path} is damaged: its contents do not fit their checksum")
    arrays = {name: np.memmap(path, np.dtype(a["dtype"]), "r", begin + a["at"], tuple(a["shape"])) if np.prod(a["shape"]) else
              np.zeros(a["shape"], np.dtype(a["dtype"])) for name, a in found["arrays"].items()}
    return Store(found["kind"], found["fingerprint"], found["vocab"], arrays, found["source"])
