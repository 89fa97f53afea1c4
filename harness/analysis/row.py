"""One row of a table: a case, whether it went well, and what an experiment measured of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import pandas as pd

from harness import experiments
from harness.analysis.columns import column, identity_column
from harness.analysis.compared import Flag, Rank
from harness.analysis.samples import SampleTable
from harness.analysis.statistics import Estimate
from harness.run.plan import PlannedCase
from harness.wire.case import Case, OwnModel
from harness.wire.records import SCHEMA, FailureRecord, FindingRecord, StageRecord

COVERAGE = ("weights", "weights+optimizer", "full")  # the worst is first
_WORST_FIRST = ("failed", "unsupported", "skipped")
# A worker's last words may have colours or a torn character in them. No page, picture or terminal
# is to be given these.
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
    size_varies: bool | None = None  # checkpoints of one state differ in size; None if unknown
    files: bool = True  # a checkpoint has files
    floor: bool = False  # no framework, but what the others are held against
    has_lines: bool = True  # `list methods --how` prints what to write in a training script

    @classmethod
    def of(cls, item: PlannedCase) -> Self:
        """Return what a plan wants of one of its cases."""
        return cls(
            case=item.case,
            samples=item.samples * item.processes,
            processes=item.processes,
            default=item.default,
            asynchronous=item.asynchronous,
            sharded=item.sharded,
            size_varies=item.size_varies,
            files=item.files,
            floor=item.floor,
            has_lines=item.has_lines,
        )


@dataclass(kw_only=True)
class Row:
    """The result of one case, with times in seconds and sizes in bytes.

    A value is None where nothing could be measured. An experiment's row class adds its columns.
    Where it declares a column of a field that is here, that declaration holds.
    """

    # The heading of a table's first column, which names the row.
    first_heading: ClassVar[str] = "method"
    first_meaning: ClassVar[str] = (
        "how the checkpoint is written, as 'ckptbench list methods' names it"
    )
    # Rows of worlds of all sizes stand in one table, which says what more ranks change.
    worlds_share_a_table: ClassVar[bool] = False
    # A table's title begins with the experiment's name.
    is_titled_by_experiment: ClassVar[bool] = True

    # A load brings the saved bytes back, and the row says whether all of them came.
    loads_back: ClassVar[bool] = False

    framework: str
    method: str
    workload: str
    preset: str
    precision: str
    device: str
    world: int
    strategy: str
    # Suite keys of one experiment each, which the rows of all have had in JSON and CSV from the
    # beginning. A newer key is a column of its experiment's own rows.
    load_world: int
    every: int
    ablated: str
    scale: int
    arm: str = ""  # the side of a comparison, where a run has two
    # where the user's own model is; `workload` and `preset` then hold its name and digest
    model: OwnModel | None = field(default=None, repr=False)
    experiment: str
    default: bool
    asynchronous: bool = False
    sharded: bool = False
    floor: bool = field(default=False, repr=False)
    has_lines: bool = field(default=True, repr=False)
    covers: str = identity_column("what comes back", compared=Rank("coverage", COVERAGE))
    oversubscribed: bool | None = None  # more ranks than processors on a node
    status: str = "ok"
    phase: str = ""
    reason: str = ""
    # what makes its numbers doubtful, a sentence each
    marks: list[str] = field(default_factory=list)
    # what else a reader should know, a sentence each
    remarks: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Return whether the row may stand in a headline: it has its result, and no mark."""
        return self.status == "ok" and not self.marks

    @property
    def verdict(self) -> str:
        """The row in one word."""
        return self.status

    @property
    def outcome(self) -> str:
        """The status, or the verdict of a row that was measured to its end.

        Such a row can have failed too, such as a drill.
        """
        return self.verdict if self.status == "ok" else self.status

    @property
    def is_unfinished(self) -> bool:
        """Return whether the run was interrupted before the row had its result."""
        return self.status == "skipped"

    @property
    def write_ceiling_s(self) -> float | None:
        """The seconds of a raw write beside its samples; None where none was measured."""
        return None

    @property
    def copy_s(self) -> float | None:
        """The seconds of one copy of its state in memory; None where none was measured."""
        return None

    @property
    def detail(self) -> str:
        """The words that tell the row from others of its method, such as " without RNG"."""
        return ""

    def counted(self, table: SampleTable, samples: pd.DataFrame) -> pd.DataFrame:
        """Return the samples of a table as the row counts them, and `compare` does too."""
        return samples

    @property
    def subject(self) -> str:
        """The name of what the row is about, among rows of one framework: the method."""
        return self.method

    def title(self, several_frameworks: bool) -> str:
        """Return the text of a table's first column."""
        framework = f"{self.framework} " if several_frameworks else ""
        default = " (default)" if self.default else ""
        mark = " (marked)" if self.marks else ""
        return f"{framework}{self.method}{default}{self.detail}{self.strategy_suffix}{mark}"

    @property
    def strategy_suffix(self) -> str:
        """The way in which the ranks train together, as a name ends with it."""
        return f", {self.strategy}" if self.strategy else ""

    def to_json(self) -> dict[str, Any]:
        """Return the row as flat JSON values.

        Each estimate becomes NAME, NAME_low and NAME_high. A single sample has no interval, so its
        ends are null. Raw samples stay out. A number that is infinite or none is null, because
        JSON has no such numbers.
        """
        flat: dict[str, Any] = {"schema": SCHEMA}
        for declared in fields(self):
            value = getattr(self, declared.name)
            if declared.type == "Estimate | None":
                flat |= _flat(declared.name, value)
            elif declared.repr:
                flat[declared.name] = _finite(value)
        return flat

    def fail(self, failures: Iterable[FailureRecord]) -> bool:
        """Take over the worst failure, where there is one, and return whether there was."""
        by_severity = sorted(failures, key=lambda record: _WORST_FIRST.index(record.status))
        if not by_severity:
            return False
        worst = by_severity[0]
        self.status = worst.status
        self.phase = worst.phase
        self.reason = printable(worst.reason)
        if self.world > 1 and self.phase != "plan":
            self.reason = f"rank {worst.rank}: {self.reason}"
        return True

    def take_findings(self, findings: Iterable[FindingRecord]) -> None:
        """Take over what guards saw. Of a guard's findings of one weight, the first counts.

        Several processes and ranks write them. A failed row has no number that could be marked.
        """
        if self.status != "ok":
            return
        first = {(each.guard, each.weight): each for each in reversed(list(findings))}
        for guard, weight in sorted(first):
            told = self.marks if weight == "mark" else self.remarks
            told.append(printable(first[guard, weight].sentence))

    def interrupt(self, doing: str = "measured") -> None:
        """Say that the run ended before the row had its result."""
        self.status = "skipped"
        self.reason = f"not {doing} to the end: the run was interrupted"


def identity(item: Wanted) -> dict[str, Any]:
    """Return the fields by which a row is known: those that the case or its plan has too."""
    values = vars(item.case) | vars(item)
    return {each.name: values[each.name] for each in fields(Row) if each.name in values}


def verified_text(row: Any) -> str:
    """Return "yes", or what kept the row from being verified."""
    if row.verified:
        return "yes"
    return row.status if row.status != "ok" else "not yet"


def verified_column(meaning: str, heading: str = "verified") -> Any:
    """Declare the column that says whether what came back is what was saved."""
    return column(
        meaning,
        default=False,
        heading=heading,
        text=verified_text,
        left_aligned=True,
        compared=Flag("verified"),
    )


def ranks_told(records: Iterable[StageRecord]) -> int:
    """Return how many ranks these records speak for; one may speak for many."""
    ranks: set[int] = set()
    for record in records:
        ranks |= set(record.reporting_ranks)
    return len(ranks)


def settings_in_words(case: Case) -> list[str]:
    """Return what the name of a case has of its experiment's own suite keys."""
    return experiments.experiment(case.experiment).settings_in_words(case)


def group_title(row: Row) -> str:
    """Return what the rows of one table have in common."""
    # A model of the user's own has no precision that would be told here.
    precision = "" if row.precision in ("", "float32") else f", {row.precision}"
    ranks = "" if row.world == 1 or row.worlds_share_a_table else f", {row.world} ranks"
    times = " x ranks" if row.scale else ""
    arm = f", arm {row.arm}" if row.arm else ""
    return f"{row.workload} {row.preset}{times}{precision} on {row.device}{ranks}{arm}"


@dataclass(frozen=True)
class Naming:
    """The way in which sentences name the rows of one table.

    Methods of several frameworks may have the same name, and so has a method whose ranks train
    together in several ways.
    """

    several_frameworks: bool
    several_strategies: bool

    @classmethod
    def among(cls, rows: Iterable[Row]) -> Self:
        """Return the way to name rows of this table."""
        strategies_of: dict[int, set[str]] = {}
        frameworks = set()
        for row in rows:
            frameworks.add(row.framework)
            strategies_of.setdefault(row.world, set()).add(row.strategy)
        # One rank has no strategy, so only rows of one world can share a name.
        several_strategies = any(len(names) > 1 for names in strategies_of.values())
        return cls(len(frameworks) > 1, several_strategies)

    def name(self, row: Row) -> str:
        """Return the method, with its framework and its strategy where there are several."""
        return self.full_name(row) if self.several_strategies else self._method(row)

    def full_name(self, row: Row, detail: str = "") -> str:
        """Return the method with `detail`, and the way in which its ranks train together."""
        strategy = f" with {row.strategy}" if row.strategy else ""
        return f"{self._method(row)}{detail}{strategy}"

    def whose(self, row: Row) -> str:
        """Return what stands before something that the row shares with others of its framework."""
        return f"{row.framework}'s" if self.several_frameworks else "the"

    def _method(self, row: Row) -> str:
        """Return the method, after the framework where there are several."""
        if self.several_frameworks:
            return f"{row.framework} {row.subject}".strip()
        return row.subject or row.framework


def printable(text: str) -> str:
    """Return the text without a terminal's colours.

    A mark replaces every other character that XML cannot hold.
    """
    return _NOT_PRINTED.sub("\ufffd", _COLOURS.sub("", text))


def _flat(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    value = estimate.value if estimate else None
    has_interval = estimate is not None and not estimate.single
    ends = {
        name: value,
        f"{name}_low": estimate.low if estimate and has_interval else None,
        f"{name}_high": estimate.high if estimate and has_interval else None,
    }
    return {key: _finite(number) for key, number in ends.items()}


def _finite(value: Any) -> Any:
    """Return a JSON value with null in place of every number that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return value
