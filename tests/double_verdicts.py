"""Shows for each guard's doubles what becomes of them with the guard and without it.

Used by hand on many file systems: see file_systems.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import test_faults
import test_guards
import test_neighbours
from conftest import faulty, measure_cases, planned

from harness.analysis.row import Row
from harness.driver.jobs import LEFT_BEHIND
from harness.run import store
from harness.run.plan import PlannedCase
from harness.worker.guards import (
    late_values,
    neighbours,
    rank_views,
    waits_in_step,
    without_memory,
)

_PRINTED = 150  # characters of a verdict
_IN_MEMORY = "tmpfs keeps files in memory, so nothing there is ever durable"
_LEAVES_PROCESSES = "memory-of-daemon"
# Where reads are not counted, such a load cannot be told from a good one.
_NEED_COUNTED_READS = {"load-from-memory"}
# Where reads are counted, these are caught without their guard too.
_CAUGHT_BY_COUNTED_READS = {"late-read", "reads-while-opening"}


@dataclass(frozen=True)
class Expected:
    """The verdict on one double: how it begins, and a pattern of what it says.

    Without the guards it gets a clean number. There may be none that can be switched off.
    """

    verdict: str
    says: str
    guards: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)


def expected(ranks: int) -> dict[str, Expected]:
    """Return what each double is expected to become on a number of ranks."""
    found = {}
    # A verdict has other words before the reason.
    for fault, (_, says) in test_faults.REASONS.items():
        # Of several ranks, the launcher has the last word on one that ends.
        pattern = says.removeprefix("^") if ranks == 1 else ""
        found[fault] = Expected("failed", pattern, test_guards.GUARDS.get(fault, ()))
    for fault, (guards, _, says) in test_guards.CAUGHT.items():
        found[fault] = Expected("failed", says.removeprefix("^"), guards, {"checked_saves": 99})
    for fault in test_neighbours.CHANGED:
        verdict = "marked" if fault == "patched-flush" else "remarked"
        found[fault] = Expected(verdict, "for its whole process", (neighbours.NAME,))
    # Not every file system tells where holes are. Then the load gives zeros.
    found["hole"] = replace(found["hole"], says=f"{test_guards.TOO_FEW_BYTES[1:]}|Mismatch: ")
    # Without its guard, the state keeps its views of the mapped file.
    found["mapped"] = replace(found["mapped"], changes={"own_process": True})
    says = test_guards.HELD_BY_PROCESS.removeprefix("^")
    found["held-by-process"] = Expected("failed", says, (LEFT_BEHIND,), {"own_process": True})
    found["late-read"] = Expected("failed", "LateValues", (late_values.NAME,))
    found["waits-in-update"] = Expected("waits", "", (waits_in_step.NAME,), {"processes": 2})
    in_memory = {"from_memory": True}
    found["memory-alone"] = Expected("failed", "Mismatch", (without_memory.NAME,), in_memory)
    says = re.escape("left processes behind (sleep), which were ended")
    found[_LEAVES_PROCESSES] = Expected("remarked", says, (), in_memory)
    found["daemon"] = Expected("remarked", says, (), {"own_process": True})
    found["reads-while-opening"] = Expected("marked", "opening it to load reads ")
    found["sizes-differ"] = Expected(
        "marked", "its saves stored from ", (), {"samples": 3, "size_varies": False}
    )
    found["hard-link"] = Expected("remarked", "hard links")
    found["link-inside"] = Expected("clean", "", (), {"checked_saves": 99})
    if ranks == 1:
        return found
    # Ranks end without what Python does at the end of a process, so the tail never comes.
    found["late-tail"] = Expected("failed", "Mismatch")
    # Where the ranks load before the tail has come, its values are missing.
    of_child = found["late-tail-of-child"]
    found["late-tail-of-child"] = replace(of_child, says=f"{of_child.says}|Mismatch: ")
    for fault, (one_writer, says) in test_guards.OF_RANKS.items():
        changes = {"rank_local": False, "one_writer": one_writer}
        found[fault] = Expected("failed", says, (rank_views.NAME,), changes)
    return found


def try_doubles(name: str, scratch: Path, ranks: int, results: Path, only: Sequence[str]) -> bool:
    """Measure each double with its guards and without them, and print what became of it.

    Return whether every verdict was as expected.
    """
    wanted = expected(ranks)
    faults = [fault for fault in wanted if not only or fault in only]
    # Some of these end the process, so that the others' work at its end would not be done.
    ending = [fault for fault in faults if fault in test_faults.REASONS]
    guarded = _verdicts(ending, wanted, scratch, ranks, results)
    leaving = [fault for fault in faults if fault == _LEAVES_PROCESSES]
    guarded |= _verdicts(leaving, wanted, scratch, ranks, results)
    others = [fault for fault in faults if fault not in (*ending, *leaving)]
    guarded |= _verdicts(others, wanted, scratch, ranks, results)
    unguarded: dict[str, str] = {}
    for guards in sorted({wanted[fault].guards for fault in faults if wanted[fault].guards}):
        group = [fault for fault in faults if wanted[fault].guards == guards]
        unguarded |= _verdicts(group, wanted, scratch, ranks, results, guards)
    all_good = True
    for fault in faults:
        said = guarded[fault]
        is_blind = fault in _NEED_COUNTED_READS and said == "clean"
        good = is_blind or _read_nothing(fault, said) or _is_as_wanted(said, wanted[fault])
        alone = unguarded.get(fault, "clean")
        good = good and (alone == "clean" or _read_nothing(fault, alone))
        told = f"{said[:_PRINTED]}; without its guard: {unguarded.get(fault, '-')[:_PRINTED]}"
        word = "cannot be seen" if is_blind else "ok" if good else "UNEXPECTED"
        print(f"{name} on {ranks}: {word}: {fault}: {told}", flush=True)
        all_good = all_good and good
    return all_good


def _verdicts(
    faults: Sequence[str],
    wanted: dict[str, Expected],
    scratch: Path,
    ranks: int,
    results: Path,
    without: tuple[str, ...] = (),
) -> dict[str, str]:
    """Measure doubles in one run, without some guards. Return the verdict on each."""
    if not faults:
        return {}
    # Only a method that others share the process with is measured alone.
    plan = [_on(ranks, planned("buffered"))]
    plan += [_on(ranks, faulty(fault, **wanted[fault].changes)) for fault in faults]
    settings = store.Settings(without_guards=without)
    timeout_s = test_faults.HUNG_S * ranks
    rows = measure_cases(plan, results, scratch, timeout_s, settings=settings).rows
    honest = _verdict(rows[0])
    # The processes that a method leaves behind are told of every method beside it.
    beside = "remarked" if _LEAVES_PROCESSES in faults else "clean"
    if not honest.startswith(beside) and not without:
        print(f"    the honest method beside them: UNEXPECTED: {honest}", flush=True)
    return {fault: _verdict(row) for fault, row in zip(faults, rows[1:], strict=True)}


def _on(ranks: int, case: PlannedCase) -> PlannedCase:
    launcher = "local" if ranks == 1 else "mpirun"
    return replace(case, case=replace(case.case, world=ranks, launcher=launcher))


def _verdict(row: Row) -> str:
    """Return what a row came to, in a word and the sentence that it says."""
    marks = [mark for mark in row.marks if mark != _IN_MEMORY]
    if row.status != "ok":
        return f"{row.status}: {row.reason}"
    if marks:
        return f"marked: {' / '.join(marks)}"
    if row.remarks:
        return f"remarked: {' / '.join(row.remarks)}"
    if getattr(row, "waits_in_step_s", None) is not None:
        return "waits in step"
    return "clean" if row.verified else "not verified"


def _read_nothing(fault: str, verdict: str) -> bool:
    """Return whether counted reads have caught a double that reads at the wrong time."""
    failed_by_reads = verdict.startswith("failed") and "NotRead: " in verdict
    return fault in _CAUGHT_BY_COUNTED_READS and failed_by_reads


def _is_as_wanted(verdict: str, wanted: Expected) -> bool:
    return verdict.startswith(wanted.verdict) and bool(re.search(wanted.says, verdict))
