"""The functions in which the workers of a job stand when it makes no progress."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from harness.driver import descendants
from harness.wire import stacks
from harness.wire.phases import Position

_LOOK_S = 0.2
_ANSWER_S = 5.0
_SHOWN_PLACES = 3
# The thread with this file in its stack does the work.
_WORKER = "harness/worker/__main__.py"


@dataclass(frozen=True)
class Standstill:
    """A job that makes no progress.

    `positions` are those of its ranks before anybody was asked. `answers` has the stacks of each
    worker that has answered, by the number of its process.
    """

    positions: Sequence[Position]
    answers: Mapping[int, str] = field(default_factory=dict)

    @property
    def in_words(self) -> str:
        """The functions in which the workers stand, the most frequent first; empty without any."""
        places = Counter(stacks.innermost(answer, _WORKER) for answer in self.answers.values())
        if not places:
            return ""
        (first, count), *others = places.most_common(_SHOWN_PLACES)
        workers = "worker" if count == 1 else "workers"
        said = [f"{count} {workers} stood in {first}"]
        said += [f"{number} in {place}" for place, number in others]
        if len(places) > _SHOWN_PLACES:
            said.append("others elsewhere")
        return ", ".join(said)

    def add_to(self, log: Path) -> None:
        """Add the stacks of all threads to the log of the job.

        A log that cannot be written must not cost the row.
        """
        with contextlib.suppress(OSError), log.open("a") as file:
            for number, answer in self.answers.items():
                file.write(f"\nA worker stood still (process {number}):\n{answer}")


def ask(folder: Path, temporary: str) -> dict[int, str]:
    """Ask the workers of a job on this node for their stacks, and return what they answer.

    They write in `folder`. `temporary` is the job's folder for temporary files. A process with
    another one is not asked, because it only has got the number of a worker that has ended. A
    worker that is stopped, or that waits in the kernel for a disk, does not answer.
    """
    # A job often stands still because its file system does.
    with contextlib.suppress(OSError):
        offered = stacks.offered(folder)
        asked = {number: file for number, file in offered.items() if _ask(number, temporary)}
        return _answers(asked)
    return {}


def _ask(number: int, temporary: str) -> bool:
    """Ask a process for its stacks, and return whether it is one of the job's."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(number)
        if descendants.temporary_folder(process) == temporary:
            process.send_signal(stacks.ASK)
            return True
    return False


def _answers(asked: Mapping[int, Path]) -> dict[int, str]:
    """Return what processes have written once all have, and write no more, or time is up."""
    deadline_s = time.monotonic() + _ANSWER_S
    answers: dict[int, str] = {}
    while time.monotonic() < deadline_s:
        before = answers
        answers = {number: file.read_text(errors="replace") for number, file in asked.items()}
        if answers == before and all(answers.values()):
            break
        time.sleep(_LOOK_S)
    return {number: answer for number, answer in answers.items() if answer}
