"""What a run is to measure, as its plan file has it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.case import Case


@dataclass(frozen=True)
class PlannedCase:
    """A case and how often to measure it. `samples`, `warmups` and `repeats` count per process."""

    case: Case
    samples: int
    warmups: int
    repeats: int
    processes: int
    own_process: bool
    expected_failure: str | None  # a regular expression for the reason
    race: bool = False  # the expected failure comes and goes
    unsupported: str = ""  # why the case cannot be measured, where it cannot
    default: bool = False  # the framework's own first choice
    asynchronous: bool = False
    sharded: bool = False  # every rank writes a part
    copies: int = 1  # of the state that one checkpoint holds
    traced: bool = True  # one save is watched at the system calls, where the experiment has that
