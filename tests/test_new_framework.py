"""A framework is one folder, and a method is one file and its lines of TOML."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from copied_tree import Tree, copy_tree

METHOD = '''
"""The state in one file, as `pickle` writes it."""

from __future__ import annotations

import pickle
from pathlib import Path

from adapters.base import Method, Pending
from adapters.raw.framework import State


class Copied(Method[State]):
    """The leaves as one pickled dictionary."""

    def save(self, state: State, path: Path) -> Pending:
        path.write_bytes(pickle.dumps(state.leaves))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        for name, leaf in pickle.loads(path.read_bytes()).items():
            state.leaves[name][...] = leaf
'''
METHOD_LINES = """
[methods.copied]
class = "adapters.raw.copied:Copied"
covers = "full"
format = "pickle"
description = "one pickled dictionary"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return copy_tree(tmp_path / "tree")


def add_rawtwo(tree: Tree) -> Path:
    """Copy the adapter `raw` as a framework of another name, and return its folder."""
    folder = tree.root / "adapters" / "rawtwo"
    shutil.copytree(
        tree.root / "adapters" / "raw", folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    for file in (*folder.rglob("*.py"), folder / "adapter.toml"):
        text = file.read_text().replace("adapters.raw", "adapters.rawtwo")
        file.write_text(text.replace("floor = true\n", ""))
    return folder


def measure_and_read(tree: Tree, scratch: Path, framework: str, *methods: str) -> list[dict]:
    """Run methods on a small state, read the run with all commands, and return its rows."""
    for method in methods:
        assert method in tree.ckptbench("list", "methods")
    named = [f"--method={method}" for method in methods]
    python = f"{framework}={sys.executable}"
    tree.ckptbench(
        *("run", "smoke", "--workload", "resnet50", "--framework", framework, *named),
        *("--python", python, "--dir", str(scratch)),
    )
    rows: list[dict] = json.loads(tree.ckptbench("show", "--format", "json"))
    tree.ckptbench("report", "--out", str(tree.root / "page"))
    # The table may break a long name into two lines, so CSV is searched for it.
    assert tree.ckptbench("show")
    texts = {
        "show": tree.ckptbench("show", "--format", "csv"),
        "report": (tree.root / "page" / "report.html").read_text(),
        "compare": tree.ckptbench("compare", "latest", "latest"),
    }
    for command, text in texts.items():
        assert [method for method in methods if method not in text] == [], command
    return rows


@pytest.mark.slow
def test_a_copy_of_raw_under_another_name_is_measured(tree: Tree, scratch: Path) -> None:
    add_rawtwo(tree)
    assert "rawtwo" in tree.ckptbench("list", "frameworks")
    rows = measure_and_read(tree, scratch, "rawtwo", "direct", "deepfreeze-sync")
    assert [(row["framework"], row["method"], row["status"]) for row in rows] == [
        ("rawtwo", "direct", "ok"),
        ("rawtwo", "deepfreeze-sync", "ok"),
    ]


def test_all_means_a_new_framework_too_and_not_the_floor(tree: Tree) -> None:
    add_rawtwo(tree)
    code = (
        "from harness.cli.measuring import chosen_frameworks\n"
        "from harness.driver import catalog\n"
        "print(chosen_frameworks(None, catalog.frameworks()))"
    )
    assert tree.python("-c", code).stdout == (
        "['chainer', 'jax', 'pytorch', 'rawtwo', 'tensorflow']\n"
    )


def test_the_makefile_tests_a_new_framework(tree: Tree) -> None:
    add_rawtwo(tree)
    done = tree.command("make", "--dry-run", "test-frameworks")
    assert done.returncode == 0, done.stderr
    assert re.search(r"env create .*\brawtwo\b", done.stdout)
    assert re.search(r"\bconformance-rawtwo\b", done.stdout)
    assert "--framework rawtwo tests/conformance" in done.stdout
    assert not re.search(r"\bconformance-raw\b", done.stdout)


@pytest.mark.slow
def test_the_conformance_suite_holds_for_a_new_framework(tree: Tree) -> None:
    add_rawtwo(tree)
    suite = ("-m", "pytest", "-q", "-c", "tests/conformance/pytest.ini", "tests/conformance")
    done = tree.python(*suite, "--framework", "rawtwo")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d{3} passed", done.stdout, re.MULTILINE)


def test_mypy_reads_every_adapter_but_those_of_frameworks(tree: Tree) -> None:
    add_rawtwo(tree)
    configuration = tomllib.loads((tree.root / "pyproject.toml").read_text())
    [excluded] = configuration["tool"]["mypy"]["exclude"]
    folders = [path for path in (tree.root / "adapters").iterdir() if path.is_dir()]
    skipped = {folder.name for folder in folders if re.search(excluded, f"adapters/{folder.name}/")}
    assert skipped == {"chainer", "jax", "pytorch", "rawtwo", "tensorflow"}


def test_the_layers_hold_for_a_new_framework(tree: Tree) -> None:
    folder = add_rawtwo(tree)
    arguments = ("-m", "pytest", "-vv", "-p", "no:cacheprovider", "tests/test_layers.py")
    done = tree.python(*arguments)
    assert done.returncode == 0, done.stdout
    (folder / "wrong.py").write_text("import adapters.raw.files\nimport torch\n")
    done = tree.python(*arguments)
    assert done.returncode == 1
    assert "adapters/rawtwo/wrong.py:1 imports adapters.raw.files" in done.stdout
    assert "adapters/rawtwo/wrong.py:2 imports torch" in done.stdout


@pytest.mark.slow
def test_a_method_is_one_file_and_its_lines_of_toml(tree: Tree, scratch: Path) -> None:
    folder = tree.root / "adapters" / "raw"
    (folder / "copied.py").write_text(METHOD)
    with (folder / "adapter.toml").open("a") as stream:
        stream.write(METHOD_LINES)
    [row] = measure_and_read(tree, scratch, "raw", "copied")
    assert (row["framework"], row["method"], row["status"]) == ("raw", "copied", "ok")
    assert row["verified"]
