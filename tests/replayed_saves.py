"""Saves of small real programs, recorded with their bytes and replayed on a volume."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from traced_saves import CASE, PRELUDE, ROOT, require_strace

from harness.durability import log, strace, trees
from harness.durability.calls import Call
from harness.durability.crashes import Crashes
from harness.durability.trees import Tree
from harness.durability.window import find_window

# Copies what is there when the save begins, because a test cannot look into the running program.
_BEGIN = "import shutil; shutil.copytree(root, sys.argv[2], symlinks=True); mark('begin')"


@dataclass(frozen=True)
class Recorded:
    """A program's calls, and what its directory `root` held at the begin and at the end."""

    calls: list[Call]
    root: Path
    before: Tree
    after: Tree

    def crashes(self) -> Crashes:
        """Return the save's crashes, before anybody follows it."""
        return Crashes(self.calls, find_window(self.calls, CASE), self.root, self.before)


def record(tmp_path: Path, save: str, setup: str = "", then: str = "", late: str = "") -> Recorded:
    """Run a program under strace with its bytes.

    `setup` runs before the mark `begin`, `save` from there to `returned`, `then` from there to
    `finished`, and `late` after that. The program has the functions of `traced_saves.PRELUDE`.
    """
    require_strace()
    root, before, recording = tmp_path / "scratch", tmp_path / "before", tmp_path / "log"
    root.mkdir()
    ends = ["mark('returned')", then, "mark('finished')", late]
    parts = [PRELUDE, setup, _BEGIN, save, *ends]
    program = "\n".join(textwrap.dedent(part) for part in parts)
    tracer = strace.command(recording, payload=True)
    argv = [*tracer, sys.executable, "-c", program, str(root), str(before)]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=120)
    return Recorded(log.read(recording), root, trees.read(before), trees.read(root))


def steps(tmp_path: Path, save: str, setup: str = "") -> list[str]:
    """Return the steps of a save in words, once its replay has given the real files."""
    recorded = record(tmp_path, save, setup)
    crashes = recorded.crashes()
    crashes.follow(recorded.after)
    assert trees.difference(recorded.after, crashes.after) is None
    return [step.in_words for step in crashes.steps]
