"""The command `faults` lists the states of a stored save, and writes out the one that was tried."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Measure, Measured, planned
from stubs import command
from traced_saves import require_strace

from harness.durability import trees
from harness.experiments.faults import struck
from harness.experiments.faults.states import States
from harness.run.errors import UsageError
from harness.run.plan import PlannedCase
from harness.run.stored import StoredRun

INSTANTS = 6


def struck_item(method: str = "buffered") -> PlannedCase:
    """Return a case of the experiment."""
    item = planned(method, experiment="faults")
    return replace(item, case=replace(item.case, settings={"instants": INSTANTS, "kills": 1}))


@pytest.fixture(scope="module")
def measured(measure: Measure, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Measure a case of the experiment beside a case of another one."""
    require_strace()
    results = tmp_path_factory.mktemp("faults")
    return measure([struck_item(), planned("npz", samples=1)], results=results)


@pytest.fixture
def copied(measured: Measured, tmp_path: Path) -> StoredRun:
    """Return a copy of the run, for a test to change."""
    return StoredRun(shutil.copytree(measured.run.folder, tmp_path / measured.run.name))


def complaint(run: StoredRun, *arguments: str) -> str:
    """Return the sentence with which the command refuses its arguments."""
    done = command("faults", str(run.folder), *arguments)
    assert done.status == 2, done.output + done.errors
    assert not done.escaped
    return done.errors.removeprefix("ckptbench: ").strip()


def test_the_states_are_listed_worst_first(measured: Measured) -> None:
    case = struck.find_case(measured.run, "buffered")
    records = struck.worst_first(measured.run, case)
    ranks = [["lost", "silent", "refused", "safe"].index(record.verdict) for record in records]
    assert ranks == sorted(ranks)
    assert len(records) == len({record.number for record in records})
    done = command("faults", str(measured.run.folder), "--case", "buffered")
    assert done.status == 0, done.errors
    assert "the first 20 are here, and --all lists the rest" in done.output
    lines = [line.split() for line in done.output.splitlines()]
    numbers = [int(words[0]) for words in lines if words and words[0].isdecimal()]
    distinct = [record.number for record in records if record.again is None]
    assert [number for number in numbers if number in distinct][:20] == distinct[:20]


def test_all_lists_every_state(measured: Measured) -> None:
    case = struck.find_case(measured.run, "buffered")
    done = command("faults", str(measured.run.folder), "--case", case.id, "--all")
    for record in struck.worst_first(measured.run, case):
        assert f" {record.number} " in done.output


def test_a_written_state_is_the_directory_that_was_tried(
    measured: Measured, tmp_path: Path
) -> None:
    run = measured.run
    case = struck.find_case(run, "buffered")
    states = States(run.files(case), case.id, INSTANTS)
    tried = {state.number: trees.digest(state.tree) for state in states}
    records = struck.worst_first(run, case)
    assert set(tried) == {record.number for record in records}
    # The experiment loads directories once that are equal and may bring the same checkpoints back,
    # so `again` shows which ones it saw as equal.
    whose = {state.number: state.left.expected if state.left else "" for state in states}
    first: dict[tuple[str, str], int] = {}
    for record in sorted(records, key=lambda record: record.number):
        equal = (whose[record.number], tried[record.number])
        earlier = first.setdefault(equal, record.number)
        assert record.again == (None if earlier == record.number else earlier)
    for record in records[::25]:
        folder = tmp_path / str(record.number)
        struck.write_state(run, case, record.number, folder)
        assert trees.digest(trees.read(folder)) == tried[record.number]


def test_the_command_says_what_to_do_with_a_written_state(
    measured: Measured, tmp_path: Path
) -> None:
    case = struck.find_case(measured.run, "buffered")
    worst = struck.worst_first(measured.run, case)[0]
    folder = tmp_path / "state"
    done = command(
        *("faults", str(measured.run.folder), "--case", "buffered"),
        *("--state", str(worst.number), "--out", str(folder)),
    )
    assert done.status == 0, done.errors
    assert worst.in_words in done.output
    assert f"The verdict of run {measured.run.name}: {worst.verdict}" in done.output
    assert f"Next: load {folder}/step-2" in done.output


def test_an_unknown_run_is_refused_with_the_nearest_name(measured: Measured) -> None:
    name = measured.run.name
    results = str(measured.run.folder.parent)
    done = command("faults", name[:-1], "--case", "buffered", "--results", results)
    assert done.status == 2
    assert f"did you mean '{name}'?" in done.errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "bufered"], "unknown case 'bufered' in run RUN; did you mean 'buffered'?"),
        (["--case", "npz"], "case 'npz' in run RUN is of experiment 'cost', which strikes nothing"),
        (["--case", "buffered", "--framework", "rav"], "unknown framework 'rav' in run RUN"),
        (
            ["--case", "buffered", "--state", "100000", "--out", "OUT/new"],
            "unknown state 100000 of case buffered in run RUN; its states are 0 to ",
        ),
        (["--case", "buffered", "--state", "0"], "--state needs --out"),
        (["--case", "buffered", "--out", "OUT/new"], "--out needs --state"),
        (["--case", "buffered", "--state", "0", "--out", "OUT"], "--out OUT is not empty"),
        (["--case", "buffered", "--state", "0", "--out", "OUT/file"], "--out OUT/file is a file"),
    ],
)
def test_wrong_words_get_one_sentence(
    measured: Measured, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "file").write_text("kept")
    here = [argument.replace("OUT", str(tmp_path)) for argument in arguments]
    wanted = message.replace("OUT", str(tmp_path)).replace("RUN", measured.run.name)
    assert wanted in complaint(measured.run, *here)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_without_recordings_says_that_reference_runs_lack_them(
    copied: StoredRun, tmp_path: Path
) -> None:
    shutil.rmtree(copied.folder / "faults")
    case = struck.find_case(copied, "buffered")
    assert struck.worst_first(copied, case), "the verdicts are in the records"
    with pytest.raises(UsageError, match="reference runs are stored without recordings"):
        struck.write_state(copied, case, 0, tmp_path / "state")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("name", ["root.json", "before.tar", "after.tar", "calls.log.gz"])
def test_a_damaged_recording_is_refused(copied: StoredRun, tmp_path: Path, name: str) -> None:
    case = struck.find_case(copied, "buffered")
    file = copied.files(case) / name
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(UsageError, match="cannot be "):
        struck.write_state(copied, case, 0, tmp_path / "state")


def test_a_version_that_strikes_other_states_is_refused(copied: StoredRun, tmp_path: Path) -> None:
    case = struck.find_case(copied, "buffered")
    changed = []
    for record in copied.records:
        if isinstance(record, struck.StruckRecord):
            record = replace(record, in_words=f"{record.in_words}, differently")
        changed.append(record)
    copied.records = changed
    with pytest.raises(UsageError, match="this version of ckptbench strikes other states"):
        struck.write_state(copied, case, 0, tmp_path / "state")


def test_a_case_of_several_frameworks_needs_its_framework(measured: Measured) -> None:
    item = measured.run.plan[0]
    other = replace(item, case=replace(item.case, framework="jax"))
    run = StoredRun(measured.run.folder)
    vars(run)["plan"] = [item, other]
    with pytest.raises(UsageError, match="add --framework, or name one of them by its identifier"):
        struck.find_case(run, "buffered")
    assert struck.find_case(run, "buffered", "jax") == other.case
    assert struck.find_case(run, other.case.id) == other.case
