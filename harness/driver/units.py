"""Cases that share one worker process, and the disk space that they take."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import workloads
from harness import experiments
from harness.run.plan import PlannedCase
from harness.wire.case import Case
from harness.wire.experiment import Experiment

CALIBRATION_BYTES_AT_MOST = 64 << 20  # a sweep never has more in flight; 256 MiB took 21 s
_KEPT_BYTES_AT_MOST = 8 << 30


@dataclass(frozen=True)
class Unit:
    """Cases that share one worker process: one experiment, environment, device, world."""

    items: tuple[PlannedCase, ...]

    @property
    def case(self) -> Case:
        """Any of the cases, for what they share."""
        return self.items[0].case

    @property
    def experiment(self) -> Experiment:
        """The experiment that all cases belong to."""
        return experiments.experiment(self.case.experiment)

    @property
    def processes(self) -> int:
        """The number of process slots that the cases want."""
        return max(item.processes for item in self.items)


def title(items: Sequence[PlannedCase]) -> str:
    """Return cases of one unit in a few words, such as "pytorch torch-save on 2 ranks"."""
    case = items[0].case
    words = [case.framework]
    methods = sorted({item.case.method for item in items if item.case.method})
    if methods:
        words.append(methods[0] if len(methods) == 1 else f"{len(methods)} methods")
    if case.arm:
        words.append(f"of arm {case.arm}")
    if case.world > 1:
        words.append(f"on {case.world} ranks")
    return " ".join(words)


def group(plan: Sequence[PlannedCase]) -> list[Unit]:
    """Put cases that may share a process together, in the plan's order.

    A unit holds as many cases as their kept checkpoints allow. The units of two arms follow one
    another, because what lies between them would be in their difference.
    """
    groups: dict[tuple[object, ...], dict[str, list[PlannedCase]]] = {}
    for item in plan:
        by_arm = groups.setdefault(_shared_process(item), {})
        by_arm.setdefault(item.case.arm, []).append(item)
    units: list[Unit] = []
    for by_arm in groups.values():
        units_of_arms = [_split(items) for items in by_arm.values()]
        for side_by_side in itertools.zip_longest(*units_of_arms):
            units += [unit for unit in side_by_side if unit is not None]
    return units


def state_bytes(case: Case) -> int:
    """Return the bytes of one rank's state, without the few that a framework adds."""
    if case.model is not None:
        return case.model.state_bytes
    return _state_bytes(case.workload, case.preset, case.precision, case.scale)


def needed_disk_bytes(plan: Sequence[PlannedCase]) -> int:
    """Return the bytes that a run takes at its fullest.

    They are a unit's kept checkpoints, the states at work beside them, and the ceilings' two files.
    """
    kept = max(sum(map(_kept_bytes, unit.items)) for unit in group(plan))
    at_work = max(_bytes_at_work(item) for item in plan)
    return (kept + at_work) * 11 // 10 + 2 * CALIBRATION_BYTES_AT_MOST


def _shared_process(item: PlannedCase) -> tuple[object, ...]:
    """Return what cases of one process have in common.

    A case with a process of its own shares with nobody, not even with itself at another interval,
    because its method may own what a process has only once.
    """
    case = item.case
    alone = _key(case) if item.own_process else ""
    ranks_of_stages = experiments.experiment(case.experiment).ranks(case)
    ranks = (case.world, ranks_of_stages, case.strategy, case.launcher)
    return (case.experiment, case.framework, case.environment, case.device, ranks, alone)


def _key(case: Case) -> str:
    """Return a key that is the same for a case on both sides of a comparison."""
    return replace(case, arm="", options={}, framework_path="", method_path="").id


@functools.cache
def _state_bytes(workload: str, preset: str, precision: str, scale: int) -> int:
    return workloads.load(workload, preset, precision, scale=scale or 1).state_bytes


def _checkpoint_bytes(item: PlannedCase) -> int:
    return item.copies * state_bytes(item.case)


def _kept_bytes(item: PlannedCase) -> int:
    """Return the bytes of the checkpoints that wait for the loading process."""
    return (1 + item.checked_saves) * _checkpoint_bytes(item)


def _bytes_at_work(item: PlannedCase) -> int:
    experiment = experiments.experiment(item.case.experiment)
    return experiment.states_at_work(item.case) * _checkpoint_bytes(item)


def _split(items: Sequence[PlannedCase]) -> Iterator[Unit]:
    """Yield units whose kept checkpoints stay below a limit."""
    together: list[PlannedCase] = []
    for item in items:
        kept_bytes = sum(_kept_bytes(member) for member in [*together, item])
        if together and kept_bytes > _KEPT_BYTES_AT_MOST:
            yield Unit(tuple(together))
            together = []
        together.append(item)
    yield Unit(tuple(together))
