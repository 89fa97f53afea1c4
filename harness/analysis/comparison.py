"""Did it get slower, or worse? Two runs of one machine, or the two arms of one run, row by row.

Every figure is a cost, so that a ratio of head over base above 1 is worse:

- *durable*: the time of a durable save in units of the ceiling beside it, the inverse of the share
  of the ceiling;
- *stall*: seconds that training stands still; below a millisecond they count as one, which nobody's
  training notices;
- *load*: the time of a load in units of the ceiling beside it;
- *training*: the time of training with checkpoints over that without. An overhead may lie around
  zero, where a ratio of two of them means nothing; that of two training times is what a user waits
  for, and is above 1 exactly where the head's overhead is the larger one.

Processes of two arms stand side by side, so their differences count pair by pair, and what the
machine did meanwhile cancels. Two runs were measured at different times, and each has two controls
of its own, the copy in memory and the write ceiling; by what they changed in between, intervals are
wider. Ceilings cancel what the disk did to a save or a load that is told in them: of these, the
share of the time that is not the disk's may be off by as much as the copy is. A stall may be off by
the larger of the two changes, and so may the overhead of a training, for which the saves of the
same run tell the ceiling. Loads in seconds may be off as the copy is.

A row is *slower* where the interval, corrected for all figures tested, excludes 1 and the estimate
is above 1.05; *faster* is the mirror image; *same* where the whole interval lies within 5 %; else
it is *inconclusive*. Of training, 5 % would hide an overhead that doubles from 3 % to 6 %. There
the limit is what adds 5 % to the base's overhead and at least 1 % to the training without
checkpoints. Both must have grown, the share and by more than 5 % the seconds of a checkpoint: where
training without gets faster, the same seconds are a larger share of it, and nothing is slower.
*Same* lies within that limit. That changes which differences are worth the name, not how certain
they must be: the intervals are the same, and so is how often chance alone puts one of them above 1.
A change of less than 1 % of the training is never called slower.

What is told in ceilings is not compared between two runs that made them of other requests. Loads
out of a cache or memory, where the disk is no ceiling, are told in seconds.

Correctness has no interval: what was verified, covered, flushed or bitwise and is not any more
always counts, as do files that are larger by more than 0.1 %.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from harness.analysis import ratios, selections
from harness.analysis.frame import Measured
from harness.analysis.row import Row, group_title
from harness.analysis.runs import ReadRun
from harness.analysis.statistics import Estimate, Samples, simultaneous
from harness.experiments.cost.rows import CostRow
from harness.experiments.parity.rows import ParityRow
from harness.experiments.resume.rows import ResumeRow
from harness.experiments.sizes.rows import SizesRow
from harness.experiments.train.rows import TrainRow
from harness.run.manifest import comparable
from harness.run.plan import PlannedCase
from harness.wire.case import Case
from harness.wire.records import CalibrationRecord

# of all intervals together: by chance, 1.5 % of like pairs have a figure whose interval lies above
# 1
CONFIDENCE = 0.97
TOLERANCE = 1.05  # a ratio up to which a difference is not worth the name
# of the training without checkpoints: an overhead that differs by less is the same
OVERHEAD_FLOOR = 0.01
BYTES_PER_THOUSAND = 1  # that files may grow or shrink
STALL_FLOOR_S = 1e-3
ARMS = ("a", "b")
# the unit of what is told in times of a raw write or read of as many bytes
IN_CEILINGS = "ceilings"

Verdict = Literal["faster", "same", "slower", "inconclusive"]
# fields that may differ between two sides
_SIDES = ("arm", "covers", "rank_local", "framework_path", "method_path", "options")
_COVERAGE = ("weights", "weights+optimizer", "full")
_DURABILITY = ("never", "at finished", "at return")
_ABSENT = "(absent)"


@dataclass(frozen=True)
class _Told:
    """How a figure is told: by which samples, in what unit, and what one of them costs."""

    kind: str
    unit: str
    cost: Callable[[pd.DataFrame], pd.Series[float]]


_FIGURES: dict[type[Row], dict[str, _Told]] = {
    CostRow: {
        "durable": _Told("saves", IN_CEILINGS, lambda samples: 1.0 / samples["efficiency"]),
        "stall": _Told("saves", "s", lambda samples: samples["stall_s"].clip(lower=STALL_FLOOR_S)),
        "load": _Told("loads", IN_CEILINGS, lambda samples: 1.0 / samples["efficiency"]),
    },
    TrainRow: {
        "training": _Told(
            "trainings", "times that without", lambda blocks: 1.0 + blocks["overhead_share"]
        )
    },
}
_OTHER_REQUESTS = "the ceilings were made of requests of other sizes or depths"
_UNSETTLED = "the ceilings of one side were taken without memory having been backed before, as older versions did"
# out of a cache or memory: no ceiling of it
_LOAD_BESIDE_THE_DISK = _Told("loads", "s", lambda samples: samples["load_s"])
# that a figure's ceiling is made of
_REQUESTS: dict[str, Callable[[CalibrationRecord], tuple[int, ...]]] = {
    "durable": lambda record: (record.direct, record.write_block_bytes, record.write_depth),
    "load": lambda record: (record.direct, record.read_block_bytes, record.read_depth),
}


class Unlike(ValueError):
    """Two runs that cannot be held against each other, with the reason."""


@dataclass(frozen=True)
class Figure:
    """One figure of a row on both sides: medians in the figure's own unit, and the ratio head / base with its interval."""

    name: str
    unit: str
    base: float
    head: float
    ratio: Estimate
    verdict: Verdict


@dataclass(frozen=True)
class ComparedRow:
    """What became of one row.

    `faults` are losses of correctness and `gains` the opposite, a sentence each.

    `cases` are the identifiers of the cases behind it, of the base and of the head.
    """

    group: str
    name: str
    cases: tuple[str, ...]
    figures: tuple[Figure, ...]
    faults: tuple[str, ...]
    gains: tuple[str, ...]
    # figures that both sides have, and why they are not compared
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def regressed(self) -> bool:
        """Whether anything of it is worse."""
        return bool(self.faults) or any(figure.verdict == "slower" for figure in self.figures)


@dataclass(frozen=True)
class Comparison:
    """Two sides, held against each other.

    `tests` is how many figures the intervals are corrected for.
    """

    base: str
    head: str
    paired: bool
    tests: int
    rows: tuple[ComparedRow, ...]
    remarks: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """Whether any row is worse."""
        return any(row.regressed for row in self.rows)

    @property
    def is_hollow(self) -> bool:
        """Whether something was left out, and in no row what a save or a load takes of the disk's time could be compared."""
        compared = any(figure.unit == IN_CEILINGS for row in self.rows for figure in row.figures)
        return any(row.left_out for row in self.rows) and not compared

    def counts(self) -> dict[Verdict, int]:
        """How many figures got each verdict."""
        verdicts = [figure.verdict for row in self.rows for figure in row.figures]
        every: tuple[Verdict, ...] = ("faster", "same", "slower", "inconclusive")
        return {verdict: verdicts.count(verdict) for verdict in every}


@dataclass(frozen=True)
class _Cell:
    """A case of one side, with all that is known of it."""

    item: PlannedCase
    row: Row
    found: Measured
    # of a training, which measures none of its own, that of its run's saves of such a state
    write_ceiling_s: float | None

    @property
    def case(self) -> Case:
        """What was measured."""
        return self.item.case

    @property
    def fails_as_declared(self) -> bool:
        """Whether it failed by the fault of its framework that its adapter declares."""
        declared = self.item.expected_failure
        return (
            self.row.status == "failed"
            and declared is not None
            and re.search(declared, self.row.reason) is not None
        )

    @property
    def lost_its_race(self) -> bool:
        """Whether it failed by a fault of its framework that comes and goes."""
        return bool(self.item.race) and self.fails_as_declared

    @property
    def told(self) -> dict[str, _Told]:
        """How the row's figures are told; none where it did not go well or takes no samples."""
        figures = _FIGURES.get(type(self.row), {}) if self.row.status == "ok" else {}
        if (
            "load" in figures
            and isinstance(self.row, CostRow)
            and self.row.load_cache in ("warm", "memory")
        ):
            return figures | {"load": _LOAD_BESIDE_THE_DISK}
        return figures

    @property
    def memory_copy_s(self) -> float | None:
        """One copy of its state in memory."""
        copied_s: float | None = getattr(self.row, "memory_copy_s", None)
        return copied_s

    def costs(self) -> dict[str, Samples]:
        """The samples of the row's figures, as costs."""
        found = {name: self._samples(told) for name, told in self.told.items()}
        return {name: samples for name, samples in found.items() if samples is not None}

    def middle(self, kind: str, column: str) -> float:
        """The median of a column over the samples that `costs` are of."""
        return float(self._used(kind)[column].median())

    def _samples(self, told: _Told) -> Samples | None:
        """What the samples cost, the disturbed ones too.

        Of a process's few samples none is to spare: its median is safe from one bad one, and
        without the disturbed ones the medians of two like processes differ by more, not by less.
        """
        used = self._used(told.kind)
        if used.empty:
            return None
        return Samples(
            np.asarray(told.cost(used), dtype=np.float64),
            np.asarray(used["process"], dtype=np.int64),
        )

    def _used(self, kind: str) -> pd.DataFrame:
        frame: pd.DataFrame = getattr(self.found, kind)
        return frame[(frame["case"] == self.case.id) & ~frame["warmup"]]


@dataclass(frozen=True)
class Worth:
    """Which ratios are worth the name: beyond `different` they are slower or faster, and within `same` they are the same."""

    different: float = TOLERANCE
    same: float = TOLERANCE


@dataclass(frozen=True)
class _Measurement:
    """One figure's samples on both sides, how far its unit may have moved meanwhile, and which ratios are worth the name."""

    name: str
    unit: str
    base: Samples
    head: Samples
    drift: float
    worth: Worth


def of_runs(base: ReadRun, head: ReadRun, confidence: float = CONFIDENCE) -> Comparison:
    """Compare two runs.

    Raises Unlike where they are of unlike machines, have no row in common or arms of their own, or
    are not finished.
    """
    for run in (base, head):
        if has_arms(run):
            raise Unlike(f"run {run.name} has two arms: it is compared with itself alone")
        _require_finished(run)
    differences = comparable(base.stored.manifest, head.stored.manifest)
    if differences:
        raise Unlike(
            f"{base.name} and {head.name} were not measured alike ({', '.join(differences)}): their numbers compare nothing"
        )
    remarks = [
        *_packages_remark(_packages(base, ""), _packages(head, "")),
        *_mpi_remark(_mpirun(base), _mpirun(head)),
    ]
    sides = _Side(base.name, _cells(base, ""), base), _Side(head.name, _cells(head, ""), head)
    return _compared(*sides, False, remarks, confidence)


def of_arms(run: ReadRun, confidence: float = CONFIDENCE) -> Comparison:
    """Compare the two arms of a run. Raises Unlike where it has none or is not finished."""
    if not has_arms(run):
        raise Unlike(f"run {run.name} has no two arms: name a second run to compare it with")
    _require_finished(run)
    return between_arms(run, confidence)


def between_arms(run: ReadRun, confidence: float = CONFIDENCE) -> Comparison:
    """Compare the two arms of a run as far as they have been measured."""
    described = run.stored.header["arms"]
    names = [
        f"{arm} ({' '.join(described[arm]['asked']) or '.'})" if arm in described else arm
        for arm in ARMS
    ]
    base, head = (_Side(name, _cells(run, arm), run) for name, arm in zip(names, ARMS, strict=True))
    remarks = _packages_remark(_packages(run, ARMS[0]), _packages(run, ARMS[1]))
    return _compared(base, head, True, remarks, confidence)


def have_common_rows(base: Sequence[PlannedCase], head: Sequence[PlannedCase]) -> bool:
    """Whether two plans have a row that can be compared."""
    return not {_key(item.case) for item in base}.isdisjoint(_key(item.case) for item in head)


def has_arms(run: ReadRun) -> bool:
    """Whether a run has two arms."""
    return any(item.case.arm for item in run.stored.plan)


def is_finished(run: ReadRun) -> bool:
    """Whether nothing of a run's plan is missing: what was interrupted is neither slower nor worse."""
    return not any(_is_unfinished(row) for row in run.rows)


def _require_finished(run: ReadRun) -> None:
    if not is_finished(run):
        raise Unlike(
            f"run {run.name} was interrupted; go on with: ckptbench run --resume {run.name}"
        )


def _is_unfinished(row: Row) -> bool:
    """A process that saved and was not followed by one that loads leaves a row that is measured and not verified."""
    if isinstance(row, CostRow | TrainRow) and row.status == "ok":
        return not row.verified
    # which is skipped too where it has nothing to compare with
    return row.status == "skipped" and not isinstance(row, ParityRow)


def costs(run: ReadRun) -> list[tuple[Case, dict[str, Samples]]]:
    """Every case of a run with the samples of its figures."""
    cells = [cell for arm in ("", *ARMS) for cell in _cells(run, arm).values()]
    return [(cell.case, cell.costs()) for cell in cells]


@dataclass(frozen=True)
class _Side:
    """What is compared: its rows by what makes them the same on the other side, and the run that they are of."""

    name: str
    cells: dict[str, _Cell]
    run: ReadRun

    def lacking(self, other: _Side) -> tuple[list[_Cell], list[_Cell]]:
        """The rows that the other side lacks: those that it ought to have, and those that it was not asked for."""
        only = [cell for key, cell in self.cells.items() if key not in other.cells]
        left_out = [selections.is_left_out(cell.case, self.run, other.run) for cell in only]
        return [cell for cell, out in zip(only, left_out, strict=True) if not out], list(
            itertools.compress(only, left_out)
        )


def _compared(
    base: _Side, head: _Side, paired: bool, remarks: Sequence[str], confidence: float
) -> Comparison:
    old, new = base.cells, head.cells
    common = [key for key in old if key in new]
    if not common:
        raise Unlike(f"{base.name} and {head.name} have no row in common")
    measurements = {key: list(_measurements(old[key], new[key], paired)) for key in common}
    tests = sum(len(found) for found in measurements.values())
    level = simultaneous(confidence, tests)
    rows = [_compared_row(old[key], new[key], measurements[key], paired, level) for key in common]
    lost, not_asked_of_head = base.lacking(head)
    added, not_asked_of_base = head.lacking(base)
    rows += [_lost_row(cell) for cell in lost]
    notes = [
        *remarks,
        *_ceilings_remark(rows),
        *itertools.chain.from_iterable(_row_remarks(old[key], new[key]) for key in common),
    ]
    notes += [
        *_left_out_remark(base, head, not_asked_of_head),
        *_left_out_remark(head, base, not_asked_of_base),
    ]
    if added:
        notes.append(f"new in {head.name}: {', '.join(_name(cell) for cell in added)}")
    return Comparison(base.name, head.name, paired, tests, tuple(rows), tuple(notes))


def _left_out_remark(of: _Side, other: _Side, cells: Sequence[_Cell]) -> list[str]:
    if not cells:
        return []
    suite, others = of.run.stored.header["suite"], other.run.stored.header["suite"]
    why = (
        f"which is of suite {others}, not {suite}"
        if suite != others
        else "which was not asked for them"
    )
    return [f"{len(cells)} rows of {of.name} are not among those of {other.name}, {why}: left out"]


def _cells(run: ReadRun, arm: str) -> dict[str, _Cell]:
    """The rows of one side, by what makes them the same row on the other."""
    of_side = [
        (item, row)
        for item, row in zip(run.stored.plan, run.rows, strict=True)
        if item.case.arm == arm
    ]
    ceilings_s: dict[tuple[object, ...], list[float]] = {}
    for item, row in of_side:
        if (ceiling_s := _own_ceiling_s(row)) is not None:
            ceilings_s.setdefault(_saved(item.case), []).append(ceiling_s)
    middle_s = {saved: float(np.median(of_rows)) for saved, of_rows in ceilings_s.items()}
    return {
        _key(item.case): _Cell(
            item, row, run.measured, _own_ceiling_s(row) or middle_s.get(_saved(item.case))
        )
        for item, row in of_side
    }


def _own_ceiling_s(row: Row) -> float | None:
    return row.ceiling_write_s.value if isinstance(row, CostRow) and row.ceiling_write_s else None


def _saved(case: Case) -> tuple[object, ...]:
    """What a save of the case takes the disk's time for, by whatever method."""
    return (
        case.framework,
        case.workload,
        case.preset,
        case.precision,
        case.covers,
        case.device,
        case.world,
        case.scale,
        case.nodes,
    )


def _key(case: Case) -> str:
    return repr(sorted((name, value) for name, value in asdict(case).items() if name not in _SIDES))


def _lost_row(cell: _Cell) -> ComparedRow:
    return ComparedRow(_group(cell), _name(cell), (cell.case.id,), (), ("the row is gone",), ())


def _compared_row(
    old: _Cell, new: _Cell, measurements: Sequence[_Measurement], paired: bool, level: float
) -> ComparedRow:
    figures = tuple(_tested(measurement, paired, level) for measurement in measurements)
    left_out = _left_out(old, new)
    changes = [] if _by_chance(old, new) else list(_changes_of(old, new))
    faults = tuple(text for text, worse in changes if worse)
    gains = tuple(text for text, worse in changes if not worse)
    return ComparedRow(
        _group(new), _name(new), (old.case.id, new.case.id), figures, faults, gains, left_out
    )


def _by_chance(old: _Cell, new: _Cell) -> bool:
    """Whether a side failed by a fault that comes and goes, and none otherwise."""
    failed = [cell for cell in (old, new) if cell.row.status == "failed"]
    return bool(failed) and all(cell.lost_its_race for cell in failed)


def _left_out(old: _Cell, new: _Cell) -> dict[str, str]:
    """The figures that are not compared although both sides may have them, and why."""
    in_ceilings = [
        name for name, told in new.told.items() if name in old.told and told.unit == IN_CEILINGS
    ]
    reasons = {name: _other_ceilings(name, old, new) for name in in_ceilings}
    found = {name: reason for name, reason in reasons.items() if reason}
    if isinstance(old.row, CostRow) and isinstance(new.row, CostRow) and _caches_differ(old, new):
        found["load"] = f"loads were {old.row.load_cache} and are {new.row.load_cache}"
    return found


def _caches_differ(old: _Cell, new: _Cell) -> bool:
    """Whether the loads of the two sides were not from the same place: what the kernel still held is read without the disk."""
    states = {cell.row.load_cache for cell in (old, new) if isinstance(cell.row, CostRow)}
    return len(states - {None}) > 1


def _row_remarks(old: _Cell, new: _Cell) -> Iterator[str]:
    """What one side does not tell of a row, so that nothing is said of it."""
    if _by_chance(old, new):
        yield f"{_name(new)}: fails now and then by a race in its framework, so the sides are not compared"
    if not (isinstance(old.row, CostRow) and isinstance(new.row, CostRow)):
        return
    if _caches_differ(old, new):
        yield f"{_name(new)}: loads were {old.row.load_cache} and are {new.row.load_cache}, so they are not compared"
    if new.row.durability == "unknown" != old.row.durability:
        yield f"{_name(new)}: what survives a power loss is not known any more ({new.row.durability_reason})"


def _ceilings_remark(rows: Iterable[ComparedRow]) -> list[str]:
    """What is not compared because the ceilings of the two sides are of unlike speeds by themselves."""
    advice = {
        _OTHER_REQUESTS: "each run found its own the fastest. Runs of like size in a results folder share them, and sides of ab do",
        _UNSETTLED: "measure that side anew",
    }
    names: dict[str, list[str]] = {reason: [] for reason in advice}
    for name, reason in dict.fromkeys(pair for row in rows for pair in row.left_out.items()):
        if reason in names:
            names[reason].append(name)
    return [
        f"{' and '.join(found)}: not compared, for {reason}: {advice[reason]}"
        for reason, found in names.items()
        if found
    ]


def _other_ceilings(figure: str, old: _Cell, new: _Cell) -> str:
    """Why a figure in units of the ceiling has other units on the two sides; nothing where it has the same."""
    if figure not in _REQUESTS:
        return ""
    old_runs, new_runs = old.found.calibrations, new.found.calibrations
    if old_runs and new_runs and _REQUESTS[figure](old_runs[0]) != _REQUESTS[figure](new_runs[0]):
        return _OTHER_REQUESTS
    settled = [_settled(figure, cell) for cell in (old, new)]
    return _UNSETTLED if all(settled) and settled[0] != settled[1] else ""


def has_settled_ceilings(run: ReadRun) -> bool:
    """Whether all ceilings of a run were taken as those of now are."""
    samples = (run.measured.saves, run.measured.loads)
    return all(bool(frame["settled"].all()) for frame in samples if len(frame))


def _settled(figure: str, cell: _Cell) -> set[bool]:
    """How the ceilings beside a cell's samples were taken."""
    samples: pd.DataFrame = getattr(cell.found, _FIGURES[CostRow][figure].kind)
    return set(samples["settled"][samples["case"] == cell.case.id]) if len(samples) else set()


def _tested(measurement: _Measurement, paired: bool, level: float) -> Figure:
    base, head = measurement.base, measurement.head
    ratio = (
        ratios.of_pairs(base, head, level)
        if paired
        else ratios.of_groups(base, head, level, measurement.drift)
    )
    medians = float(np.median(base.values)), float(np.median(head.values))
    if ratio is None:  # no process number was measured on both sides
        ratio = Estimate(medians[1] / medians[0], 0.0, math.inf)
    return Figure(
        measurement.name, measurement.unit, *medians, ratio, verdict(ratio, measurement.worth)
    )


def verdict(ratio: Estimate, worth: Worth = Worth()) -> Verdict:
    """What a ratio of costs with its corrected interval says."""
    if ratio.low > 1.0 and ratio.value > worth.different:
        return "slower"
    if ratio.high < 1.0 and ratio.value < 1.0 / worth.different:
        return "faster"
    return "same" if ratio.low > 1.0 / worth.same and ratio.high < worth.same else "inconclusive"


def _measurements(old: _Cell, new: _Cell, paired: bool) -> Iterator[_Measurement]:
    """What both sides have measured of a row."""
    base, head = old.costs(), new.costs()
    left_out = _left_out(old, new)
    for name in base:
        if name in head and name not in left_out:
            unit = new.told[name].unit
            moved = 0.0 if paired else _drift(old, new, name, base[name])
            yield _Measurement(name, unit, base[name], head[name], moved, _worth(old, new))


def _worth(old: _Cell, new: _Cell) -> Worth:
    """Which ratios are worth the name, of training by what they make of its overhead."""
    if not isinstance(old.row, TrainRow):
        return Worth()
    share, seconds = (
        [cell.middle("trainings", column) for cell in (old, new)]
        for column in ("overhead_share", "overhead_s")
    )
    known_share = max(0.0, share[0])
    of_overhead = 1.0 + max(OVERHEAD_FLOOR, (TOLERANCE - 1.0) * known_share) / (1.0 + known_share)
    in_share, in_seconds = share[1] - share[0], seconds[1] - seconds[0]
    grew_together = in_share * in_seconds > 0 and abs(in_seconds) > (TOLERANCE - 1.0) * abs(
        seconds[0]
    )
    return Worth(of_overhead if grew_together else math.inf, of_overhead)


def _drift(old: _Cell, new: _Cell, name: str, base: Samples) -> float:
    """The logarithm of how far a figure may be off because the machine was another one by the time of the second run.

    Its own controls tell. A stall and the overhead of a training move as the farther of two does,
    the copy in memory and the write ceiling. Times in ceilings have the disk's change in their
    unit: of these, what is not the disk's moves as the copy does, and so do loads that the disk has
    no part in.
    """
    copied = _moved(old.memory_copy_s, new.memory_copy_s)
    farther = max(copied, _moved(old.write_ceiling_s, new.write_ceiling_s))
    if isinstance(old.row, TrainRow):
        overhead = max(0.0, old.row.overhead_share.value) if old.row.overhead_share else 0.0
        return _in_part(farther, overhead / (1.0 + overhead))
    if name == "stall":
        return farther
    in_ceilings = old.told[name].unit == IN_CEILINGS
    return (
        _in_part(copied, _share_beside_the_disk(float(np.median(base.values))))
        if in_ceilings
        else copied
    )


def _share_beside_the_disk(in_ceilings: float) -> float:
    """Which share of a time is not explained by the disk's: what exceeds the ceiling, or falls short of it, as out of a cache."""
    return min(1.0, abs(1.0 - 1.0 / in_ceilings))


def _in_part(moved: float, share: float) -> float:
    """The logarithm of how much longer a time takes of which that share is as much longer as a control."""
    return math.log1p(share * math.expm1(moved))


def _moved(before: float | None, after: float | None) -> float:
    return abs(math.log(after / before)) if before and after else 0.0


def _changes(old: Row, new: Row) -> Iterator[tuple[str, bool]]:
    """What else is different, as sentences, and whether it is worse."""
    if old.status == "ok" and new.status != "ok":
        yield f"{new.status} in {new.phase or 'the run'}: {new.reason}", True
        return
    if old.status != "ok":
        if new.status == "ok":
            yield f"was {old.status} and is measured now", False
        return
    yield from _rank_change("coverage", old.covers, new.covers, _COVERAGE)
    yield from _flag_change(
        "verified", getattr(old, "verified", None), getattr(new, "verified", None)
    )
    match old, new:
        case (CostRow(), CostRow()):
            yield from _rank_change(
                "safety after a power loss", old.durability, new.durability, _DURABILITY
            )
            yield from _rank_change(
                "safety of the data after a power loss",
                old.data_durability,
                new.data_durability,
                _DURABILITY,
            )
            yield from _bytes_change(old.file_bytes, new.file_bytes)
        case (TrainRow(), TrainRow()):
            yield from _bytes_change(old.file_bytes, new.file_bytes)
        case (SizesRow(), SizesRow()):
            yield from _bytes_change(old.file_bytes, new.file_bytes)
            yield from _bytes_change(old.fresh_file_bytes, new.fresh_file_bytes, "of a fresh state")
        case (ResumeRow(), ResumeRow()):
            yield from _flag_change("bitwise", old.bitwise, new.bitwise)
            yield from _flag_change("restored", old.restored, new.restored)


def _changes_of(old: _Cell, new: _Cell) -> Iterator[tuple[str, bool]]:
    yield from _changes(old.row, new.row)
    yield from _failure_change(old, new)
    yield from _own_values_change(old.case, new.case)


def _failure_change(old: _Cell, new: _Cell) -> Iterator[tuple[str, bool]]:
    """Whether what failed as its adapter declares fails otherwise now.

    Reasons that nobody declares may differ from run to run.
    """
    if old.fails_as_declared and new.row.status == "failed" and not new.fails_as_declared:
        yield (
            f"fails otherwise than its adapter declares, in {new.row.phase or 'the run'}: {new.row.reason}",
            True,
        )


def _own_values_change(old: Case, new: Case) -> Iterator[tuple[str, bool]]:
    """Whether what each rank has of its own is in the checkpoint: a load is not asked for what the method does not declare."""
    if old.world > 1 and old.rank_local != new.rank_local:
        every = "every rank's own values"
        yield (
            (f"covered {every} and covers one rank's alone now", True)
            if old.rank_local
            else (f"covers {every} now", False)
        )


def _rank_change(what: str, old: str, new: str, order: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """A value that lost or won places in an order, worst first; values outside of it, such as "unknown", compare nothing."""
    if old in order and new in order and old != new:
        yield f"{what} was {old!r} and is {new!r}", order.index(new) < order.index(old)


def _flag_change(what: str, old: bool | None, new: bool | None) -> Iterator[tuple[str, bool]]:
    if old and not new:
        yield f"was {what} and is not any more", True
    elif old is False and new:
        yield f"is {what} now", False


def _bytes_change(old: int | None, new: int | None, of: str = "") -> Iterator[tuple[str, bool]]:
    if old and new and 1000 * abs(new - old) > BYTES_PER_THOUSAND * old:
        yield (
            f"{f'files {of}'.strip()} had {old} bytes and have {new} ({100 * (new / old - 1):+.2f} %)",
            new > old,
        )


def _packages(run: ReadRun, arm: str) -> dict[tuple[str, str], str]:
    """The versions in a side's environments by framework and package; the job of an arm's worker ends with the arm's name."""
    return {
        (worker.framework, package): version
        for worker in run.measured.workers
        if worker.job.endswith(arm)
        for package, version in {**worker.packages, "python": worker.python}.items()
    }


def _packages_remark(
    old: Mapping[tuple[str, str], str], new: Mapping[tuple[str, str], str]
) -> list[str]:
    frameworks = {framework for framework, _ in old} & {framework for framework, _ in new}
    changed = [
        key
        for key in sorted(old.keys() | new.keys())
        if key[0] in frameworks and old.get(key) != new.get(key)
    ]
    named = [f"{key[1]} {old.get(key, _ABSENT)} to {new.get(key, _ABSENT)}" for key in changed]
    return [f"packages: {', '.join(dict.fromkeys(named))}"] if named else []


def _mpirun(run: ReadRun) -> str:
    """What has started a run's ranks, where there are several."""
    if all(item.case.world == 1 for item in run.stored.plan):
        return ""
    return (run.stored.header.get("settings") or {}).get("mpirun") or "the environment's"


def _mpi_remark(old: str, new: str) -> list[str]:
    return [f"mpirun: {old} to {new}"] if old and new and old != new else []


def _group(cell: _Cell) -> str:
    experiment = "" if cell.case.experiment == "cost" else f"{cell.case.experiment}: "
    return experiment + group_title(cell.row).removesuffix(f", arm {cell.case.arm}")


def _name(cell: _Cell) -> str:
    case = cell.case
    details = {
        case.strategy: case.strategy,
        f"every {case.every} steps": case.every,
        f"on {case.world} ranks": case.world > 1,
        f"for {case.load_world} ranks": case.load_world,
        f"without {case.ablated}": case.ablated,
    }
    return " ".join(
        [
            f"{case.framework} {case.method}".strip(),
            *(text for text, said in details.items() if said),
        ]
    )
