"""The struck states of a stored run: lists them, and writes one out as a directory to debug."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.durability import trees
from harness.experiments.faults import EXPERIMENT
from harness.experiments.faults.records import WORST_FIRST, StruckRecord
from harness.experiments.faults.states import State, States, newest_of
from harness.experiments.killed_rank import archive
from harness.run.errors import UsageError, nearest
from harness.run.stored import StoredRun, run_argument
from harness.wire.case import Case
from harness.wire.records import FailureRecord

_OF_RANKS = "killed_rank"
_STRIKING = (EXPERIMENT.name, _OF_RANKS)
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, tarfile.TarError, zlib.error)


@dataclass(frozen=True)
class WrittenState:
    """A state that was written out. `newest` is its newest checkpoint; None where none is left."""

    record: StruckRecord
    newest: str | None


def find_case(run: StoredRun, name: str, framework: str = "") -> Case:
    """Return the case with this method or identifier. Raises UsageError where it is not just one.

    `framework` tells cases of the same method apart; empty for any.
    """
    cases = [item.case for item in run.plan]
    struck = [case for case in cases if case.experiment in _STRIKING]
    where = f"in run {run.name}"
    if not struck:
        raise UsageError(
            f"run {run.name} has no case of experiment 'faults'; "
            "measure one with: ckptbench run faults"
        )
    if framework:
        frameworks = {case.framework for case in struck}
        if framework not in frameworks:
            raise nearest("framework", framework, frameworks, where)
        struck = [case for case in struck if case.framework == framework]
    found = [case for case in struck if name in (case.method, case.id)]
    if not found:
        _refuse_other_experiment(cases, name, where)
        raise nearest("case", name, {case.method for case in struck}, where)
    if len(found) > 1:
        listed = ", ".join(f"{case.id} ({case.framework} {case.workload})" for case in found)
        raise UsageError(
            f"several cases {where} are called {name!r}; "
            f"add --framework, or name one of them by its identifier: {listed}"
        )
    return found[0]


def worst_first(run: StoredRun, case: Case) -> list[StruckRecord]:
    """Return the states of a case with their verdicts. Raises UsageError where it has none."""
    # An interrupted run tries its states again. The last answer counts.
    by_number: dict[int, StruckRecord] = {}
    for record in [*run.records, *_of_ranks(run, case)]:
        if isinstance(record, StruckRecord) and record.case == case.id:
            by_number[record.number] = record
    if not by_number:
        raise UsageError(f"case {case.method} of run {run.name} has no states: {_why(run, case)}")
    return sorted(
        by_number.values(), key=lambda record: (WORST_FIRST.index(record.verdict), record.number)
    )


def write_state(run: StoredRun, case: Case, number: int, folder: Path) -> WrittenState:
    """Write the directory of one state into an empty folder, which is made where it is missing.

    Raises UsageError where the state cannot be built, or where the folder is not empty.
    """
    _require_empty(folder)
    record = _record(run, case, number)
    state = _rebuilt(run, case, record)
    folder.mkdir(parents=True, exist_ok=True)
    trees.fill(state.tree, folder)
    top_names = [name for name in state.tree if "/" not in name]
    return WrittenState(record, newest_of(top_names))


def _refuse_other_experiment(cases: Sequence[Case], name: str, where: str) -> None:
    others = sorted({case.experiment for case in cases if name in (case.method, case.id)})
    if others and not set(others) & set(_STRIKING):
        raise UsageError(
            f"case {name!r} {where} is of experiment {others[0]!r}, which strikes nothing; "
            "name a case of experiment 'faults'"
        )


def _of_ranks(run: StoredRun, case: Case) -> list[StruckRecord]:
    return archive.struck_states(run, case) if case.experiment == _OF_RANKS else []


def _why(run: StoredRun, case: Case) -> str:
    """Return why a case has no states."""
    for record in run.records:
        if isinstance(record, FailureRecord) and record.case == case.id:
            return f"{record.status} in {record.phase}: {record.reason}"
    return f"the run was interrupted; go on with: ckptbench run --resume {run_argument(run.folder)}"


def _record(run: StoredRun, case: Case, number: int) -> StruckRecord:
    records = {record.number: record for record in worst_first(run, case)}
    if number not in records:
        raise UsageError(
            f"unknown state {number} of case {case.method} in run {run.name}; "
            f"its states are {min(records)} to {max(records)}"
        )
    return records[number]


def _rebuilt(run: StoredRun, case: Case, record: StruckRecord) -> State:
    """Build the state of a record again. Raises UsageError where that is not possible."""
    recording = run.files(case)
    if not recording.is_dir():
        suite = "faults-ranks" if case.experiment == _OF_RANKS else "faults"
        raise UsageError(
            f"run {run.name} has no recording of case {case.method}, so its states cannot be "
            f"built; reference runs are stored without recordings. Record it again: ckptbench run "
            f"{suite} --framework {case.framework} --method '{case.method}'"
        )
    try:
        if case.experiment == _OF_RANKS:
            tree = archive.read(recording, record.number)
            return State(record.number, record.strike, record.instant, record.in_words, tree)
        states = States(recording, case.id, int(EXPERIMENT.settings(case)["instants"]))
        state = next((state for state in states if state.number == record.number), None)
    except _UNREADABLE as error:
        raise UsageError(f"the recording in {recording} cannot be read: {error}") from error
    if state is None or not _is_the_same(state, record):
        raise UsageError(
            f"state {record.number} cannot be built, because this version of ckptbench strikes "
            f"other states than the one that measured run {run.name}; use that version "
            f"({run.manifest.commit or 'commit unknown'}), or measure the run again"
        )
    return state


def _is_the_same(state: State, record: StruckRecord) -> bool:
    """Return whether a state is the one that a record describes."""
    built = (state.strike, state.instant, state.in_words)
    return built == (record.strike, record.instant, record.in_words)


def _require_empty(folder: Path) -> None:
    """Refuse a folder that holds anything, because a loader might take it for the state's."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file; name an empty or new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"--out {folder} is not empty; name an empty or new folder")
