"""Who may import whom. The table is DESIGN's, and the README repeats it for contributors."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = {"torch", "tensorflow", "keras", "chainer", "jax", "flax", "orbax", "cupy"}
FIRST_PARTY = {"harness", "workloads", "adapters"}

# folder or file -> (first-party prefixes it may import, third-party packages it may import; None: any but frameworks)
RULES: dict[str, tuple[set[str], set[str] | None]] = {
    "harness/__init__.py": (set(), set()),
    "harness/case.py": (set(), set()),
    "harness/record.py": (set(), set()),
    "harness/marks.py": (set(), set()),
    "harness/reading.py": ({"harness.record"}, {"pydantic"}),
    "harness/cli.py": (
        {"harness.driver", "harness.analysis", "workloads"},
        {"typer", "rich"},
    ),
    "harness/driver": (
        {"harness", "harness.case", "harness.record", "harness.marks", "harness.reading", "harness.driver", "workloads"}
        | {"harness.worker.output", "harness.worker.folders"},
        None,
    ),
    "harness/worker": (
        {"harness.case", "harness.record", "harness.marks", "harness.worker", "workloads"} | {"adapters.base", "adapters.directio"},
        {"numpy", "mpi4py"},
    ),
    "harness/analysis": (
        {"harness.record", "harness.case", "harness.reading", "harness.analysis"},
        {"pandas", "numpy", "scipy", "matplotlib", "jinja2"},
    ),
    "workloads": ({"workloads"}, {"numpy"}),
    "adapters/__init__.py": (set(), set()),
    "adapters/base.py": ({"workloads"}, set()),
    "adapters/directio.py": (set(), set()),
}
OWN_LIBRARIES = {
    "raw": {"numpy", "cupy"},
    "pytorch": {"torch", "numpy", "safetensors"},
}


def rule_for(file: Path) -> tuple[set[str], set[str] | None]:
    relative = file.relative_to(ROOT)
    parts = [relative.as_posix(), *(parent.as_posix() for parent in relative.parents)]
    if relative.parts[0] == "adapters" and len(relative.parts) > 2:
        name = relative.parts[1]
        return {"adapters.base", "adapters.directio", f"adapters.{name}", "workloads"}, OWN_LIBRARIES[name]
    return next(RULES[part] for part in parts if part in RULES)


def imported(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((node.lineno, name) for name in names)


def violations(file: Path) -> list[str]:
    allowed, libraries = rule_for(file)
    found = []
    for line, name in imported(file):
        top = name.split(".")[0]
        if top in FIRST_PARTY:
            good = any(
                name == prefix or name.startswith(f"{prefix}.") and prefix not in FIRST_PARTY - {"workloads"} for prefix in allowed
            )
            good = good or (
                top == "harness" and "harness" in allowed and name.count(".") == 1 and name.split(".")[1].startswith("__")
            )
        elif top in sys.stdlib_module_names:
            good = True
        else:
            good = top in libraries if libraries is not None else top not in FRAMEWORKS
        if not good:
            found.append(f"{file.relative_to(ROOT)}:{line} imports {name}")
    return found


@pytest.mark.parametrize("folder", ["harness", "workloads", "adapters"])
def test_every_import_is_one_that_its_layer_may_make(folder: str) -> None:
    assert [text for file in sorted((ROOT / folder).rglob("*.py")) for text in violations(file)] == []


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("harness/driver/x.py", "import torch"),
        ("harness/worker/x.py", "import psutil"),
        ("harness/worker/x.py", "import adapters.raw.files"),
        ("harness/analysis/x.py", "from harness.driver import store"),
        ("harness/case.py", "import numpy"),
        ("workloads/x.py", "from harness import case"),
        ("adapters/raw/x.py", "import harness.record"),
        ("adapters/raw/x.py", "from adapters.pytorch import framework"),
    ],
)
def test_the_rules_refuse_what_they_are_for(place: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: code)
    assert violations(ROOT / place)
