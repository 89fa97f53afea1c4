"""Fixtures of several test modules, which name this one in `pytest_plugins`."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ab_commands import SUITE, Command
from conftest import ROOT
from toy_framework import declared

from adapters.shared import cuda_driver
from harness.driver.declarations import FrameworkEntry


@pytest.fixture
def command(tmp_path: Path, scratch: Path) -> Command:
    """Return a function that makes command lines of ckptbench with suites of the test's own."""
    suites, where = tmp_path / "suites", scratch / tmp_path.name
    suites.mkdir()
    (suites / "quick.toml").write_text(SUITE)
    (suites / "long.toml").write_text(SUITE.replace("processes = 2", "processes = 6"))
    where.mkdir()
    lines = [
        "from harness.driver import suite",
        "import pathlib, sys",
        "suite.load.__defaults__ = (pathlib.Path(sys.argv.pop(1)),)",
        "from harness.cli import main",
        "main()",
    ]
    driver = [sys.executable, "-c", "\n".join(lines), str(suites)]
    return lambda *words: [
        *driver,
        *words,
        "--framework",
        "raw",
        "--dir",
        str(where),
        "--results",
        str(tmp_path / "results"),
    ]


@pytest.fixture
def ab(command: Command) -> Command:
    """Return a function that makes command lines of `ab`. Both arms have this interpreter."""
    return lambda *words: command("ab", *words, "--a", sys.executable, "--b", sys.executable)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the folders that a worker needs."""
    folder = tmp_path / "checkout"
    for name in ("harness", "adapters", "workloads"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def nobodys_site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "ckptbench" / "site.toml"


@pytest.fixture
def toy(tmp_path: Path) -> FrameworkEntry:
    """Return a framework with a method of each kind."""
    methods = {
        "plain": "listed = 'default'\noptions = { crc = true, level = 1.5, codec = 'none' }",
        "quick": (
            "speed = 'fastest-known'\nown_process = true\n"
            "expected_failures = [{reason = 'boom', precision = 'float32'}]"
        ),
        "slow": "speed = 'slow'\nrank_local = true\noptions = { crc = true }",
        "liar": "listed = 'test-double'",
    }
    return declared(tmp_path / "adapters", "toy", methods)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """Return a CUDA driver whose GPU is host memory, and let the project load it."""
    library = tmp_path / "libcuda.so.1"
    source = ROOT / "tests" / "cuda_driver.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    monkeypatch.setattr(cuda_driver, "LIBRARY", str(library))
    return ctypes.CDLL(str(library))
