"""A run's folder: no record is lost or doubled, however its writer ended."""

from __future__ import annotations

import gzip
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import records
from conftest import ROOT, planned

from harness.driver import machine
from harness.run import store
from harness.run.errors import UsageError
from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase, Selection
from harness.run.reading import InvalidLine
from harness.run.store import Run
from harness.run.stored import PACKED
from harness.wire.experiment import Experiment, Stage, SuiteKey
from harness.wire.records import IsolatedRecord, Record, to_line

FIRST, SECOND, THIRD = (records.save(index=index) for index in range(3))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return machine.capture(tmp_path_factory.mktemp("scratch"))


Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path, here: Manifest) -> Make:
    """Return a function that creates a run with records."""

    def create(*found: Record, results: Path = tmp_path / "results") -> Run:
        run = store.create(results, "smoke", ["ckptbench", "run"], [planned()], here)
        for record in found:
            run.append(record)
        return run

    return create


def test_a_plan_that_does_not_say_which_framework_is_the_floor_has_the_first_one() -> None:
    older = planned().to_json()
    del older["floor"]
    assert PlannedCase.from_json(older).floor
    assert not PlannedCase.from_json(planned().to_json()).floor


def test_a_setting_that_an_older_case_lacks_has_its_default() -> None:
    depth = SuiteKey("how deep", default=2, in_words=lambda depth: f"{depth} deep")
    stages = (Stage("dig", "digging"),)
    digging = Experiment(
        name="digging", question="How?", place=90, stages=stages, suite_keys={"depth": depth}
    )
    older = replace(planned().case, settings={"later": 1})
    assert digging.settings(older) == {"depth": 2, "later": 1}
    assert digging.settings_in_words(older) == ["2 deep", "later=1"]


def content(run: Run) -> bytes:
    return (run.folder / store.RECORDS).read_bytes()


def reopened(run: Run) -> Run:
    run.close()
    return Run(run.folder)


def line(record: Record) -> str:
    return to_line(record).rstrip("\n")


# Appending


def test_records_are_there_when_the_run_is_opened_again(make: Make) -> None:
    run = make(FIRST)
    assert run.absorb(line(SECOND)) == SECOND
    assert run.records == [FIRST, SECOND]
    again = reopened(run)
    assert (again.records, again.damages) == ([FIRST, SECOND], [])


def test_what_is_stored_is_only_ever_added_to(make: Make) -> None:
    run = make(FIRST)
    seen = [content(run)]
    steps: list[Callable[[Run], object]] = [
        lambda run: run.append(SECOND),
        lambda run: run.absorb(line(THIRD)),
        lambda run: run.absorb(line(THIRD)),
        lambda run: run.salvage(),
        lambda run: reopened(run).append(records.failure()),
    ]
    for step in steps:
        step(run)
        seen.append(content(run))
    assert all(after.startswith(before) for before, after in zip(seen, seen[1:], strict=False))
    assert seen[-1].count(b"\n") == 4


def test_a_line_that_is_there_already_is_left_out(make: Make) -> None:
    run = make(FIRST)
    assert run.absorb(line(FIRST)) is None, "also one of the driver's own"
    assert run.absorb(line(SECOND)) == SECOND
    assert run.absorb(line(SECOND)) is None
    assert reopened(run).absorb(line(SECOND)) is None, "also after the run was opened again"
    assert content(run).decode() == to_line(FIRST) + to_line(SECOND)


def test_a_line_that_is_no_record_is_refused_and_not_stored(make: Make) -> None:
    run = make(FIRST)
    with pytest.raises(InvalidLine, match="not JSON"):
        run.absorb(line(SECOND)[:50])
    assert content(run).decode() == to_line(FIRST)
    assert run.records == [FIRST]


# Half-written lines


def tear(run: Run, at: int) -> None:
    """Take the end of the last line away, as a power loss does."""
    run.close()
    with (run.folder / store.RECORDS).open("r+b") as file:
        file.truncate(len(content(run)) - at)


@pytest.mark.parametrize("lost", [2, 100])
def test_a_torn_last_line_is_kept_and_reported_and_swallows_no_record(
    make: Make, lost: int
) -> None:
    run = make(FIRST, SECOND)
    tear(run, lost)
    torn = content(run)
    run = Run(run.folder)
    assert run.records == [FIRST]
    assert [(damage.file, damage.line) for damage in run.damages] == [
        (run.folder / store.RECORDS, 2)
    ]
    assert run.absorb(line(SECOND)) == SECOND, "half of it is not the whole"
    run.append(THIRD)
    run = reopened(run)
    assert run.records == [FIRST, SECOND, THIRD]
    assert [damage.line for damage in run.damages] == [2], (
        "it is still reported, and nothing else is"
    )
    assert content(run).startswith(torn)


def test_a_last_line_that_lost_only_its_newline_is_whole(make: Make) -> None:
    run = make(FIRST, SECOND)
    tear(run, 1)
    run = Run(run.folder)
    assert (run.records, run.damages) == ([FIRST, SECOND], [])
    assert run.absorb(line(SECOND)) is None
    run.append(THIRD)
    assert content(run).decode() == to_line(FIRST) + to_line(SECOND) + to_line(THIRD)


def test_looking_at_a_run_changes_nothing(make: Make) -> None:
    run = make(FIRST, SECOND)
    tear(run, 20)
    file = run.folder / store.RECORDS
    before = file.read_bytes(), file.stat().st_mtime_ns
    seen = Run(run.folder)
    assert (len(seen.records), len(seen.damages), len(seen.plan)) == (1, 1, 1)
    seen.close()
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before


@contextmanager
def files_at_most(size_bytes: int) -> Iterator[None]:
    """Limit the size of files within the block, because a full disk cuts a line like this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("opened_again", [True, False])
def test_a_full_disk_is_an_error_and_the_next_record_begins_a_line_of_its_own(
    make: Make, opened_again: bool
) -> None:
    run = make(FIRST)
    with files_at_most(len(content(run)) + 50), pytest.raises(OSError, match="too large"):
        run.append(SECOND)
    if opened_again:
        run = reopened(run)
    run.append(THIRD)
    run = reopened(run)
    assert run.records == [FIRST, THIRD]
    assert [damage.line for damage in run.damages] == [2]


# Records of workers whose driver was killed


def job(run: Run, name: str, rank: int, text: str) -> None:
    folder = run.jobs / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank-{rank:05d}.jsonl").write_text(text)


def test_whole_lines_of_every_rank_are_salvaged_once(make: Make) -> None:
    run = make(FIRST)
    other = records.save(rank=1)
    job(run, "002-save-0", 0, to_line(FIRST) + to_line(SECOND))
    job(run, "002-save-0", 1, to_line(other))
    job(run, "003-load-0", 0, to_line(records.load()))
    run.salvage()
    assert run.records == [FIRST, SECOND, other, records.load()]
    before = content(run)
    run.salvage()
    run = reopened(run)
    run.salvage()
    assert content(run) == before


@pytest.mark.parametrize("lost", [1, 2, 200])
def test_half_lines_are_not_salvaged(make: Make, lost: int) -> None:
    run = make()
    job(run, "002-save-0", 0, to_line(FIRST) + to_line(SECOND)[:-lost])
    run.salvage()
    assert run.records == [FIRST], "what has no end may not be all"
    assert content(run).decode() == to_line(FIRST)


def test_rubbish_of_a_worker_does_not_keep_its_records_from_being_salvaged(make: Make) -> None:
    run = make()
    job(run, "002-save-0", 0, to_line(FIRST) + "rubbish\n\n" + to_line(SECOND))
    run.salvage()
    assert run.records == [FIRST, SECOND]
    assert reopened(run).damages == []


def test_what_begins_anew_may_write_the_line_that_a_killed_driver_had_voided(make: Make) -> None:
    """Records without times are equal to the byte when a stage is repeated."""
    kept = records.repeat()
    voiding = IsolatedRecord("isolated", "other", kept.process, 0, "save", (kept.case,))
    run = make(kept, voiding)
    run = reopened(run)
    run.salvage()
    assert run.absorb(to_line(kept).rstrip("\n")) == kept
    assert run.absorb(to_line(kept).rstrip("\n")) is None


def test_nothing_need_be_there_to_salvage(make: Make) -> None:
    run = make(FIRST)
    run.salvage()
    assert run.records == [FIRST]


# A run's surroundings


def test_a_second_driver_is_kept_out_until_the_first_has_gone(make: Make) -> None:
    run = make(FIRST)
    run.lock()
    second = Run(run.folder)
    with pytest.raises(UsageError, match=f"^run {run.name} is being measured by another"):
        second.lock()
    run.close()
    second.lock()


def test_a_second_driver_in_another_process_is_kept_out(make: Make) -> None:
    run = make(FIRST)
    run.lock()
    program = (
        "import sys; from pathlib import Path; from harness.run.store import Run; "
        "Run(Path(sys.argv[1])).lock()"
    )
    argv = [sys.executable, "-c", program, str(run.folder)]
    kept_out = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert kept_out.stderr.splitlines()[-1].endswith(
        f"run {run.name} is being measured by another process; wait for it"
    )


def test_a_locked_run_can_be_looked_at(make: Make) -> None:
    run = make(FIRST)
    run.lock()
    assert Run(run.folder).records == [FIRST]


def test_plan_and_manifest_come_back_as_they_were(tmp_path: Path, here: Manifest) -> None:
    plan = [
        planned("direct", samples=3, repeats=2, processes=4),
        planned(
            "double",
            options={"fault": "none", "slowdown": 1.5},
            world=2,
            launcher="mpirun",
            expected_failure="^Mis.*ä",
        ),
    ]
    machine = replace(here, gpus=("a GPU", "another"), hypervisor=None)
    made = store.create(tmp_path, "smoke", ["ckptbench", "run", "smoke"], plan, machine)
    run = reopened(made)
    assert run.plan == plan
    assert [item.case.id for item in run.plan] == [item.case.id for item in plan]
    assert [entry["id"] for entry in run.header["cases"]] == [item.case.id for item in plan], (
        "by which records name their cases"
    )
    assert run.manifest == machine
    assert (run.header["suite"], run.header["command"]) == ("smoke", ["ckptbench", "run", "smoke"])


def test_settings_come_back_and_older_runs_have_the_defaults(make: Make, here: Manifest) -> None:
    said = store.Settings(
        summary_above=8, mpirun="/opt/mpi/bin/mpirun", timeout_s=60.0, site="/etc/site.toml"
    )
    run = make()
    assert (
        store.create(run.folder.parent, "smoke", [], run.plan, here, settings=said).settings == said
    )
    assert run.settings == store.Settings()
    header = run.header
    del header["settings"]
    (run.folder / store.PLAN).write_text(json.dumps(header))
    assert reopened(run).settings == store.Settings()


def test_a_run_of_a_later_version_that_added_fields_opens(make: Make, here: Manifest) -> None:
    selection = Selection.of(["raw"], methods=["buffered"], worlds=[1, 2])
    run = store.create(make().folder.parent, "smoke", [], [planned()], here, selection=selection)
    header = json.loads((run.folder / store.PLAN).read_text())
    header["weather"] = "fine"
    header["settings"]["patience"] = 3
    header["selection"]["compression"] = ["zstd"]
    header["cases"][0]["priority"] = 1
    header["cases"][0]["case"]["compression"] = "zstd"
    # The later version counts its new field in the identifier that its records name the case by.
    header["cases"][0]["id"] = "fedcba987654"
    (run.folder / store.PLAN).write_text(json.dumps(header))
    manifest = json.loads((run.folder / store.MANIFEST).read_text())
    (run.folder / store.MANIFEST).write_text(json.dumps(manifest | {"altitude_m": 300}))
    later = reopened(run)
    assert later.plan == [planned()]
    assert later.plan[0].case.id == "fedcba987654"
    assert later.selection == selection
    assert later.settings == store.Settings()
    assert later.manifest == here


def test_a_run_of_an_earlier_version_has_defaults_for_what_it_lacks(make: Make) -> None:
    run = make()
    header = json.loads((run.folder / store.PLAN).read_text())
    values = header["cases"][0]
    del values["id"], values["traced"], values["case"]["settings"], values["case"]["arm"]
    (run.folder / store.PLAN).write_text(json.dumps(header))
    earlier = reopened(run)
    assert earlier.plan == [planned()]
    assert earlier.plan[0].case.id == planned().case.id


def test_a_run_is_named_after_its_time_suite_and_frameworks(tmp_path: Path, here: Manifest) -> None:
    frameworks = [
        replace(planned(), case=replace(planned().case, framework=name))
        for name in ("raw", "jax", "raw")
    ]
    run = store.create(tmp_path, "bench", [], frameworks, here)
    assert re.fullmatch(r"\d{8}-\d{6}-bench-jax\+raw", run.name)


def test_runs_begun_at_once_get_folders_of_their_own(make: Make, tmp_path: Path) -> None:
    made = [make() for _ in range(3)]
    assert len({run.folder for run in made}) == 3
    assert sorted(store.folders(tmp_path / "results")) == sorted(run.folder for run in made)


def test_a_packed_run_is_found_and_read_and_takes_no_records(make: Make) -> None:
    run = make(FIRST, SECOND)
    folder = pack(run)
    packed = Run(store.find(folder.parent, folder.name))
    assert (packed.records, packed.damages) == ([FIRST, SECOND], [])
    with pytest.raises(UsageError, match=f"run {folder.name} is packed.*unpack it with: gunzip"):
        packed.lock()


def test_a_damaged_packed_run_is_one_sentence(make: Make) -> None:
    folder = pack(make(FIRST, SECOND))
    file = folder / PACKED
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"cannot be read: records\.jsonl\.gz: .*ended before"):
        Run(folder)


def pack(run: Run) -> Path:
    """Pack the records of a run, and return its folder."""
    run.close()
    records = run.folder / store.RECORDS
    (run.folder / PACKED).write_bytes(gzip.compress(records.read_bytes()))
    records.unlink()
    return run.folder


@pytest.mark.parametrize("is_link", [True, False], ids=["a link to nothing", "a file"])
def test_results_that_are_no_folder_are_refused(tmp_path: Path, is_link: bool) -> None:
    results = tmp_path / "results"
    if is_link:
        results.symlink_to(tmp_path / "unmounted")
    else:
        results.touch()
    with pytest.raises(UsageError, match=f"^no run can be stored in {results}"):
        store.create(results, "smoke", [], [planned()], None)


def test_a_run_with_records_is_not_discarded(make: Make) -> None:
    run = make()
    run.append(records.save())
    with pytest.raises(ValueError, match="has records, so it is not removed"):
        run.discard()
    assert reopened(run).records == [records.save()]
