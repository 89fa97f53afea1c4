"""Which rows a figure is of: one of each case of comparable runs, what is missing, and what a caption says of their origin."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from harness.analysis.row import Row, listed, printable
from harness.analysis.runs import ReadRun
from harness.analysis.statistics import Estimate
from harness.run.manifest import Manifest, comparable
from harness.run.plan import PlannedCase

INTERVALS = "Medians with 95 % bootstrap intervals clustered by process"
_REASON_LENGTH = 220
_TRACEBACK = re.compile(
    r'(rank \d+: )?.*File "[^"]*", line \d+.*?\b((?:\w+\.)*\w*(?:Error|Exception): .*)', re.DOTALL
)
_ABLATED = {
    "optimizer": "optimizer",
    "rng": "RNG",
    "buffer": "batch-norm statistics",
    "position": "position",
}

AnyRow = TypeVar("AnyRow", bound=Row)
OtherRow = TypeVar("OtherRow", bound=Row)
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
State = tuple[str, str, str, str]  # workload, preset, precision, device


@dataclass(frozen=True)
class Cell(Generic[AnyRow]):
    """A row, its place in a plan, and the run that measured it."""

    row: AnyRow
    planned: PlannedCase
    run: ReadRun

    @property
    def state(self) -> State:
        """What was saved, and from where."""
        return (self.row.workload, self.row.preset, self.row.precision, self.row.device)

    @property
    def panel(self) -> Hashable:
        """What one panel shows side by side: one framework's rows of a state, on as many ranks and as often."""
        return (self.row.framework, self.state, self.row.world, self.row.every)


@dataclass(frozen=True)
class Pool:
    """The cells of runs that may be compared, oldest run first, and the machine of the newest of these runs."""

    cells: tuple[Cell[Row], ...]
    manifest: Manifest

    def every(self, kind: type[OtherRow]) -> list[Cell[OtherRow]]:
        """The cells whose rows are of one kind: as many of a case as runs have it."""
        return [
            Cell(cell.row, cell.planned, cell.run)
            for cell in self.cells
            if isinstance(cell.row, kind)
        ]

    def of(self, kind: type[OtherRow]) -> list[Cell[OtherRow]]:
        """The cells whose rows are of one kind, each case once."""
        return chosen(self.every(kind), lambda cell: cell.panel)


def pools(runs: Sequence[ReadRun]) -> list[Pool]:
    """The runs by what may be compared."""
    groups: list[list[ReadRun]] = []
    for run in sorted(runs, key=lambda run: run.name):
        alike = (
            group
            for group in groups
            if not comparable(group[0].stored.manifest, run.stored.manifest)
        )
        group = next(alike, None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    return [
        Pool(
            tuple(
                Cell(row, item, run)
                for run in group
                for item, row in zip(run.stored.plan, run.rows, strict=True)
            ),
            group[-1].stored.manifest,
        )
        for group in groups
    ]


def fullest(runs: Sequence[ReadRun], kind: type[AnyRow]) -> Pool:
    """Of the runs that may be compared those that tell most rows of a kind, the newest of several. There must be a run."""
    found = pools(runs)
    return max(enumerate(found), key=lambda placed: (len(placed[1].of(kind)), placed[0]))[1]


def is_measured(cell: Cell[AnyRow]) -> bool:
    """Whether the run tried the case to its end."""
    return cell.row.status in ("ok", "failed")


def chosen(
    cells: Iterable[Cell[AnyRow]],
    panel: Callable[[Cell[AnyRow]], Hashable],
    tells: Callable[[Cell[AnyRow]], bool] = is_measured,
) -> list[Cell[AnyRow]]:
    """Each case once: of the run that `tells` most of the panel, the newest of several; what it does not tell, of the next."""
    found: list[Cell[AnyRow]] = []
    for members in grouped(cells, panel).values():
        told = Counter(cell.run.name for cell in members if tells(cell))

        def rank(cell: Cell[AnyRow], told: Counter[str] = told) -> tuple[bool, bool, int, str]:
            return (tells(cell), cell.row.status != "skipped", told[cell.run.name], cell.run.name)

        found += [
            max(alike, key=rank) for alike in grouped(members, lambda cell: _key(cell.row)).values()
        ]
    return found


def of_one_run(cells: Iterable[Cell[AnyRow]]) -> list[Cell[AnyRow]]:
    """Each case of a panel once, all of the run that measured most of them, the newest of several.

    For times: those of two runs are taken at different moments, and are not held against each
    other. See `left_out`.
    """
    found: list[Cell[AnyRow]] = []
    for members in grouped(cells, lambda cell: cell.panel).values():
        by_run = grouped(members, lambda cell: cell.run.name)
        fullest = max(
            by_run, key=lambda name: (sum(is_measured(cell) for cell in by_run[name]), name)
        )
        found += chosen(by_run[fullest], lambda cell: cell.panel)
    return found


def left_out(cells: Iterable[Cell[AnyRow]], shown: Iterable[Cell[AnyRow]]) -> tuple[str, ...]:
    """A sentence for every case that another run measured than those `shown`."""
    known = {_key(cell.row) for cell in shown}
    others = [cell for cell in cells if cell.row.status == "ok" and _key(cell.row) not in known]
    return tuple(
        dict.fromkeys(
            lack(
                cell.row,
                f"not drawn beside these, for run {cell.run.name} measured it at another moment",
            )
            for cell in others
        )
    )


def of_more_ranks(cells: Iterable[Cell[AnyRow]], world: int) -> tuple[str, ...]:
    """A sentence for every row that a figure of `world` ranks has nothing of, since only more ranks have measured the method."""
    measured = list(cells)
    drawn = {(cell.row.framework, label(cell.row)) for cell in measured if cell.row.world == world}
    others = [cell.row for cell in measured if (cell.row.framework, label(cell.row)) not in drawn]
    ranks = "one rank" if world == 1 else f"{world} ranks"
    return tuple(
        dict.fromkeys(
            lack(row, f"not drawn beside these, for none measured it on {ranks}") for row in others
        )
    )


def _key(row: Row) -> str:
    """What the case is; a state that has not grown yet is the state itself."""
    parts = (
        row.experiment,
        row.framework,
        row.method,
        row.workload,
        row.preset,
        row.precision,
        row.device,
        row.strategy,
    )
    return "/".join(
        [
            *parts,
            row.ablated,
            row.arm,
            *map(str, (row.world, row.load_world, row.every, max(row.scale, 1))),
        ]
    )


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items under what `key` gives for them, in order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def state_title(state: State) -> str:
    """A state in words."""
    workload, preset, precision, device = state
    return f"{workload} {preset}{'' if precision == 'float32' else f', {precision}'} on {device}"


def slug(*parts: str) -> str:
    """Parts of a file's name."""
    return "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts if part)


def label(row: Row) -> str:
    """A method as figures call it: with what sets this row apart from others of the method."""
    covers = "" if row.covers == "full" or not row.method else f" [{row.covers} only]"
    ablated = f" without {_ABLATED[row.ablated]}" if row.ablated else ""
    method = printable(row.method) or "no checkpoint"
    return f"{method}{' (default)' if row.default else ''}{ablated}{covers}{f' ({row.arm})' if row.arm else ''}"


def number(row: Row, name: str) -> Estimate | None:
    """A row's estimate of that name; None where there is none, or where the case was not measured to its end."""
    found: Estimate | None = getattr(row, name) if row.status == "ok" else None
    return found


def is_single(row: Row) -> bool:
    """Whether the row's numbers are of one sample, which has no interval."""
    return getattr(row, "samples", 0) == 1


def missing(cells: Iterable[Cell[AnyRow]]) -> tuple[str, ...]:
    """A sentence for every cell without a number: which and why."""
    return tuple(
        dict.fromkeys(lack(cell.row, reason(cell.row)) for cell in cells if cell.row.status != "ok")
    )


def lack(row: Row, why: str) -> str:
    """A sentence: which cell has nothing to show, and why."""
    ranks = "" if row.world == 1 else f" on {row.world} ranks"
    strategy = f" ({row.strategy})" if row.strategy else ""
    state = state_title((row.workload, row.preset, row.precision, row.device))
    return f"{row.framework} {label(row)}{strategy}, {state}{ranks}: {why.rstrip('.!')}."


def reason(row: Row, length: int = _REASON_LENGTH) -> str:
    """Why a row has no number, in at most `length` characters."""
    phase = f" in {row.phase}" if row.status == "failed" and row.phase else ""
    return textwrap.shorten(f"{row.status}{phase}: {_cause(row.reason)}", length, placeholder=" …")


def _cause(text: str) -> str:
    """What a reason comes down to: of a quoted traceback the error at its end, for all before it only says where."""
    found = _TRACEBACK.match(text)
    return f"{found[1] or ''}{found[2]}" if found else text


def caption(
    what: str, intervals: str, cells: Sequence[Cell[AnyRow]], pool: Pool, counted: bool = True
) -> str:
    """What a figure shows, its kind of interval, its sample counts (where it is `counted`), the machine, and each row's run."""
    return f"{what} {footer(intervals, cells if counted else [], pool)} {_origin(cells)}"


def footer(intervals: str, cells: Sequence[Cell[AnyRow]], pool: Pool) -> str:
    """What a figure rests on, short enough to stand in it."""
    single = intervals == INTERVALS and any(
        cell.row.status == "ok" and is_single(cell.row) for cell in cells
    )
    return f"{intervals}{_counts(cells)}{' (where n = 1 there is no interval)' if single else ''}. {_machine(pool.manifest)}."


def hollow(cells: Iterable[Cell[AnyRow]]) -> str:
    """What a guide says where single samples are drawn hollow; empty where there are none."""
    return (
        " Hollow: one sample, which has no interval."
        if any(cell.row.status == "ok" and is_single(cell.row) for cell in cells)
        else ""
    )


def _counts(cells: Sequence[Cell[AnyRow]]) -> str:
    counts = [
        samples
        for cell in cells
        if cell.row.status == "ok" and (samples := getattr(cell.row, "samples", 0))
    ]
    if not counts:
        return ""
    few, many = min(counts), max(counts)
    return f", n = {few}" if few == many else f", n = {few} to {many}"


def _machine(manifest: Manifest) -> str:
    device = f" on {manifest.device}" if manifest.device else ""
    virtual = "virtual machine" if manifest.hypervisor else "machine"
    gpus = f", {listed(manifest.gpus)}" if manifest.gpus else ""
    return (
        f"Measured on {virtual} {manifest.machine}: {manifest.logical_cores} cores ({manifest.cpu_model}), "
        f"{manifest.memory_bytes / 2**30:.0f} GiB of memory{gpus}, {manifest.filesystem}{device}"
    )


def _origin(cells: Sequence[Cell[AnyRow]]) -> str:
    """Which run has which rows; a framework whose rows are all of one run is named alone."""
    by_run = grouped(cells, lambda cell: cell.run.name)
    if len(by_run) == 1:
        return f"Run {next(iter(by_run))}."
    homes = {
        name: {cell.run.name for cell in own}
        for name, own in grouped(cells, lambda cell: cell.row.framework).items()
    }
    return f"Runs: {'; '.join(f'{name} ({_rows_of(own, homes)})' for name, own in by_run.items())}."


def _rows_of(cells: Sequence[Cell[AnyRow]], homes: dict[str, set[str]]) -> str:
    parts = []
    for framework, own in grouped(cells, lambda cell: cell.row.framework).items():
        methods = (
            ""
            if len(homes[framework]) == 1
            else f" {listed([cell.row.method or 'no checkpoint' for cell in own])}"
        )
        parts.append(f"{framework}{methods}")
    return ", ".join(parts)
