"""The imports of a worker. It starts in interpreters that may have nothing but numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

EXPERIMENTS = sorted(file.parent.name for file in ROOT.glob("harness/experiments/*/__init__.py"))

# Run in a process of its own, because this one has imported everything. The first finder that
# Python asks refuses every package that is neither of the standard library nor allowed, although
# the packages beside numpy are installed.
PROGRAM = """
import importlib, importlib.abc, json, sys

paths, allowed, modules, statement = json.loads(sys.argv[1])
allowed = {*sys.stdlib_module_names, *allowed}

class Refusing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"{name} is refused", name=name)
        return None

sys.path += paths
sys.meta_path.insert(0, Refusing())
for module in modules:
    importlib.import_module(module)
exec(statement)
print(json.dumps([name for name in sys.modules if name.startswith("harness")]))
"""


def imported(allowed: list[str], modules: list[str], statement: str = "") -> list[str]:
    """Import modules where only some packages can be imported.

    Return the modules of this project that were loaded.
    """
    installed = Path(np.__file__).parents[1]
    request = json.dumps([[str(ROOT), str(installed)], allowed, modules, statement])
    # -I and -S leave out the environment's variables, the current directory and site-packages.
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM, request]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    names: list[str] = json.loads(done.stdout)
    return names


def with_numpy(*modules: str, statement: str = "") -> list[str]:
    return imported(["harness", "adapters", "workloads", "numpy"], list(modules), statement)


def test_there_are_experiments_to_import() -> None:
    assert len(EXPERIMENTS) >= 7


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_worker_of_each_experiment_needs_numpy_alone(experiment: str) -> None:
    names = with_numpy(f"harness.experiments.{experiment}.worker")
    assert f"harness.experiments.{experiment}.worker" in names


def test_the_workers_program_needs_numpy_alone_in_a_world_of_one() -> None:
    """MPI starts when mpi4py is imported, so a world of one must not import it."""
    names = with_numpy(
        "harness.worker.__main__",
        statement="importlib.import_module('harness.worker.world').join(1)",
    )
    assert "harness.worker.__main__" in names
    assert not [name for name in names if name.startswith("harness.experiments.")], (
        "an experiment is imported when a job asks for its stage"
    )


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_declaration_and_its_records_need_the_standard_library_alone(experiment: str) -> None:
    folder = f"harness.experiments.{experiment}"
    modules = [folder]
    if (ROOT / "harness" / "experiments" / experiment / "records.py").exists():
        modules.append(f"{folder}.records")
    names = imported(["harness"], modules)
    layers = {name.split(".")[1] for name in names if "." in name}
    assert layers == {"experiments", "wire"}


def test_a_refused_package_is_really_refused() -> None:
    with pytest.raises(AssertionError, match="numpy is refused"):
        imported(["harness"], ["numpy"])
