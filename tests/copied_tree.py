"""A copy of this repository, to which a test may add files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from conftest import ROOT

_CKPTBENCH = "from harness.cli import main; main()"
_LEFT_OUT = "results"  # the stored runs, which are large


@dataclass(frozen=True)
class Tree:
    """The root of a copy, and the commands that run in it."""

    root: Path

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run this interpreter with the packages of the copy."""
        return self.command(sys.executable, *arguments)

    def ckptbench(self, *arguments: str) -> str:
        """Return what a command of ckptbench prints. AssertionError where it fails."""
        done = self.python("-c", _CKPTBENCH, *arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the root of the copy."""
        variables = os.environ | {"PYTHONPATH": str(self.root)}
        return subprocess.run(
            words, cwd=self.root, env=variables, capture_output=True, text=True, check=False
        )


def copy_tree(folder: Path) -> Tree:
    """Copy the files of this repository that git tracks or would track."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        source = ROOT / name
        # A tracked file may have been removed, and a link may lead out of the repository.
        is_file = name and source.is_file() and not source.is_symlink()
        if is_file and not name.startswith(f"{_LEFT_OUT}/"):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return Tree(folder)
