"""The reference runs: which of them a table shows, and the list of all."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from harness.analysis.runs import ReadRun
from harness.analysis.runs import reference_runs as read_reference_runs
from harness.docs.markdown import table
from harness.driver import catalog
from harness.wire.records import WorkerRecord

NOT_STORED = "No reference run of this suite is stored yet."
S_A_MINUTE = 60.0
_ABSENT = "not installed"  # how a worker reports such a package
_ALL_METHODS = "bench"  # the suite that every framework has a run of
# A run with another option, state or model is not the suite as it is either.
_NARROWING = frozenset(
    {
        "--device",
        "--method",
        "--model",
        "--option",
        "--states",
        "--strategy",
        "--workload",
        "--world",
    }
)


@functools.cache
def runs() -> tuple[ReadRun, ...]:
    """Return all reference runs, oldest first."""
    return tuple(read_reference_runs())


def full_runs(suite: str) -> list[ReadRun]:
    """Return the reference runs of a suite as it is, not narrowed to a part of it."""
    return [run for run in runs() if run.stored.header["suite"] == suite and not is_narrowed(run)]


def full_run(suite: str, framework: str) -> ReadRun:
    """Return the newest full run of a suite that holds a framework. Raises LookupError."""
    candidates = [run for run in full_runs(suite) if framework in _frameworks(run)]
    if not candidates:
        raise LookupError(f"no reference run of suite {suite} holds {framework}")
    return max(candidates, key=_name)


def newest_full_runs(suite: str) -> list[ReadRun]:
    """Return the newest full run of each framework, each run once, in the order of `frameworks`."""
    newest = [full_run(suite, name) for name in frameworks(suite)]
    return list({run.name: run for run in newest}.values())


def gpu_runs() -> list[ReadRun]:
    """Return the reference runs on a GPU, oldest first."""
    return [run for run in runs() if any(row.device == "cuda" for row in run.rows)]


def newest_full_run(suite: str) -> ReadRun:
    """Return the newest full run of a suite. Raises ValueError where there is none."""
    return max(full_runs(suite), key=_name)


@functools.cache
def frameworks(suite: str) -> tuple[str, ...]:
    """Return the frameworks with a full run of a suite, without the floor.

    They are in the order in which the suite of all methods first measured them.
    """
    measured = set().union(*(_frameworks(run) for run in full_runs(suite)))
    in_order: list[str] = []
    for run in full_runs(_ALL_METHODS):
        in_order += sorted(_frameworks(run))
    shown = dict.fromkeys(name for name in in_order if name in measured - catalog.floors())
    return tuple(shown)


def full_runs_of_one_machine(suite: str, frameworks: Sequence[str]) -> list[ReadRun]:
    """Return the newest full run of each framework on the machine that ran the suite last."""
    machine = _machine(newest_full_run(suite))
    newest: dict[str, ReadRun] = {}
    for run in sorted(full_runs(suite), key=_name):
        for framework in _frameworks(run) & set(frameworks):
            if _machine(run) == machine:
                newest[framework] = run
    by_name = {run.name: run for run in newest.values()}
    return [by_name[name] for name in sorted(by_name)]


def most_sampled(suite: str, framework: str, method: str) -> ReadRun:
    """Return the run of a suite that took most samples of a method, narrowed runs included.

    Of two machines, the newer run's counts. Raises LookupError.
    """
    machine = _machine(full_run(suite, framework))
    of_machine = [run for run in runs() if _machine(run) == machine]
    counts = {}
    for run in of_machine:
        if run.stored.header["suite"] == suite and framework in _frameworks(run):
            counts[run.name] = max(_samples(run, method), default=0)
    most = max(counts, key=lambda name: counts[name])
    return next(run for run in of_machine if run.name == most)


def is_narrowed(run: ReadRun) -> bool:
    """Return whether the command of a run asked for a part of its suite."""
    return bool(narrowing(run))


def narrowing(run: ReadRun) -> tuple[tuple[str, str], ...]:
    """Return the options by which a run's command asked for a part of its suite."""
    command = run.stored.header["command"]
    options = []
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in _NARROWING:
            options.append((name, value if equals else following))
    return tuple(sorted(options))


def minutes(run: ReadRun) -> float:
    """Return the minutes from a run's first worker to its last record with a time."""
    instants: list[float] = [
        record.started_at_s for record in run.stored.records if hasattr(record, "started_at_s")
    ]
    return (max(instants) - min(instants)) / S_A_MINUTE


def machine_in_words(run: ReadRun) -> str:
    """Return the machine of a run as "2 cores of an AMD EPYC, ext4 on a virtual disk"."""
    manifest = run.stored.manifest
    article = "an" if manifest.cpu_model[0] in "AEIOU" else "a"
    disk = "a virtual disk" if manifest.hypervisor else "a disk"
    parts = [
        f"{manifest.logical_cores} cores of {article} {manifest.cpu_model}",
        *manifest.gpus,
        f"{manifest.filesystem} on {disk}",
    ]
    return ", ".join(parts)


def packages(run: ReadRun, framework: str) -> dict[str, str]:
    """Return the versions of the packages that a framework's workers reported."""
    for worker in run.records.all(WorkerRecord):
        if worker.framework == framework:
            versions = worker.packages.items()
            return {name: version for name, version in versions if version != _ABSENT}
    raise LookupError(f"run {run.name} has no worker of {framework}")


def reference_runs() -> str:
    """Return a section for every machine with its runs and the commands that made them."""
    by_machine: dict[str, list[ReadRun]] = {}
    for run in runs():
        by_machine.setdefault(_machine(run), []).append(run)
    return "\n\n".join(_section(name, members) for name, members in by_machine.items())


def _section(machine: str, members: Sequence[ReadRun]) -> str:
    lines = []
    for run in members:
        command = " ".join(run.stored.header["command"])
        lines.append([f"`{run.name}`", f"`{command}`"])
    heading = f"## {machine}: {machine_in_words(members[-1])}"
    return f"{heading}\n\n{table(('run', 'command'), lines)}"


def _name(run: ReadRun) -> str:
    return run.name


def _machine(run: ReadRun) -> str:
    return run.stored.folder.parent.name


def _frameworks(run: ReadRun) -> set[str]:
    return {row.framework for row in run.rows}


def _samples(run: ReadRun, method: str) -> list[int]:
    return [getattr(row, "samples", 0) for row in run.rows if row.method == method]
