"""A recording of programs that fill a run's folder, and the folders that strikes leave of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conftest import ROOT

from harness.durability import log, strace, trees
from harness.durability.calls import Call
from harness.durability.crashes import Crashes, CrashState
from harness.durability.trees import File, Tree
from harness.durability.window import WHOLE_LOG

# The lines of a run are shorter. The states of workers need not show in the log.
_SHOWN_BYTES = 1 << 16
_SINGLES_AT_MOST = 4


@dataclass(frozen=True)
class Recording:
    """The calls that changed something in `root`, and the files that were there in the end."""

    root: Path
    calls: list[Call]
    after: Tree

    def crashes(self) -> Crashes:
        """Return the crash states of the whole recording. The root was empty when it began."""
        found = Crashes(self.calls, WHOLE_LOG, self.root, {})
        found.follow(self.after)
        return found


def record(argv: Sequence[str], root: Path, file: Path) -> Recording:
    """Run a command under strace, and return all that it and its children did below `root`."""
    root.mkdir()
    traced = [*strace.command(file, payload=True, write_bytes_at_most=_SHOWN_BYTES), *argv]
    done = subprocess.run(
        traced, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return Recording(root, calls_below(root, file), trees.read(root))


def environment() -> dict[str, str]:
    """Return an environment in which a program finds this project and the modules of its tests."""
    return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}


def calls_below(root: Path, file: Path) -> list[Call]:
    """Return the calls of a log that name something below a directory.

    A worker's mark is left out. It is mapped, and nobody reads it after the driver's end.
    """
    with file.open(errors="surrogateescape") as lines:
        calls = list(log.parse(lines))
    return [call for call in calls if _names(call, root) and not _is_mapping_of_mark(call)]


def _names(call: Call, root: Path) -> bool:
    texts = (*call.arguments, call.result)
    return not call.is_readable or any(str(root) in text for text in texts)


def _is_mapping_of_mark(call: Call) -> bool:
    return call.name == "mmap" and ".mark>" in call.arguments[4]


def distinct_states(crashes: Crashes) -> Iterator[CrashState]:
    """Yield every state of every instant, each directory once for kills and once for losses."""
    seen = set()
    instants = range(len(crashes.steps) + 1)
    for state in crashes.states(frozenset(instants), _SINGLES_AT_MOST):
        key = (state.strike, trees.digest(state.tree))
        if key not in seen:
            seen.add(key)
            yield state


def lines_of(tree: Tree, name: str) -> list[str]:
    """Return the complete lines of a file in a tree; none where it is not there."""
    node = tree.get(name)
    if not isinstance(node, File):
        return []
    return node.data.decode(errors="replace").split("\n")[:-1]
