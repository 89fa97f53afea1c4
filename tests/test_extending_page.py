"""The code blocks of docs/extending.md are files that are measured as the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
# A paragraph that begins with the name of a file, and the block of code below it.
FILES = re.findall(r"^`(my_[\w/.]+)`[^\n]*:\n\n```\w*\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^ckptbench (run .* --adapter .*)$", PAGE, re.MULTILINE)
EXAMPLES = ROOT / "docs" / "examples"
CKPTBENCH = "from harness.cli import main; main()"


def ckptbench(folder: Path, *words: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with the packages that were installed in `path`."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(path)))}
    argv = [sys.executable, "-c", CKPTBENCH, *words]
    return subprocess.run(
        argv, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def measured(folder: Path, *words: str, path: Path = ROOT) -> list[dict[str, Any]]:
    """Run a command that measures on a small state, and return its rows as `show` has them."""
    results = ("--results", str(folder / "results"))
    small = ("--workload", "resnet50", "--dir", str(folder), *results)
    done = ckptbench(folder, *words, *small, path=path)
    assert "Code from outside this project was measured" in done.stdout, done.stdout + done.stderr
    shown = ckptbench(folder, "show", "--format", "json", *results, path=path)
    rows: list[dict[str, Any]] = json.loads(shown.stdout)
    return rows


def written(folder: Path) -> None:
    """Write the files of the page."""
    for name, content in FILES:
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{content}\n")


def test_the_page_has_a_method_and_a_framework() -> None:
    assert [name for name, _ in FILES] == [
        "my_pickle/methods.toml",
        "my_pickle/one_file.py",
        "my_arrays/adapter.toml",
        "my_arrays/requirements.txt",
        "my_arrays/framework.py",
    ]
    assert len(COMMANDS) == 2


@pytest.mark.slow
def test_the_framework_of_the_page_is_measured(scratch: Path, tmp_path: Path) -> None:
    written(tmp_path)
    words = shlex.split(COMMANDS[1])
    rows = measured(tmp_path, *words, "--python", f"my_arrays={sys.executable}")
    assert [(row["method"], row["status"], row["verified"]) for row in rows] == [
        ("savez", "ok", True)
    ]


def test_the_framework_of_the_page_takes_no_models(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "train.py").write_text("def make():\n    return 3\n")
    words = (*shlex.split(COMMANDS[1]), "--python", f"my_arrays={sys.executable}")
    done = ckptbench(tmp_path, *words, "--model", "train.py:make", "--dir", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "ckptbench: train.py:make: Arrays takes no models of the user's own, because it has no "
        "method adopt; leave --model out"
    )


@pytest.mark.slow
def test_an_import_that_fails_is_a_row(tmp_path: Path) -> None:
    written(tmp_path)
    file = tmp_path / "my_arrays" / "framework.py"
    file.write_text(file.read_text() + "\nimport my_engine\n")
    words = shlex.split(COMMANDS[1])
    [row] = measured(tmp_path, *words, "--python", f"my_arrays={sys.executable}")
    assert row["status"] == "failed"
    assert row["reason"] == "ModuleNotFoundError: No module named 'my_engine'"


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.timeout(1200)
def test_the_method_of_the_page_is_measured(tmp_path: Path) -> None:
    written(tmp_path)
    [row] = measured(tmp_path, *shlex.split(COMMANDS[0]))
    assert (row["method"], row["status"], row["verified"]) == ("one-pickle", "ok", True)


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("method", "framework", "package"),
    [("moonclip", "pytorch", "moonclip"), ("equinox", "jax", "equinox")],
)
def test_a_package_is_installed_and_measured(
    method: str, framework: str, package: str, tmp_path: Path
) -> None:
    before = installed(framework)
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    # pip builds in the folder of the source.
    source = tmp_path / "source"
    subprocess.run(["cp", "-r", str(EXAMPLES / method), str(source)], check=True)
    subprocess.run([*pip, "--target", str(site), str(source)], check=True)
    words = ("run", "smoke", "--framework", framework, "--method", method)
    rows = measured(tmp_path, *words, path=site)
    assert [(row["method"], row["status"], row["verified"]) for row in rows] == [
        (method, "ok", True)
    ]
    assert installed(framework) == before
    assert package not in before
    assert package in installed(f"{framework}+{method}")


def installed(environment: str) -> dict[str, str]:
    """Return the packages of an environment and their versions."""
    python = ROOT / ".venvs" / environment / "bin" / "python"
    argv = [str(python), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return {package["name"]: package["version"] for package in json.loads(listed)}
