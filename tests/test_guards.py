"""Each guard catches mistakes that get a clean number once the guard is switched off."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Measure, Measured, faulty, planned

from adapters.base import Leaf
from harness.driver.jobs import EMPTY_FOLDER, LEFT_BEHIND
from harness.experiments.cost.records import OpenedRecord
from harness.run import store
from harness.run.plan import PlannedCase
from harness.wire.folders import Folders
from harness.worker.failures import THREAD_ERRORS
from harness.worker.guards import (
    cold_reads,
    drawn_saves,
    fresh_bits,
    late_values,
    late_work,
    rank_views,
    stored_pages,
    unchanged_state,
    waits_in_step,
)
from harness.worker.verify import Mismatch
from harness.worker.world import World
from workloads import Role

ALL_SAVES = 99
TOO_FEW_BYTES = r"^TooFewBytes: the files hold \d+ bytes, but \d+ random bytes were put into the "
HELD_BY_PROCESS = r"^Mismatch: \d+ of \d+ leaves differ from the saved state"
# For each fault: the guards that catch it, the phase, and the reason.
CAUGHT = {
    "lost-no-space": ((drawn_saves.NAME,), "load", r"EOFError: the file ends at byte \d+"),
    "stale-buffer": ((drawn_saves.NAME,), "verify", r"^Mismatch: \d+ of \d+ leaves differ"),
    "spoils-previous": (
        (drawn_saves.NAME, stored_pages.NAME),
        "finished",
        r"^ChangedPages: rank-0.bin.* had another size at the end of the process than when ",
    ),
    "hole": ((drawn_saves.NAME, fresh_bits.NAME), "ceiling", TOO_FEW_BYTES),
    "stub": ((fresh_bits.NAME,), "ceiling", TOO_FEW_BYTES),
    "seed-and-step": ((fresh_bits.NAME,), "ceiling", TOO_FEW_BYTES),
    "late-tail": (
        (stored_pages.NAME,),
        "verify",
        r"^ChangedPages: rank-0.bin had other bytes at \d+ in the process that loads than when ",
    ),
    "late-tail-of-child": (
        (stored_pages.NAME,),
        "verify",
        r"^ChangedPages: rank-0.bin had other bytes at \d+ in the process that loads than when ",
    ),
    "link-outside": (
        (late_work.NAME, cold_reads.NAME),
        "ceiling",
        r"^StrayFiles: symbolic links lead out of the checkpoint \(rank-0.bin[^)]*\); all of its ",
    ),
    "changes-state": (
        (unchanged_state.NAME,),
        "ceiling",
        r"^StateChanged: the save changed weights/.*; a save may only read the state$",
    ),
}


# The guards that catch other faults, which test_faults.py measures.
GUARDS = {
    "load-from-temporary": (EMPTY_FOLDER,),
    "load-from-memory": (cold_reads.NAME,),
    "mapped": (cold_reads.NAME,),
    "left-open": (late_work.NAME,),
    "removes-later": (late_work.NAME, stored_pages.NAME),
    "stray": (late_work.NAME,),
    "elsewhere": (late_work.NAME,),
    "lost-error": (THREAD_ERRORS,),
    "dies-in-training": (THREAD_ERRORS,),
}


def plan() -> list[PlannedCase]:
    """Return each fault beside an honest method."""
    honest = planned("buffered", checked_saves=ALL_SAVES)
    linked = faulty("link-inside", checked_saves=ALL_SAVES)
    return [honest, linked, *(faulty(fault, checked_saves=ALL_SAVES) for fault in CAUGHT)]


@pytest.fixture(scope="module")
def guarded(measure: Measure) -> Measured:
    """Measure all faults with all guards."""
    return measure(plan())


def test_nobody_is_blamed_for_the_change_of_a_save_that_raised(measure: Measure) -> None:
    found = measure([faulty("changes-and-raises"), planned("buffered"), planned("direct")])
    raised = found.row("double[fault=changes-and-raises]")
    assert (raised.status, raised.phase) == ("failed", "save")
    for method in ("buffered", "direct"):
        row = found.row(method)
        assert (row.status, row.reason, row.verified) == ("ok", "", True)


def test_compiled_programs_stay_when_the_temporary_folder_is_emptied(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    assert not folders.programs.is_relative_to(folders.temporary)


@pytest.mark.parametrize("fault", CAUGHT)
def test_a_mistake_is_a_failed_row(guarded: Measured, fault: str) -> None:
    _, phase, reason = CAUGHT[fault]
    row = guarded.row(f"double[fault={fault}]")
    assert (row.status, row.phase) == ("failed", phase), row.reason
    assert re.search(reason, row.reason), row.reason


@pytest.mark.parametrize("name", ["buffered", "double[fault=link-inside]"])
def test_an_honest_method_beside_them_is_measured(guarded: Measured, name: str) -> None:
    row = guarded.row(name)
    assert (row.status, row.reason, row.verified) == ("ok", "", True)
    assert (row.marks, row.remarks) == ([], [])


@pytest.mark.parametrize("fault", [*CAUGHT, *GUARDS])
def test_without_its_guard_the_mistake_gets_a_number(measure: Measure, fault: str) -> None:
    guards = GUARDS[fault] if fault in GUARDS else CAUGHT[fault][0]
    settings = store.Settings(without_guards=guards)
    row = measure([faulty(fault, checked_saves=ALL_SAVES)], settings=settings).rows[0]
    assert (row.status, row.reason, row.verified) == ("ok", "", True)
    assert row.durable_s is not None


def test_a_suspicion_is_a_mark_and_a_fact_a_remark(measure: Measure) -> None:
    found = measure([faulty("sizes-differ", samples=3, size_varies=False), faulty("hard-link")])
    row = found.row("double[fault=sizes-differ]")
    assert (row.status, row.verified, row.is_clean) == ("ok", True, False)
    assert re.search(r"^its saves stored from .* so some may lack a part$", row.marks[0])
    row = found.row("double[fault=hard-link]")
    assert (row.status, row.verified, row.is_clean) == ("ok", True, True)
    assert row.remarks == [
        "files of its checkpoints have several names (hard links), and count once"
    ]


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder on a file system that does not account reads to processes."""
    folder = Path(tempfile.mkdtemp(prefix="ckptbench-tests-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("guards", "status", "reason"),
    [
        ((), "failed", r"^LateValues: .* changed after load\(\) had returned"),
        ((late_values.NAME,), "ok", "^$"),
    ],
)
def test_values_that_come_late_fail_where_reads_are_not_counted(
    measure: Measure,
    memory_folder: Path,
    guards: tuple[str, ...],
    status: str,
    reason: str,
) -> None:
    settings = store.Settings(without_guards=guards)
    plan = [faulty("late-read"), planned("buffered")]
    late, honest = measure(plan, where=memory_folder, settings=settings).rows
    assert late.status == status, late.reason
    assert re.search(reason, late.reason), late.reason
    assert (honest.status, honest.reason, honest.verified) == ("ok", "", True)


@pytest.mark.parametrize(
    ("dtype", "word", "bits"),
    [
        ("float64", np.uint64, 16),
        ("float32", np.uint32, 8),
        ("float16", np.uint16, 4),
        ("bfloat16", np.uint16, 4),
    ],
)
def test_fresh_bits_are_the_lowest_of_each_weight(
    dtype: str, word: type[np.unsignedinteger[Any]], bits: int
) -> None:
    before = np.arange(1000, dtype=word)
    roles = {"weights/a": Role.WEIGHT, "optimizer/a/m": Role.OPTIMIZER}
    values = {name: memoryview(before.tobytes()) for name in roles}

    def leaves(state: object) -> Iterator[Leaf]:
        for name, role in roles.items():
            yield Leaf(name, role, dtype, (1000,), values[name])

    def assign(state: object, changed: dict[str, memoryview]) -> None:
        values.update(changed)

    framework: Any = SimpleNamespace(leaves=leaves, assign=assign)
    added_bytes = fresh_bits.add_fresh_bits(framework, None, World())
    difference = np.frombuffer(values["weights/a"], word) ^ before
    # Of 1000 random words, each bit is set in some and not set in others.
    assert np.bitwise_or.reduce(difference) == 2**bits - 1
    assert np.bitwise_and.reduce(difference) == 0
    assert added_bytes == 1000 * bits // 8
    assert values["optimizer/a/m"] == before.tobytes()


def test_a_later_look_is_at_the_leaves_of_the_first_one() -> None:
    names = [f"weights/{number}" for number in range(20)]
    values = {name: bytearray(range(40)) for name in names}
    leaves = [Leaf(name, Role.WEIGHT, "uint8", (40,), memoryview(values[name])) for name in names]
    early = late_values.sampled(leaves, names)
    chosen, *others = sorted(names, key=lambda name: name not in early)
    assert len(early) < len(names)
    values[others[-1]][0] += 1
    late_values.check_not_late(early, leaves)
    values[chosen][0] += 1
    with pytest.raises(late_values.LateValues, match=f"^{chosen} changed after load"):
        late_values.check_not_late(early, leaves)


# What two ranks have saved, by leaf.
OF_RANK_0 = {"rng": "a", "buffer": "b"}
OF_RANK_1 = {"rng": "c", "buffer": "d"}


@pytest.mark.parametrize(
    ("loaded", "one_writer", "reason"),
    [
        ([OF_RANK_0, OF_RANK_0], True, ""),
        ([OF_RANK_1, OF_RANK_1], True, ""),
        ([{"rng": "a", "buffer": "d"}] * 2, False, ""),
        ([{"rng": "a", "buffer": "d"}] * 2, True, "rng, buffer came back from different ranks"),
        ([OF_RANK_0, OF_RANK_1], False, "restored every rank's own"),
        ([OF_RANK_1, OF_RANK_0], False, "the ranks got different ranks' values of rng, buffer"),
        ([OF_RANK_0, OF_RANK_0 | {"rng": "0"}], False, "no rank's own value came back of rng;"),
        ([OF_RANK_0 | {"rng": "0"}] * 2, False, "no rank's own value came back of rng;"),
    ],
)
def test_one_view_is_that_of_one_rank(
    loaded: list[dict[str, str]], one_writer: bool, reason: str
) -> None:
    saved = [OF_RANK_0, OF_RANK_1]
    if not reason:
        rank_views.check_one_view(saved, loaded, one_writer)
        return
    with pytest.raises(Mismatch, match=re.escape(reason)):
        rank_views.check_one_view(saved, loaded, one_writer)


def test_ranks_that_had_the_same_value_cannot_be_told_apart() -> None:
    same = {"rng": "a", "buffer": "b"}
    rank_views.check_one_view([same, same | {"rng": "c"}], [same, same], one_writer=True)


# For each fault: whether one rank writes everything, and the reason.
OF_RANKS = {
    "zeros-elsewhere": (False, r"no rank's own value came back of buffers/"),
    "halves-of-ranks": (False, r"no rank's own value came back of "),
    "leaves-of-ranks": (True, r"came back from different ranks, but one rank writes everything"),
}


def on_two_ranks(fault: str, one_writer: bool) -> PlannedCase:
    """Return a case of two ranks whose checkpoint is declared to hold one rank's view."""
    return faulty(
        fault,
        world=2,
        launcher="mpirun",
        rank_local=False,
        one_writer=one_writer,
        samples=1,
        warmups=0,
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", OF_RANKS)
def test_a_mistake_of_ranks_is_a_failed_row(measure: Measure, fault: str) -> None:
    one_writer, reason = OF_RANKS[fault]
    (row,) = measure([on_two_ranks(fault, one_writer)]).rows
    assert (row.status, row.phase) == ("failed", "verify"), row.reason
    assert re.search(reason, row.reason), row.reason


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["one-view", *OF_RANKS])
def test_one_view_is_measured_and_so_is_a_mistake_without_the_guard(
    measure: Measure, fault: str
) -> None:
    guards = () if fault == "one-view" else (rank_views.NAME,)
    settings = store.Settings(without_guards=guards)
    (row,) = measure([on_two_ranks(fault, one_writer=True)], settings=settings).rows
    assert (row.status, row.reason, row.verified) == ("ok", "", True)


@pytest.mark.slow
def test_parts_of_two_ranks_are_right_where_several_ranks_write(measure: Measure) -> None:
    (row,) = measure([on_two_ranks("leaves-of-ranks", one_writer=False)]).rows
    assert (row.status, row.reason, row.verified) == ("ok", "", True)


def test_a_process_that_is_left_behind_is_a_remark_on_the_row(measure: Measure) -> None:
    (row,) = measure([faulty("daemon", own_process=True)]).rows
    assert (row.status, row.reason, row.verified, row.marks) == ("ok", "", True, [])
    assert row.remarks == ["its worker left processes behind (sleep), which were ended"]


@pytest.mark.parametrize(
    ("guards", "status", "reason"),
    [((), "failed", HELD_BY_PROCESS), ((LEFT_BEHIND,), "ok", "^$")],
)
def test_a_process_that_holds_the_bytes_has_ended_before_the_loads(
    measure: Measure, guards: tuple[str, ...], status: str, reason: str
) -> None:
    settings = store.Settings(without_guards=guards)
    (row,) = measure([faulty("held-by-process")], settings=settings).rows
    assert row.status == status
    assert re.search(reason, row.reason), row.reason


def test_reading_while_opening_is_a_mark_where_reads_are_not_counted(
    measure: Measure, memory_folder: Path
) -> None:
    plan = [faulty("reads-while-opening"), planned("buffered")]
    early, honest = measure(plan, where=memory_folder).rows
    assert (early.status, early.verified) == ("ok", True), early.reason
    assert any(mark.startswith("opening it to load reads ") for mark in early.marks), early.marks
    assert honest.marks == ["tmpfs keeps files in memory, so nothing there is ever durable"]
    assert (honest.load_cache, honest.durability) == ("warm", "never")


def test_imports_for_a_method_are_not_read_while_it_is_opened(measure: Measure) -> None:
    stored = measure([faulty("link-inside")]).run.records
    (opened,) = [record for record in stored if isinstance(record, OpenedRecord)]
    assert opened.read_bytes < 10_000


def test_an_update_that_waits_for_the_save_is_part_of_the_stall(measure: Measure) -> None:
    plan = [faulty("waits-in-update", processes=2), planned("buffered", processes=2)]
    waiting, honest = measure(plan).rows
    assert (waiting.status, waiting.verified) == ("ok", True), waiting.reason
    assert waiting.waits_in_step_s is not None
    assert 0.05 < waiting.waits_in_step_s.value < 0.5
    assert waiting.stall_s.value > waiting.waits_in_step_s.value
    assert honest.waits_in_step_s is None


@pytest.mark.parametrize(
    ("after_staged_ms", "is_suspicious"),
    [
        ((90,), True),
        ((20,), False),
        ((90, 20), False),
        ((90, 90, 20), True),
        ((90, 90, 20, 20), False),
    ],
)
def test_one_long_update_is_chance_and_most_of_them_are_not(
    after_staged_ms: tuple[int, ...], is_suspicious: bool
) -> None:
    after_staged_ns = [1_000_000 * each_ms for each_ms in after_staged_ms]
    updates = waits_in_step.Updates([20_000_000] * len(after_staged_ns), after_staged_ns)
    assert updates.are_suspicious is is_suspicious


def test_without_the_guard_an_update_may_wait(measure: Measure) -> None:
    settings = store.Settings(without_guards=(waits_in_step.NAME,))
    found = measure([faulty("waits-in-update")], settings=settings)
    (row,) = found.rows
    assert (row.status, row.verified, row.waits_in_step_s) == ("ok", True, None)
    stalls_ns = [record.save_ns + record.staged_ns for record in found.records("save")]
    assert min(stalls_ns) < 60_000_000
