"""Nobody imports what the table does not allow. docs/architecture.md shows it to contributors."""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FIRST_PARTY = {"harness", "workloads", "adapters"}


def declared_frameworks() -> dict[str, dict[str, Any]]:
    """Return the table [framework] of every adapter.toml, by the name of its folder."""
    files = (ROOT / "adapters").glob("*/adapter.toml")
    return {file.parent.name: tomllib.loads(file.read_text())["framework"] for file in files}


def framework_packages() -> set[str]:
    """Return the packages that only a framework's environment has."""
    of_frameworks: set[str] = set()
    of_floors: set[str] = set()
    for table in DECLARED.values():
        packages = of_floors if table.get("floor") else of_frameworks
        packages.update(table["packages"])
    return of_frameworks - of_floors


def shared_folders() -> set[str]:
    """Return the names of the folders under adapters/ that belong to no framework."""
    folders = {file.parent.name for file in (ROOT / "adapters").glob("*/__init__.py")}
    return folders - set(DECLARED)


DECLARED = declared_frameworks()
FRAMEWORKS = framework_packages()
SHARED = shared_folders()


@dataclass(frozen=True)
class Rule:
    """The imports of a layer: of this project by prefix, of third parties by name.

    None instead of libraries permits everything but frameworks.
    """

    first_party: frozenset[str] = frozenset()
    libraries: frozenset[str] | None = frozenset()
    own_frameworks: frozenset[str] = frozenset()

    def permits(self, name: str) -> bool:
        top = name.split(".")[0]
        # the bare "harness" is the package's version, not everything below it
        if top in FIRST_PARTY:
            return name in self.first_party or any(
                name.startswith(f"{prefix}.") for prefix in self.first_party - {"harness"}
            )
        if top in sys.stdlib_module_names:
            return True
        return (
            top not in FRAMEWORKS - self.own_frameworks
            if self.libraries is None
            else top in self.libraries
        )


def rule(first_party: str = "", libraries: str | None = "") -> Rule:
    return Rule(
        frozenset(first_party.split()), None if libraries is None else frozenset(libraries.split())
    )


WIRE = "harness.wire"
RULES = {  # file or folder -> rule; the nearest one holds
    "harness/__init__.py": rule(),
    # One file that a training script of somebody else may import.
    "harness/surviving.py": rule("", "mpi4py"),
    "harness/wire": rule("harness.wire"),
    "harness/run": rule("harness.wire harness.run harness.experiments", "pydantic"),
    "harness/experiments/__init__.py": rule("harness.wire harness.experiments"),
    "harness/cli": rule(
        # The command of one experiment asks for that experiment's part by name.
        "harness.cli harness.driver harness.analysis harness.run harness.wire "
        "harness.experiments.part harness.intervals workloads",
        "typer rich",
    ),
    "harness/durability": rule("harness.wire harness.durability"),
    # A program of its own that runs in the harness's environment, around a worker.
    "harness/durability/gate": rule("harness.wire harness.durability", "psutil pyseccomp"),
    "harness/driver": rule(
        "harness harness.wire harness.run harness.durability harness.experiments harness.driver "
        "workloads",
        None,
    ),
    # One file of the worker finds the experiments, so that no other depends on any of them.
    "harness/worker/__main__.py": rule(
        "harness.wire harness.worker harness.experiments workloads adapters.base"
    ),
    "harness/worker": rule(
        "harness.wire harness.worker workloads adapters.base adapters.shared.directio "
        "adapters.shared.cuda_driver",
        "numpy mpi4py",
    ),
    # It compares by what columns declare, so that a new experiment needs no change here.
    # A training script may import it, so it needs nothing else of the project.
    "harness/intervals": rule("harness.intervals", "numpy scipy"),
    "harness/analysis/comparison": rule(
        "harness.wire harness.run harness.analysis", "pandas numpy"
    ),
    "harness/analysis": rule(
        "harness.wire harness.run harness.analysis harness.experiments harness.intervals",
        "pandas numpy scipy matplotlib PIL jinja2",
    ),
    "harness/docs": rule(
        "harness.docs harness.cli harness.driver harness.analysis harness.experiments harness.run "
        "harness.wire harness.intervals workloads",
        "typer pandas matplotlib PIL",
    ),
    "notebooks": rule("harness.analysis harness.intervals", "pandas"),
    "workloads": rule("workloads", "numpy"),
    "adapters/__init__.py": rule(),
    "adapters/base.py": rule("workloads"),
    "adapters/shared": rule("adapters.base adapters.shared workloads", "numpy h5py"),
    "adapters/deepfreeze": rule(
        "adapters.base adapters.shared adapters.deepfreeze workloads",
        "numpy xxhash mpi4py",
    ),
    "adapters/deepfreeze/cupy_stream.py": rule("adapters.deepfreeze", "cupy"),
}
EXPERIMENT_RULES = {  # a file of an experiment's folder -> rule
    "__init__.py": rule(f"{WIRE} harness.experiments"),
    # An experiment may share words with the records of another one.
    "records.py": rule(f"{WIRE} harness.experiments"),
    "worker.py": rule(
        "harness.wire harness.worker harness.durability harness.experiments harness.surviving "
        "workloads adapters.base",
        "numpy mpi4py",
    ),
    # An experiment may predict what it is going to measure.
    "driver.py": rule(
        "harness.wire harness.run harness.durability harness.experiments harness.intervals",
        "psutil numpy",
    ),
    "struck.py": rule("harness.wire harness.run harness.durability harness.experiments"),
    "rows.py": rule(
        "harness.wire harness.run harness.analysis harness.experiments", "pandas numpy scipy"
    ),
    "sentences.py": rule("harness.wire harness.analysis harness.experiments"),
    "figure.py": rule(
        "harness.wire harness.run harness.analysis harness.experiments", "matplotlib numpy"
    ),
}


def part_of(file: Path) -> str:
    """Return the part of its experiment that a file is, or helps.

    A helper of a picture is named so. Another one helps the worker or else the driver where that
    imports it, perhaps through other helpers. It helps the rows where neither does.
    """
    if file.name in EXPERIMENT_RULES:
        return file.name
    if file.name.endswith("_figure.py"):
        return "figure.py"
    for part in ("worker.py", "driver.py"):
        if file in helpers_of(file.parent / part):
            return part
    return "rows.py"


def helpers_of(part: Path) -> list[Path]:
    """Return the files of an experiment that a part imports, perhaps through others of them."""
    helpers = [part] if part.exists() else []
    prefix = f"harness.experiments.{part.parent.name}."
    for helper in helpers:
        names = {name.removeprefix(prefix).split(".")[0] for _, name in imported(helper)}
        found = [part.parent / f"{name}.py" for name in sorted(names)]
        helpers += [each for each in found if each.exists() and each not in helpers]
    return helpers


def rule_for(file: Path) -> Rule:
    relative = file.relative_to(ROOT)
    if relative.parts[:2] == ("harness", "experiments") and len(relative.parts) == 4:
        return EXPERIMENT_RULES[part_of(file)]
    if (
        relative.parts[0] == "adapters"
        and len(relative.parts) > 2
        and relative.parts[1] not in SHARED
    ):
        return adapter_rule(relative.parts[1])
    parts = [relative.as_posix(), *(parent.as_posix() for parent in relative.parents)]
    return next(RULES[part] for part in parts if part in RULES)


def adapter_rule(name: str) -> Rule:
    """Return the rule of a framework's folder: any library but another framework's."""
    declared = DECLARED[name]["packages"]
    shared = {f"adapters.{folder}" for folder in SHARED}
    first_party = {"adapters.base", f"adapters.{name}", "workloads", *shared}
    return Rule(frozenset(first_party), None, frozenset(declared))


def code_of(file: Path) -> str:
    """A module's text, or what a notebook's cells of code say together."""
    if file.suffix != ".ipynb":
        return file.read_text()
    return "\n".join(
        "".join(cell["source"])
        for cell in json.loads(file.read_text())["cells"]
        if cell["cell_type"] == "code"
    )


def imported(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(code_of(file))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((node.lineno, name) for name in names)


def sources(folder: str) -> list[Path]:
    found = sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".ipynb"))
    assert found
    return found


def violations(file: Path) -> list[str]:
    holds = rule_for(file)
    return [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for line, name in imported(file)
        if not holds.permits(name)
    ]


@pytest.mark.parametrize("folder", ["harness", "workloads", "adapters", "notebooks"])
def test_every_import_is_one_that_its_layer_may_make(folder: str) -> None:
    assert [text for file in sources(folder) for text in violations(file)] == []


def runs_in_a_worker(file: Path) -> bool:
    relative = file.relative_to(ROOT)
    if relative.parts[1] != "experiments" or len(relative.parts) < 4:
        return relative.parts[1] == "worker"
    return part_of(file) == "worker.py"


def test_only_a_worker_imports_the_worker() -> None:
    """The table above implies it. This test holds when somebody changes the table.

    The driver may run a worker of another checkout, so the two meet in harness/wire alone.
    """
    assert [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in sources("harness")
        if not runs_in_a_worker(file)
        for line, name in imported(file)
        if f"{name}.".startswith("harness.worker.")
    ] == []


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("harness/driver/x.py", "import torch"),
        ("harness/worker/x.py", "import psutil"),
        ("harness/worker/x.py", "import adapters.raw.files"),
        ("harness/worker/x.py", "from harness.experiments.cost.records import SaveRecord"),
        ("harness/driver/x.py", "from harness.worker import bench"),
        ("harness/run/x.py", "from harness.worker import bench"),
        ("harness/cli/x.py", "from harness.worker import bench"),
        ("harness/analysis/x.py", "from harness.worker import bench"),
        ("harness/durability/x.py", "from harness.worker import bench"),
        ("harness/experiments/cost/driver.py", "from harness.worker import bench"),
        ("harness/analysis/x.py", "from harness.driver import store"),
        ("harness/wire/case.py", "import numpy"),
        ("workloads/x.py", "from harness.wire import case"),
        ("adapters/raw/x.py", "import harness.wire.records"),
        ("adapters/raw/x.py", "from adapters.pytorch import framework"),
        ("adapters/raw/x.py", "import torch"),
        ("adapters/pytorch/x.py", "import jax"),
        ("adapters/deepfreeze/x.py", "import adapters.raw.files"),
    ],
)
def test_the_rules_refuse_what_they_are_for(
    place: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: code)
    assert violations(ROOT / place)


@pytest.mark.parametrize(
    "code",
    [
        "from harness.driver import store",
        "from harness.experiments.cost.rows import CostRow",
        "import harness.wire.records",
        "import numpy",
    ],
)
def test_a_notebook_imports_the_analysis_alone(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["import torch"]},
        {"cell_type": "code", "source": ["x = 1\n", code]},
    ]
    monkeypatch.setattr(Path, "read_text", lambda self: json.dumps({"cells": cells}))
    assert len(violations(ROOT / "notebooks/x.ipynb")) == 1
