"""The import direction of the packages, from their source; importing specjax starts no backend; the tree is clean."""
from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Lowest first; a module may import modules of lower layers, and of its own where the layer is marked with a "+".
LAYERS = (
    ("kernels_pallas+",),
    ("specjax.types", "specjax.prompts", "specjax.grammar", "specjax.text_stream", "specjax.data+"),
    ("specjax.tree", "specjax.sampling", "specjax.noise", "specjax.cache", "specjax.truncate", "specjax.settings", "specjax.warp",
     "specjax.sharding", "specjax.measure", "+"),
    ("specjax.attention",),
    ("specjax.targets+",),
    ("specjax.weights+",),
    ("specjax.round",),
    ("specjax.statistics", "specjax.model", "specjax.compile_cache"),
    ("specjax.expand+", "specjax.verifiers+", "specjax.controllers+"),
    ("specjax.retrieval+",),
    ("specjax.drafters+",),
    ("specjax.requests",),
    ("specjax.decode",),
    ("specjax.pass_cost", "specjax.schedules+", "specjax.training+", "specjax.serving+"),
    ("specjax.applications+",),
    ("specjax.methods", "specjax.config"),
    ("specjax.api",),
    ("specjax",),
    ("specjax.compare", "specjax.cost_split", "specjax.console", "specjax.report", "+"),
    ("specjax.testing+",),
)
OUTSIDE = ("experiments", "configs", "notebooks", "tests")


def layer_of(module: str) -> tuple[int, bool] | None:
    """(number of the layer, whether its modules may import each other), by the longest name that fits."""
    best = None
    for number, names in enumerate(LAYERS):
        for name in names:
            stem = name.rstrip("+")
            if stem and (module == stem or (name.endswith("+") and module.startswith(stem + "."))):
                if best is None or len(stem) > len(best[0]):
                    best = (stem, number, name.endswith("+") or "+" in names)
    return None if best is None else best[1:]


def imports_of(source: str, known: set[str]) -> set[str]:
    """Modules of this repository that a source imports, wherever in the file, except for type checking only."""
    tree, found = ast.parse(source), set()
    skipped = {id(n) for block in ast.walk(tree) if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
               for part in block.body for n in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module or "")
    return {name for name in found if name.split(".")[0] in ("specjax", "kernels_pallas", *OUTSIDE)}


def modules() -> dict[str, str]:
    """Dotted name -> source of every module of the library."""
    files = [f for package in ("specjax", "kernels_pallas") for f in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f.read_text(encoding="utf-8") for f in files}


def faults(sources: dict[str, str]) -> list[str]:
    """What breaks the direction."""
    found = []
    for name, source in sources.items():
        mine = layer_of(name)
        if mine is None:
            found.append(f"{name} has no layer: give it one in tests/test_imports.py")
            continue
        for other in sorted(imports_of(source, set(sources))):
            theirs = layer_of(other)
            if other.split(".")[0] in OUTSIDE:
                found.append(f"{name} imports {other}, which is outside the library")
            elif theirs is None or other == name:
                continue
            elif theirs[0] > mine[0] or (theirs[0] == mine[0] and not mine[1]):
                found.append(f"{name} imports {other}, which is not below it")
    return found


def test_the_import_direction_holds():
    assert not faults(modules())


def test_every_kind_of_wrong_import_is_seen():
    low = {"specjax.tree": "", "specjax.round": "", "specjax.drafters.a": "", "specjax.verifiers.b": ""}
    wrong = {"specjax.tree": "from specjax import round as rounds", "specjax.round": "def f():\n    from specjax.drafters import a",
             "specjax.verifiers.b": "import specjax.drafters.a", "specjax.drafters.a": "from experiments import decode"}
    for name, source in wrong.items():
        assert len(faults(low | {name: source})) == 1, name
    assert faults({"specjax.unheard_of": ""})
    assert not faults(low | {"specjax.drafters.a": "from specjax import round, tree\nfrom specjax.verifiers import b"})
    assert not faults(low | {"specjax.tree": "if TYPE_CHECKING:\n    from specjax import round"})


def test_importing_specjax_starts_no_backend():
    code = "import specjax, jax._src.xla_bridge as b; print(sorted(b._backends))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(shutil.which("ruff") is None, reason="ruff is not installed")
def test_ruff_is_clean():
    done = subprocess.run(["ruff", "check", "--no-cache", "."], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_is_too_long():
    long = {str(f.relative_to(ROOT)): n for f in (ROOT / "specjax").rglob("*.py") if (n := len(f.read_text(encoding="utf-8").splitlines())) > 400}
    assert not long, "one subject a file: split these"
