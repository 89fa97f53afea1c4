"""Directories that real strikes have left, stored until a loading process tries them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.durability.trees import Tree
from harness.experiments.faults.outcome import Outcome
from harness.experiments.faults.recorded_save import pack, unpack
from harness.experiments.faults.records import Strike

OF_UNHANDLED = "unhandled"
"""The name of the state that is saved when a SIGTERM ends the process without a handler."""

_FOLDER = "left"
_EXPECTED = "expected-"

NEXT = "step-3"
"""The checkpoint of the save after a struck one."""


@dataclass(frozen=True)
class Left:
    """A directory that a real strike has left, and the words of the save about itself.

    `expected` names the digests of the newer checkpoint, which the process that saved has stored.
    `must_be` is the checkpoint that must come back because the save reported success; empty where
    it did not. `lie` says why that report was wrong whatever comes back; empty where it was not.
    `stray_files` and `stray_processes` are what a failed save has left behind.
    """

    strike: Strike
    in_words: str
    expected: str
    said: str = ""
    must_be: str = ""
    lie: str = ""
    # whether the save had reported success, where `must_be` does not say it
    succeeded: bool | None = None
    stray_files: Sequence[str] = ()
    stray_processes: Sequence[str] = ()

    @property
    def has_succeeded(self) -> bool:
        """Return whether the save had reported success."""
        return bool(self.must_be) if self.succeeded is None else self.succeeded


def of_errors(begin: int) -> str:
    """Return the name of the digests of a state that a process saves from one strike on."""
    return f"errors-{begin}"


def next_of(name: str) -> str:
    """Return the name of the digests of the next state that such a process saves."""
    return f"{name}-next"


def words_of_next(in_words: str) -> str:
    """Return in words the save after one that was struck."""
    return f"the next save after {in_words}"


def of_kill(name: str) -> str:
    """Return the name of the digests of a state whose save gets the kill of a name."""
    return f"kill-{name}"


def of_disk(file_system: str) -> str:
    """Return the name of the digests of a state that is saved on a file system."""
    return f"disk-{file_system}"


def of_preemption(name: str) -> str:
    """Return the name of the digests of a state that is saved when an allocation ends."""
    return f"preemption-{name}"


def judged(left: Left, outcome: Outcome) -> Outcome:
    """Return the verdict on a real strike, given what came back.

    A save that reported success although its checkpoint does not come back has failed silently.
    Where no checkpoint is left at all, that is worse.
    """
    if left.lie:
        return _silent(outcome, left.lie)
    if left.must_be and outcome.got != left.must_be:
        came = (
            f"{outcome.got} comes back" if outcome.got else f"does not come back: {outcome.reason}"
        )
        return _silent(outcome, f"the save of {left.must_be} reported success, and {came}")
    return outcome


def _silent(outcome: Outcome, reason: str) -> Outcome:
    """Return an outcome as silent, unless it is lost already."""
    if outcome.verdict == "lost":
        return replace(outcome, reason=f"{outcome.reason}; {reason}")
    return replace(outcome, verdict="silent", reason=reason)


def store(recorded: Path, left: Left, tree: Tree) -> None:
    """Store one directory behind those that are there."""
    folder = recorded / _FOLDER
    folder.mkdir(exist_ok=True)
    number = len(list(folder.glob("*.json")))
    pack(tree, folder / f"{number:05d}.tar")
    # The description comes last, because it says that the directory is complete.
    (folder / f"{number:05d}.json").write_text(json.dumps(asdict(left)))


def stored(recorded: Path) -> Iterator[tuple[Left, Tree]]:
    """Yield all that `store` has stored, in its order."""
    for file in sorted((recorded / _FOLDER).glob("*.json")):
        values: dict[str, Any] = json.loads(file.read_text())
        yield Left(**values), unpack(file.with_suffix(".tar"))


def store_expected(recorded: Path, name: str, digests: dict[str, Any]) -> None:
    """Store the digests of the state that a process saves as the newer checkpoint."""
    (recorded / f"{_EXPECTED}{name}.json").write_text(json.dumps(digests))


def expected(recorded: Path, name: str) -> dict[str, Any]:
    """Return the digests that `store_expected` stored under a name."""
    digests: dict[str, Any] = json.loads((recorded / f"{_EXPECTED}{name}.json").read_text())
    return digests


def expected_names(recorded: Path) -> list[str]:
    """Return the names under which digests were stored."""
    files = sorted(recorded.glob(f"{_EXPECTED}*.json"))
    return [file.stem.removeprefix(_EXPECTED) for file in files]
