"""The plan of a run: its cases, how often to measure each, its settings and its selection."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from harness import experiments
from harness.run.validation import require_known
from harness.wire.case import SUMMARY_ABOVE, Case, OwnModel, case_from_json, known_fields

_FIRST_FLOOR = "raw"
"""The only floor of the runs whose plans do not say which frameworks are one."""

AB = "ab-"
"""The beginning of the suite's name in a run of two arms."""


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
    # checkpoints of one state differ in size; None in older plans, which do not say
    size_varies: bool | None = None
    copies: int = 1  # of the state that one checkpoint holds
    checked_saves: int = 1  # timed saves of a process that are loaded and verified too
    one_writer: bool = False  # one rank writes what all ranks will load
    files: bool = True  # a checkpoint has files
    traced: bool = True  # one save is watched at the system calls, where the experiment has that
    floor: bool = False  # its framework is none, but plain files that the others are held against
    has_lines: bool = True  # `list methods --how` prints what to write in a training script

    def fails_as_declared(self, status: str, reason: str) -> bool:
        """Return whether a row failed by the fault of its framework that its adapter declares."""
        if status != "failed" or self.expected_failure is None:
            return False
        return re.search(self.expected_failure, reason) is not None

    def is_expected(self, status: str, reason: str) -> bool:
        """Return whether a row is as its adapter declares.

        A method declared as broken must fail for the declared reason. Succeeding is unexpected too,
        but for a fault that comes and goes.
        """
        if status == "unsupported" or (self.race and status == "ok"):
            return True
        if self.expected_failure is not None:
            return self.fails_as_declared(status, reason)
        return status == "ok"

    def to_json(self) -> dict[str, Any]:
        """Return the planned case as the plan file has it."""
        return {"id": self.case.id, **asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the planned case that `to_json` gave, in this version or another.

        Raise ValueError where this version cannot read a case of its kind.
        """
        case = case_from_json(values["case"])
        _require_readable(case, values["expected_failure"])
        # The records name their case by the identifier in the plan file. A later version may have
        # computed it from fields that are unknown here, and the first versions left it out.
        vars(case)["id"] = str(values.get("id", case.id))
        floor = values.get("floor", case.framework == _FIRST_FLOOR)
        return cls(**known_fields(cls, values) | {"case": case, "floor": floor})


def _require_readable(case: Case, expected_failure: str | None) -> None:
    """Raise ValueError where the rows of a case could not be made."""
    require_known("experiment", case.experiment, experiments.names())
    experiment = experiments.experiment(case.experiment)
    values = experiment.settings(case)
    for key, suite_key in experiment.suite_keys.items():
        wanted = suite_key.why_not(values[key])
        if wanted:
            raise ValueError(f"{key} is {wanted}, not {values[key]!r}")
    if case.world < 1:
        raise ValueError(f"a world has at least 1 rank, not {case.world}")
    try:
        re.compile(expected_failure or "")
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"expected_failure is no regular expression ({error})") from error


@dataclass(frozen=True)
class Settings:
    """The settings of a whole run. A resumed run goes on with them, also in a Slurm job.

    In a world of more than `summary_above` ranks, one record stands for the samples of all.
    `mpirun` is that of the system's own Open MPI, where the user has named one. A worker without
    progress for `timeout_s` is ended; None leaves the limit to each job. `site` is a file with the
    options for Slurm, where it is not the user's usual one. `adapters` are folders with adapters
    from outside this project that the user has named. `without_guards` names guards that are
    switched off, which only tests do.
    """

    summary_above: int = SUMMARY_ABOVE
    mpirun: str | None = None
    timeout_s: float | None = None
    site: str | None = None
    without_guards: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ValueError(f"a worker cannot be given {self.timeout_s:g} s")


@dataclass(frozen=True)
class Selection:
    """The part of a suite that a run was asked for, and the values that replace the suite's.

    None means that nothing was named there, and the suite decides. `options` are those of methods.
    """

    frameworks: tuple[str, ...] | None = None
    workloads: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    worlds: tuple[int, ...] | None = None
    strategies: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    launchers: tuple[str, ...] | None = None
    nodes: tuple[int, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        frameworks: Sequence[str],
        *,
        workloads: Sequence[str] | None = None,
        model: OwnModel | None = None,
        methods: Sequence[str] | None = None,
        worlds: Sequence[int] | None = None,
        strategies: Sequence[str] | None = None,
        device: str = "cpu",
        launcher: str | None = None,
        nodes: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the selection of a command line, where an empty list names nothing."""
        return cls(
            frameworks=tuple(frameworks),
            workloads=(model.workload,) if model else tuple(workloads or ()) or None,
            methods=tuple(methods or ()) or None,
            worlds=tuple(worlds or ()) or None,
            strategies=tuple(strategies or ()) or None,
            devices=(device,),
            launchers=(launcher,) if launcher else None,
            nodes=(nodes,) if nodes else None,
            options=dict(options or {}),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the selection as a run's header has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the selection that `to_json` gave, in this version or another."""
        lists_as_tuples: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in known_fields(cls, values).items()
        }
        return cls(**lists_as_tuples)
