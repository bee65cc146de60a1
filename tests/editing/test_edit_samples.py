"""The bundled edits are what they say, and the loaders refuse what they cannot read."""
import json

import pytest

from specjax.data import edit_samples
from specjax.data.edit_samples import FORMS, KINDS


def test_the_bundled_set():
    samples = edit_samples.bundled()
    assert len(samples) >= 60
    assert len({s.id for s in samples}) == len({s.source for s in samples}) == len(samples)
    for s in samples:
        assert s.source.strip() and s.target.strip() and s.instruction.strip() and s.source != s.target, s.id
        assert s.kind in KINDS and s.form in FORMS, s.id
        assert 5 <= len(s.source.splitlines()) <= 60, s.id
        assert edit_samples.change(s.source.splitlines(), s.target.splitlines()).pieces > 0, s.id
    plain = [s for s in samples if s.family == "plain"]
    assert {(s.form, s.kind) for s in plain} == {(f, k) for f in FORMS for k in KINDS}
    families = {s.family for s in samples}
    assert families == {"plain", "patent", "news", "claim", "arxiv", "coedit", "wiki", "editeval"}
    assert all(sum(s.family == f for s in samples) >= 4 for f in families)
    assert all(s.context for s in samples if s.family == "wiki")


def test_the_samples_are_not_variants_of_one_another():
    """No two share a third of their lines."""
    lines = [(s.id, set(s.source.splitlines()) - {""}) for s in edit_samples.bundled() if s.family not in ("claim", "coedit")]
    for i, (a, x) in enumerate(lines):
        for b, y in lines[:i]:
            assert len({t for t in x & y if len(t.strip()) > 8}) * 3 < min(len(x), len(y)), (a, b)


def test_shares_and_operations_of_a_change():
    c = edit_samples.change([1, 2, 3, 4, 5], [1, 9, 3, 4, 5, 6])
    assert c.pieces == 2 and c.copied == 4 / 6
    assert [o[0] for o in c.operations] == ["replace", "insert"]


def write(folder, *lines):
    path = folder / "set.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def test_other_layouts_are_read(tmp_path):
    can = {"full_name": "1_x", "before": "a", "after": "b", "instruction_descriptive": "do", "taxonomy": {"change_kind": "corrective"}}
    assert edit_samples.read_canitedit(write(tmp_path, can))[0].kind == "corrective"
    co = {"_id": 3, "task": "gec", "src": "Fix: a: b", "tgt": "c"}
    got = edit_samples.read_coedit(write(tmp_path, co))[0]
    assert (got.id, got.instruction, got.source, got.target) == ("3", "Fix", "a: b", "c")
    ar = {"0": {"sentence-1": "a", "sentence-2": "b"}, "1": {"sentence-1": "a", "sentence-2": "a"}}
    assert [s.target for s in edit_samples.read_arxivedits(write(tmp_path, ar))] == ["b"]


@pytest.mark.parametrize(("lines", "said"), [
    (("{",), "line 1: not an edit sample"), (({"id": "x"},), "line 1: not an edit sample"), ((), "holds no edit sample"),
    (({"id": "x", "family": "", "kind": "", "form": "", "instruction": "", "source": "a", "target": ""},), "must be texts"),
    (([1],), "line 1: not an edit sample")])
def test_broken_files_are_named(tmp_path, lines, said):
    with pytest.raises(ValueError, match=said):
        edit_samples.read(write(tmp_path, *lines))


def test_another_layout_is_no_arxivedits(tmp_path):
    with pytest.raises(ValueError, match="not the layout"):
        edit_samples.read_arxivedits(write(tmp_path, [1, 2]))
