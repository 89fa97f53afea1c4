"""One row of a table: a case, whether it went well, and what an experiment measured of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from harness.analysis.statistics import Estimate
from harness.experiments.reshard.records import ReshardRecord
from harness.experiments.resume.records import ResumeRecord, StraightRecord
from harness.run.plan import PlannedCase
from harness.wire.case import Case
from harness.wire.records import SCHEMA, FailureRecord

_WORST_FIRST = ("failed", "unsupported", "skipped")
# What no page, picture or terminal is to be given: a worker's last words may have colours or a torn
# character in them.
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_NOT_PRINTED = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Wanted:
    """A case of the plan, and how many samples it was to have over all processes."""

    case: Case
    samples: int
    processes: int
    default: bool = False  # the framework's own first choice
    asynchronous: bool = False
    sharded: bool = False  # every rank writes a part

    @classmethod
    def of(cls, item: PlannedCase) -> Self:
        """What a plan wants of one of its cases."""
        traits = (item.default, item.asynchronous, item.sharded)
        return cls(item.case, item.samples * item.processes, item.processes, *traits)


@dataclass(kw_only=True)
class Row:
    """What is known of one case.

    Times in seconds, sizes in bytes; None where nothing could be measured.
    """

    framework: str
    method: str
    workload: str
    preset: str
    precision: str
    device: str
    world: int
    strategy: str
    load_world: int
    every: int
    ablated: str
    scale: int
    arm: str = ""  # which side of a comparison, where a run has two
    experiment: str
    default: bool
    asynchronous: bool = False
    sharded: bool = False
    covers: str
    oversubscribed: bool | None = None  # more ranks than processors on a node
    status: str = "ok"
    phase: str = ""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """The row as flat JSON values: each estimate as NAME, NAME_low and NAME_high.

        Raw samples stay out.

        A single sample has no interval: its ends are null.
        """
        flat: dict[str, Any] = {"schema": SCHEMA}
        for item in fields(self):
            if item.type == "Estimate | None":
                flat |= _flat(item.name, getattr(self, item.name))
            elif item.repr:
                flat[item.name] = getattr(self, item.name)
        return flat

    def fail(self, failures: Iterable[FailureRecord]) -> bool:
        """Take over the worst failure, where there is one; returns whether there was."""
        worst = min(failures, key=lambda failure: _WORST_FIRST.index(failure.status), default=None)
        if worst is None:
            return False
        self.status, self.phase, self.reason = worst.status, worst.phase, printable(worst.reason)
        if self.world > 1 and self.phase != "plan":
            self.reason = f"rank {worst.rank}: {self.reason}"
        return True


def identity(item: Wanted) -> dict[str, Any]:
    """The fields by which a row is known."""
    case = item.case
    return {
        "framework": case.framework,
        "method": case.method,
        "workload": case.workload,
        "preset": case.preset,
        "precision": case.precision,
        "device": case.device,
        "world": case.world,
        "strategy": case.strategy,
        "load_world": case.load_world,
        "every": case.every,
        "ablated": case.ablated,
        "scale": case.scale,
        "arm": case.arm,
        "experiment": case.experiment,
        "default": item.default,
        "asynchronous": item.asynchronous,
        "sharded": item.sharded,
        "covers": case.covers,
    }


def ranks_told(records: Iterable[StraightRecord | ResumeRecord | ReshardRecord]) -> int:
    """Of how many ranks these records tell; one may speak for many."""
    return len(
        {rank for record in records for rank in range(record.rank, record.rank + record.ranks)}
    )


def group_title(row: Row) -> str:
    """What the rows of one table have in common.

    Costs of all worlds stand in one table, which says what more ranks change.
    """
    precision = "" if row.precision == "float32" else f", {row.precision}"
    ranks = "" if row.world == 1 or row.experiment == "cost" else f", {row.world} ranks"
    times = " x ranks" if row.scale else ""
    arm = f", arm {row.arm}" if row.arm else ""
    return f"{row.workload} {row.preset}{times}{precision} on {row.device}{ranks}{arm}"


@dataclass(frozen=True)
class Naming:
    """How sentences name the rows of one table: methods of several frameworks may have the same name."""

    several_frameworks: bool

    @classmethod
    def among(cls, rows: Iterable[Row]) -> Self:
        """The way to name rows of this table."""
        return cls(len({row.framework for row in rows}) > 1)

    def name(self, row: Row) -> str:
        """The method, after the framework where there are several."""
        return (
            f"{row.framework} {row.method}".strip()
            if self.several_frameworks
            else row.method or row.framework
        )

    def whose(self, row: Row) -> str:
        """What stands before something that the row shares with others of its framework."""
        return f"{row.framework}'s" if self.several_frameworks else "the"


def listed(names: Sequence[str]) -> str:
    """Each name once, as a sentence has them."""
    unique = list(dict.fromkeys(names))
    return unique[0] if len(unique) == 1 else ", ".join(unique[:-1]) + " and " + unique[-1]


def printable(text: str) -> str:
    """The text without colours of a terminal, and with a mark in place of every other character that XML cannot hold."""
    return _NOT_PRINTED.sub("\ufffd", _COLOURS.sub("", text))


def _flat(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    low, high = (estimate.low, estimate.high) if estimate and not estimate.single else (None, None)
    return {name: estimate.value if estimate else None, f"{name}_low": low, f"{name}_high": high}
