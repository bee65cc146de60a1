"""Stores on disk: what was written is read, and whatever else is refused with one clear error."""
import json
import struct

import numpy as np
import pytest

from specjax.retrieval import store

ARRAYS = {"tokens": np.arange(70, dtype=np.int32), "order": np.arange(70, dtype=np.int32)[::-1], "none": np.zeros((0, 4), np.float32)}


@pytest.fixture
def path(tmp_path):
    store.write(tmp_path / "a.store", "tokens", ARRAYS, fingerprint="f" * 64, vocab=100, source="a remark")
    return tmp_path / "a.store"


def test_what_was_written_is_read(path):
    s = store.read(path, kind="tokens", fingerprint="f" * 64)
    assert (s.kind, s.vocab, s.source) == ("tokens", 100, "a remark") and list(s.arrays) == sorted(ARRAYS)
    for name, x in ARRAYS.items():
        np.testing.assert_array_equal(s.arrays[name], x)
        assert s.arrays[name].dtype == x.dtype
    assert isinstance(s.arrays["tokens"], np.memmap) and not s.arrays["tokens"].flags.writeable
    assert [p.name for p in path.parent.iterdir()] == ["a.store"]


@pytest.mark.parametrize(("at", "said"), [(0, "no datastore"), (8, "version"), (30, "header does not fit"), (-70, "contents do not fit")])
def test_a_changed_byte_is_noticed(path, at, said):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=said):
        store.read(path, kind="tokens")


@pytest.mark.parametrize("size", [0, 10, 40, -1])
def test_a_file_cut_short_is_noticed(path, size):
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="no datastore|damaged"):
        store.read(path, kind="tokens")


def test_a_foreign_store_is_refused(path):
    with pytest.raises(ValueError, match="another tokenizer"):
        store.read(path, kind="tokens", fingerprint="0" * 64)
    with pytest.raises(ValueError, match="of kind 'tokens'; one of kind 'dense'"):
        store.read(path, kind="dense")
    with pytest.raises(ValueError, match="kind is 'x'"):
        store.write(path, "x", {}, fingerprint="", vocab=1)
    later = path.read_bytes()
    path.write_bytes(later[:8] + struct.pack("<I", 2) + later[12:])
    with pytest.raises(ValueError, match="version 2"):
        store.read(path, kind="tokens")


def test_a_failed_write_leaves_the_old_store(path, monkeypatch):
    before = path.read_bytes()

    def broken(handle):
        raise OSError("no space left")

    monkeypatch.setattr(store.os, "fsync", broken)
    with pytest.raises(OSError, match="no space"):
        store.write(path, "tokens", ARRAYS, fingerprint="", vocab=1)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["a.store"]


def test_the_header_is_json_behind_the_magic(path):
    data = path.read_bytes()
    length, = struct.unpack("<I", data[12:16])
    assert json.loads(data[16:16 + length])["arrays"]["order"]["at"] % 64 == 0
