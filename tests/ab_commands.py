"""Command lines that measure two sides, and a copy of this project for one of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from conftest import ROOT

from harness.driver import arms, suite

CKPTBENCH = [sys.executable, "-c", "from harness.cli import main; main()"]


SUITE = """
description = "two processes on a small state"
[[sweep]]
workload = "resnet50"
preset = "small"
precision = "float32"
method = "double"
samples = 2
warmups = 0
repeats = 0
processes = 2
"""


def ckptbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CKPTBENCH, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def planned(tmp_path: Path, text: str = SUITE) -> list:
    (tmp_path / "quick.toml").write_text(text)
    described = {"a": arms.describe(["."]), "b": arms.describe(["slowdown=3.0"])}
    return arms.plan(described, ["raw"], suite.load("quick", tmp_path))


Command = Callable[..., list[str]]


def edit(file: Path, *replacements: tuple[str, str]) -> None:
    """Replace texts in a file, each of which must be there."""
    text = file.read_text()
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    file.write_text(text)
