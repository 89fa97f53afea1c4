"""A driver that is struck while it fills a run's folder loses no sample of a finished job."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import filled_run
import pytest
import records
from conftest import ROOT, Measure, planned
from struck_harness import Recording, distinct_states, lines_of, record
from test_session import counted

from harness.cli import application
from harness.driver import calibration, machine
from harness.durability import strace, trees
from harness.durability.crashes import Crashes, CrashState, thinned
from harness.durability.trees import Tree
from harness.run import store
from harness.run.reading import parse
from harness.run.stored import StoredRun
from harness.wire.records import IsolatedRecord, to_line

CKPTBENCH = [sys.executable, "-c", "from harness.cli import main; main()"]
METHODS = ("direct", "npz", "buffered", "deepfreeze-sync", "deepfreeze")
STATES_AT_LEAST = 500
REFUSALS = (
    *("there are no runs in", "has not begun to measure", "has measured nothing yet"),
    *("no results that any figure shows", "before it had costs of checkpoints"),
    *("no costs of checkpoints", "has no case of experiment"),
)
COMMANDS = (
    ("show",),
    ("show", "--format", "json"),
    ("compare", "latest", "latest"),
    ("report", "latest"),
)
# They come after those above, and only as real command lines.
MORE_COMMANDS = (
    ("figures", "latest"),
    ("advise", "latest"),
    ("faults", "latest", "--case", "direct"),
)
# Each takes some seconds.
REAL_COMMANDS = 28
REPORTS = 20
RESUMED_OF_EACH_KIND = 5
SAVE = '"kind":"save"'


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, scratch: Path) -> Recording:
    """A real run of several methods, recorded from the first command to its end."""
    require_strace()
    folder = tmp_path_factory.mktemp("recorded")
    where = scratch / "recorded"
    where.mkdir()
    methods = [word for method in METHODS for word in ("--method", method)]
    words = ("run", "smoke", "--framework", "raw", "--workload", "resnet50", *methods)
    places = ("--results", str(folder / "root" / "results"), "--dir", str(where))
    python = ("--python", f"raw={sys.executable}")
    return record([*CKPTBENCH, *words, *places, *python], folder / "root", folder / "log")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A run's folder that a small program fills, recorded in the same way."""
    require_strace()
    folder = tmp_path_factory.mktemp("filled")
    argv = [sys.executable, filled_run.__file__, str(folder / "root" / "results")]
    return record(argv, folder / "root", folder / "log")


def require_strace() -> None:
    reason = strace.available()
    if reason is not None:
        pytest.skip(reason)


@dataclass(frozen=True)
class Answer:
    """The end of a command: its exit status, and all that it printed."""

    status: int
    text: str


def answer(*words: str) -> Answer:
    """Run a command in this process."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        patch.setattr(sys, "argv", ["ckptbench", *words])
        patch.setattr(application.signal, "signal", lambda *_: None)
        status = application.run()
        printed.flush()
    printed.seek(0)
    return Answer(status, printed.read())


def is_answer(status: int, text: str) -> bool:
    """Return whether a command worked, or said in a sentence why there is nothing to read."""
    has_refused = status == 2 and any(sentence in text for sentence in REFUSALS)
    # Status 3 says that the few samples of a struck run cannot be compared.
    return (status in (0, 3) or has_refused) and "Traceback" not in text


def written_out(state: CrashState, place: Path) -> Path:
    """Write a state out, and return the folder of results in it."""
    trees.write(state.tree, place)
    return place / "results"


def run_in(results: Path) -> Path | None:
    """Return the folder of the run that commands see, or None where they see none."""
    found = store.folders(results)
    return found[0] if found else None


def salvaged(results: Path) -> store.Run | None:
    """Return the run after the first step of a resume, or None where there is no run."""
    folder = run_in(results)
    if folder is None:
        return None
    run = store.Run(folder)
    run.lock()
    run.salvage()
    run.close()
    return run


def jobs_in(tree: Tree) -> list[str]:
    """Return the folders of jobs, in the order of their beginning."""
    return sorted(name for name in tree if re.search(r"/jobs/\d[^/]*$", name))


def lines_of_jobs(tree: Tree) -> dict[str, list[str]]:
    """Return the complete lines that the worker of each job has written."""
    lines = {job: lines_of(tree, f"{job}/rank-00000.jsonl") for job in jobs_in(tree)}
    return {job: written for job, written in lines.items() if written}


def without_jobs(tree: Tree) -> Tree:
    """Return the files that commands read."""
    return {
        name: node for name, node in tree.items() if "/jobs" not in name and "/logs" not in name
    }


@dataclass(frozen=True)
class Written:
    """The lines that workers had written at an instant, and those of them in finished jobs."""

    all: list[str]
    finished: list[str]


def written_at(crashes: Crashes) -> list[Written]:
    """Return for every instant the lines of workers.

    A job is finished where another one has begun, or where the driver removes all jobs.
    """
    removals = [at for at, step in enumerate(crashes.steps) if removes_of_job(step.in_words)]
    written: list[Written] = []
    by_job: dict[str, list[str]] = {}
    begun: list[str] = []
    for state in crashes.states(range(len(crashes.steps) + 1), singles=0):
        if state.strike != "kill":
            continue
        by_job |= lines_of_jobs(state.tree)
        begun = max(begun, jobs_in(state.tree), key=len)
        finished = begun if state.instant > removals[0] else begun[:-1]
        written.append(Written(joined(by_job, begun), joined(by_job, finished)))
    return written


def removes_of_job(words: str) -> bool:
    return words.startswith("the removal of") and "/jobs/" in words


def joined(by_job: dict[str, list[str]], jobs: list[str]) -> list[str]:
    """Return the lines of some jobs."""
    return [line for job in jobs for line in by_job.get(job, [])]


def records_in(tree: Tree) -> list[str]:
    """Return the complete lines of the run's records."""
    files = [name for name in tree if name.endswith("/records.jsonl")]
    return lines_of(tree, files[0]) if files else []


# A small program that fills a run's folder


def test_a_run_is_seen_with_its_plan_or_not_at_all(filled: Recording, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for state in distinct_states(filled.crashes()):
        folder = run_in(written_out(state, tmp_path / "state"))
        if folder is None:
            seen["none"] += 1
            continue
        run = StoredRun(folder)
        assert run.plan == [planned()], state.in_words
        if run.begun:
            assert run.manifest, state.in_words
        seen["begun" if run.begun else "not begun"] += 1
    assert set(seen) == {"none", "not begun", "begun"}
    assert seen.total() > 50


def test_a_power_loss_takes_no_record_of_a_finished_job_nor_one_that_a_resume_has_taken_in(
    filled: Recording, tmp_path: Path
) -> None:
    crashes = filled.crashes()
    flushes = [step.in_words.startswith("the flush of ") for step in crashes.steps]
    files = [step.in_words.rpartition("/")[2] for step in crashes.steps]
    steps = list(zip(flushes, files, strict=True))
    flushed_at = steps.index((True, "records.jsonl"))
    written_at = steps.index((True, filled_run.KILLED_JOB))
    finished = list(filled_run.OF_FINISHED_JOB)
    both = [*finished, *filled_run.OF_KILLED_JOB]
    for state in distinct_states(crashes):
        run = salvaged(written_out(state, tmp_path / "state"))
        stored = run.records if run else []
        if state.instant > flushed_at:
            assert stored[: len(finished)] == finished, state.in_words
        if state.instant > written_at:
            assert stored == both, state.in_words


# Mended mistakes


def test_commands_say_that_a_run_has_not_begun(tmp_path: Path) -> None:
    run = store.create(tmp_path, "smoke", ["ckptbench", "run"], [planned()], None)
    where = ("--results", str(tmp_path))
    shown = answer("show", *where)
    assert shown.status == 0, shown.text
    assert "This run has not begun to measure." in shown.text
    assert answer("show", "--format", "json", *where).status == 0
    assert f"run {run.name} has not begun to measure" in answer("report", *where).text
    assert f"run {run.name} has measured nothing yet" in answer("compare", "latest", *where).text


def test_samples_that_a_full_disk_kept_out_of_the_run_are_salvaged_later(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.Run._written_bytes
    folders = set()

    def refuse_saves(run: store.Run, data: bytes) -> int:
        folders.add(run.folder)
        if SAVE.encode() in data:
            raise OSError(errno.ENOSPC, "No space left on device", str(run.folder))
        return write(run, data)

    monkeypatch.setattr(store.Run, "_written_bytes", refuse_saves)
    with pytest.raises(OSError, match="No space left"):
        measure([planned("buffered")])
    monkeypatch.undo()
    run = store.Run(folders.pop())
    (file,) = run.jobs.glob("*-save-*/rank-00000.jsonl")
    written = [line for line in file.read_text().splitlines() if SAVE in line]
    assert written
    run.salvage()
    assert [to_line(each).rstrip("\n") for each in run.records if each.kind == "save"] == written


def test_a_salvage_repeats_no_line_that_the_same_driver_has_taken_in(tmp_path: Path) -> None:
    run = store.create(tmp_path, "smoke", ["ckptbench", "run"], [planned()], None)
    isolated = IsolatedRecord("isolated", records.CASE, 0, 0, "save", ())
    lines = [to_line(each).rstrip("\n") for each in (records.save(), isolated, records.load())]
    job = run.jobs / "001-save-0"
    job.mkdir(parents=True)
    (job / "rank-00000.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for line in lines:
        run.absorb(line)
    run.salvage()
    assert [to_line(each).rstrip("\n") for each in run.records] == lines


# A real run


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.timeout(3000)
def test_every_later_command_works(recorded: Recording, tmp_path: Path) -> None:
    states = list(distinct_states(recorded.crashes()))
    assert len(states) >= STATES_AT_LEAST
    reported = {id(state) for state in thinned(states, REPORTS)}
    read: set[str] = set()
    for state in states:
        results = written_out(state, tmp_path / "state")
        content = trees.digest(without_jobs(state.tree))
        commands = list(COMMANDS[:1] if content in read else COMMANDS[:3])
        if id(state) in reported:
            commands.append((*COMMANDS[3], "--out", str(tmp_path / "report")))
        read.add(content)
        for words in commands:
            found = answer(*words, "--results", str(results))
            assert is_answer(found.status, found.text), (state.in_words, words, found)


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.timeout(600)
def test_real_command_lines_work(recorded: Recording, tmp_path: Path) -> None:
    states = thinned(list(distinct_states(recorded.crashes())), REAL_COMMANDS)
    for words, state in zip(itertools.cycle((*COMMANDS, *MORE_COMMANDS)), states, strict=False):
        results = written_out(state, tmp_path / "state")
        out = ("--out", str(tmp_path / "out")) if words[0] in ("report", "figures") else ()
        done = ckptbench(*words, *out, "--results", str(results))
        assert is_answer(done.returncode, done.stdout + done.stderr), (state.in_words, words, done)


@pytest.mark.slow
@pytest.mark.patient
def test_a_new_run_begins_beside_a_struck_one(recorded: Recording, tmp_path: Path) -> None:
    here = machine.capture(tmp_path)
    for state in distinct_states(recorded.crashes()):
        results = written_out(state, tmp_path / "state")
        beside = store.create(results, "smoke", ["ckptbench"], [planned()], here)
        calibration.earlier_sweeps(beside, 16 << 20)
        assert store.find(results, "latest") == beside.folder, state.in_words
        beside.close()


@pytest.mark.slow
@pytest.mark.patient
def test_a_kill_loses_no_line_of_a_worker_and_repeats_none(
    recorded: Recording, tmp_path: Path
) -> None:
    crashes = recorded.crashes()
    written = written_at(crashes)
    for state in distinct_states(crashes):
        if state.strike != "kill":
            continue
        results = written_out(state, tmp_path / "state")
        folder = run_in(results)
        before = records_in(state.tree)
        if folder is not None:
            stored = StoredRun(folder)
            assert stored.records == [parse(line) for line in before], state.in_words
            assert stored.damages == [], state.in_words
        salvaged(results)
        after = records_in(trees.read(tmp_path / "state"))
        assert after[: len(before)] == before, state.in_words
        lines = Counter(after)
        assert lines >= Counter(written[state.instant].all), state.in_words
        assert not lines or max(lines.values()) == 1, state.in_words


@pytest.mark.slow
@pytest.mark.patient
def test_a_power_loss_takes_no_record_of_a_finished_job(
    recorded: Recording, tmp_path: Path
) -> None:
    crashes = recorded.crashes()
    written = written_at(crashes)
    assert written[-1].finished == written[-1].all
    for state in distinct_states(crashes):
        if state.strike == "kill":
            continue
        results = written_out(state, tmp_path / "state")
        run = salvaged(results)
        stored = [] if run is None else [to_line(each).rstrip("\n") for each in run.records]
        assert Counter(stored) >= Counter(written[state.instant].finished), state.in_words
        if run is None:
            continue
        again = store.Run(run.folder)
        again.append(records.failure())
        again.close()
        assert StoredRun(run.folder).records == [*run.records, records.failure()], state.in_words


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.timeout(3000)
def test_a_struck_run_goes_on_to_its_end(recorded: Recording, tmp_path: Path) -> None:
    kinds: Counter[str] = Counter()
    for state in chosen_to_resume(recorded):
        struck = salvaged(written_out(state, tmp_path / "struck"))
        assert struck is not None
        results = written_out(state, tmp_path / "state")
        done = ckptbench("run", "--resume", "latest", "--results", str(results))
        assert done.returncode == 0, (state.in_words, done.stderr)
        run = store.Run(store.find(results, "latest"))
        assert counted(run.records) == wanted(run) + saved_again(struck), state.in_words
        assert not run.jobs.exists()
        kinds[kind_of(state)] += 1
    assert len(kinds) >= 5, kinds
    assert kinds.total() >= 25


def chosen_to_resume(recorded: Recording) -> list[CrashState]:
    """Return states with a run in them, evenly spread over each kind of strike."""
    seen = [state for state in distinct_states(recorded.crashes()) if has_run(state.tree)]
    kinds = sorted({kind_of(state) for state in seen})
    of_kinds = [[state for state in seen if kind_of(state) == kind] for kind in kinds]
    return list(itertools.chain(*(thinned(states, RESUMED_OF_EACH_KIND) for states in of_kinds)))


def has_run(tree: Tree) -> bool:
    return any(name.endswith("/records.jsonl") for name in tree)


def kind_of(state: CrashState) -> str:
    """Return which strike it is, and how much of what was not flushed a power loss takes."""
    ends = (
        "files keep their new length",
        "all that was not flushed is lost",
        "all names are there",
        "nothing is lost",
    )
    if state.strike == "kill":
        return "kill"
    return next((words for words in ends if words in state.in_words), "one thing is lost")


def wanted(run: store.Run) -> Counter[tuple[str, str, int, int]]:
    """Return the number of samples of each cell of a plan."""
    return Counter(
        {
            (kind, item.case.id, process, 0): item.samples
            for item in run.plan
            for process in range(item.processes)
            for kind in ("save", "load")
        }
    )


def saved_again(struck: store.Run) -> Counter[tuple[str, str, int, int]]:
    """Return the saves that a resume takes once more, because the loads still need a checkpoint.

    The recorded run has removed its checkpoints by now. A save that lacks samples is taken anyway.
    """
    cells = wanted(struck)
    missing = cells - counted(struck.records)
    saves = [("save", *cell[1:]) for cell in missing if cell[0] == "load"]
    return Counter(save for save in saves if save not in missing)


def ckptbench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CKPTBENCH, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
