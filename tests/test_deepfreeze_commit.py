"""DeepFreeze's ranks agree on a checkpoint: all have it or none, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deepfreeze_states import (
    ROOT,
    SPECS,
    STEP,
    broken,
    equal,
    gated,
    new_engine,
    rank_state,
    save_together,
)

from adapters.deepfreeze import commit, meeting, watch
from adapters.deepfreeze.common_commit import CommonCommit
from adapters.deepfreeze.errors import CommitFailed
from adapters.deepfreeze.meeting import Meeting
from adapters.deepfreeze.processes import Process

pytest_plugins = ["deepfreeze_fixtures"]


def meeting_of(checkpoint: Path) -> Path:
    """Return the directory in which the ranks of the first save meet."""
    return commit.partial_path(checkpoint, "session-1")


def wait_until(is_reached: Callable[[], object]) -> None:
    """Return when the condition holds, or after half a minute."""
    deadline_s = time.monotonic() + 30
    while not is_reached() and time.monotonic() < deadline_s:
        time.sleep(0.01)


# A rank that fails


def test_a_rank_that_fails_costs_all_of_them_the_checkpoint(folder: Path) -> None:
    for failing in (0, 1):
        sources = [rank_state(0), rank_state(1)]
        sources[failing] = broken(sources[failing], "rng/cpu")
        errors = save_together(folder / "checkpoint", 2, sources.__getitem__)
        assert str(errors[failing]) == "[Errno 5] Input/output error"
        assert isinstance(errors[1 - failing], CommitFailed)
        assert list(folder.iterdir()) == []


class Trainer:
    """Two ranks that save over and over. Only the second one asks whether its save has finished."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engines = [new_engine(rank, 2) for rank in range(2)]

    def save(self, name: str, does_fail: bool = False) -> list[BaseException | None]:
        """Save on both ranks and return what each one raised. The second one may fail."""
        with ThreadPoolExecutor() as pool:
            saves = [
                pool.submit(self._save, rank, name, does_fail and rank == 1) for rank in range(2)
            ]
            return [save.result() for save in saves]

    def wait(self) -> None:
        for engine in self._engines:
            engine.wait()

    def _save(self, rank: int, name: str, does_fail: bool) -> BaseException | None:
        sources = broken(rank_state(rank), "rng/cpu") if does_fail else rank_state(rank)
        try:
            save = self._engines[rank].save(sources, self._folder / name, STEP)
            save.staged()
            if rank == 1:
                save.finished()
        except OSError as error:
            return error
        return None


@pytest.mark.usefixtures("impatient")
def test_ranks_that_learn_of_a_failure_at_different_times_save_together_again(
    folder: Path,
) -> None:
    trainer = Trainer(folder)
    first, second = trainer.save("first", does_fail=True)
    assert (first, str(second)) == (None, "[Errno 5] Input/output error")
    first, second = trainer.save("second")
    assert isinstance(first, CommitFailed), "this is the error of the first save"
    assert second is None, "the other rank has started this save nevertheless"
    assert trainer.save("third") == [None, None]
    trainer.wait()
    assert sorted(path.name for path in folder.iterdir()) == ["second", "third"]
    for name, rank in itertools.product(("second", "third"), range(2)):
        assert equal(new_engine(rank, 2).load(folder / name, SPECS, {}), rank_state(rank))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_start_does_not_keep_the_others_waiting(folder: Path, rank: int) -> None:
    engines = [new_engine(number, 2) for number in range(2)]
    with ThreadPoolExecutor() as pool:
        refusing = pool.submit(engines[rank].refuse, folder / "first")
        with pytest.raises(CommitFailed, match="could not write its share"):
            engines[1 - rank].save(rank_state(1 - rank), folder / "first", STEP).finished()
        refusing.result(30)
        saves = [
            engine.save(rank_state(number), folder / "second", STEP)
            for number, engine in enumerate(engines)
        ]
        for save in saves:
            save.finished()
    assert [path.name for path in folder.iterdir()] == ["second"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("step", ["come", "begin", "report"])
def test_a_rank_that_cannot_even_begin_or_report_it_costs_all_of_them_the_checkpoint(
    folder: Path, failing: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = CommonCommit if step == "begin" else Meeting
    original = getattr(part, step)

    def fail(self: CommonCommit | Meeting, *arguments: str) -> None:
        rank = self._rank if isinstance(self, CommonCommit) else self._mark.rank
        if rank == failing:
            raise OSError(28, "No space left on device")
        original(self, *arguments)

    tell = Meeting.fail

    def tell_nobody(self: Meeting) -> None:
        if self._mark.rank == failing:
            raise OSError(28, "No space left on device")
        tell(self)

    # Beside other tests, the other rank may come a second late.
    monkeypatch.setattr(watch, "ABSENT_S", 5.0)
    monkeypatch.setattr(part, step, fail)
    monkeypatch.setattr(Meeting, "fail", tell_nobody)
    errors = save_together(folder / "checkpoint", 2, rank_state)
    assert str(errors[failing]) == "[Errno 28] No space left on device"
    assert isinstance(errors[1 - failing], CommitFailed)
    assert not (folder / "checkpoint").exists()
    assert not list(folder.rglob("*.safetensors")), "no share takes room"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("failing", [0, 1])
def test_the_others_learn_at_once_of_a_rank_that_cannot_come(
    folder: Path, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would wait ten minutes for a rank that is only late."""
    come = Meeting.come

    def fail(self: Meeting) -> None:
        if self._mark.rank == failing:
            raise OSError(24, "Too many open files")
        come(self)

    monkeypatch.setattr(Meeting, "come", fail)
    errors = save_together(folder / "checkpoint", 2, rank_state)
    assert str(errors[failing]) == "[Errno 24] Too many open files"
    assert isinstance(errors[1 - failing], CommitFailed)
    assert not (folder / "checkpoint").exists()


def test_ranks_that_all_find_the_name_taken_do_not_wait_for_each_other(saved: Path) -> None:
    errors = save_together(saved, 2, rank_state)
    assert [type(error) for error in errors] == [FileExistsError, FileExistsError]
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


# A directory that cannot be flushed


@pytest.fixture
def unsyncable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that the checkpoints are in cannot be flushed."""

    def fail(path: Path) -> None:
        if path == folder:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(commit, "sync_directory", fail)


@pytest.mark.usefixtures("unsyncable")
def test_no_rank_calls_durable_what_rank_0_could_not_make_so(folder: Path) -> None:
    errors = save_together(folder / "checkpoint", 3, rank_state)
    assert str(errors[0]) == "[Errno 5] Input/output error"
    assert all(isinstance(error, CommitFailed) for error in errors[1:])
    assert [path.name for path in folder.iterdir()] == ["checkpoint"], (
        "it is visible, and may not outlive a power loss"
    )


@pytest.mark.usefixtures("unsyncable")
def test_ranks_that_learn_of_the_failure_while_rank_0_clears_up_leave_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = os.rmdir
    removed: list[str | Path] = []

    def rename_a_mark_before(path: str | Path, **options: int) -> None:
        if not removed and str(path).endswith(commit.PARTIAL_SUFFIX):
            removed.append(path)
            (Path(path) / f"rank-1.{os.uname().nodename}.failed").touch()
        remove(path, **options)

    monkeypatch.setattr(os, "rmdir", rename_a_mark_before)
    save_together(folder / "checkpoint", 2, rank_state)
    assert removed
    assert [path.name for path in folder.iterdir()] == ["checkpoint"]


# A rank that dies, or cannot be seen

DYING_RANK = """
import sys, time
from pathlib import Path
from adapters.deepfreeze.common_commit import CommonCommit
CommonCommit(Path(sys.argv[1]), "session-1", int(sys.argv[2]), 2, lambda seals: b"").begin()
print("begun", flush=True)
time.sleep(60)
"""

SAY_WHO = """
import json, time
from adapters.deepfreeze.processes import Process
print(json.dumps(Process.this()), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_dies_is_noticed_by_the_others(folder: Path, dying: int) -> None:
    command = [sys.executable, "-c", DYING_RANK, str(folder / "checkpoint"), str(dying)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        save = new_engine(1 - dying, 2).save(rank_state(1 - dying), folder / "checkpoint", STEP)
        save.staged()
        other.kill()
        with pytest.raises(CommitFailed, match=f"rank {dying} ended before .* was complete"):
            save.finished()
    assert not (folder / "checkpoint").exists()


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_died_before_it_came_is_missed_at_once(folder: Path, dying: int) -> None:
    command = [sys.executable, "-c", SAY_WHO]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        process = Process(*json.loads(other.stdout.readline()))
        assert not process.has_ended()
        processes = [process if rank == dying else Process.this() for rank in (0, 1)]
        engine = new_engine(1 - dying, 2, processes=processes)
        save = engine.save(rank_state(1 - dying), folder / "checkpoint", STEP)
        save.staged()
        assert not save._lifecycle.wait_until_ended(1.2), "the other rank may still come"
        other.kill()
        with pytest.raises(CommitFailed, match=f"rank {dying} ended before it began to save"):
            save.finished()
    assert not (folder / "checkpoint").exists()


def test_another_process_with_the_number_of_one_that_ended_is_told_apart() -> None:
    process = Process.this()
    assert process is not None
    assert not process.has_ended()
    assert process._replace(start_ticks=process.start_ticks - 1).has_ended()
    assert not process._replace(boot="another host", start_ticks=0).has_ended()
    assert not process._replace(namespace="pid:[1]", start_ticks=0).has_ended()


@pytest.mark.usefixtures("impatient")
def test_a_rank_that_nobody_can_see_is_dead_when_it_gives_no_sign_of_life(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SILENT_S", 0.3)
    meeting_folder = meeting_of(folder / "checkpoint")
    meeting_folder.mkdir()
    (meeting_folder / "rank-1.elsewhere.writing").touch()
    save = new_engine(0, 2).save(rank_state(0), folder / "checkpoint", STEP)
    assert save._lifecycle.wait_until_ended(30), "it waits for ever"
    with pytest.raises(CommitFailed, match="rank 1 has given no sign of life in 0 seconds"):
        save.finished()
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("impatient")
def test_a_rank_that_takes_long_gives_signs_of_life(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SILENT_S", 2.0)
    monkeypatch.setattr(meeting, "BEAT_S", 0.02)
    assert save_beside_a_late_rank(folder / "checkpoint", delay_s=3.0) == [None, None]


@pytest.mark.usefixtures("impatient")
def test_a_free_lock_is_no_death_on_a_file_system_without_locks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def refuse_rank_1(descriptor: int, operation: int) -> None:
        if "coming-1" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(37, "No locks available")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refuse_rank_1)
    assert save_beside_a_late_rank(folder / "checkpoint", delay_s=0.5) == [None, None]


def save_beside_a_late_rank(path: Path, delay_s: float) -> list[BaseException | None]:
    """Save on two ranks, and return what each one raised. The second one copies after a delay."""
    gate, late = gated(rank_state(1), "rng/cpu")
    sources = [rank_state(0), late]
    threading.Timer(delay_s, gate.open.set).start()
    return save_together(path, 2, sources.__getitem__)


@pytest.mark.usefixtures("impatient")
def test_a_rank_that_has_left_is_not_waited_for(folder: Path) -> None:
    save = new_engine(1, 2).save(rank_state(1), folder / "checkpoint", STEP)
    mark = meeting_of(folder / "checkpoint") / "rank-0.elsewhere.writing"
    mark.touch()
    assert isinstance(save._commit, CommonCommit)
    absent = save._commit._watch.absent
    wait_until(lambda: 0 not in absent)
    # A file system may show neither its last report nor that the meeting is over.
    mark.unlink()
    with pytest.raises(CommitFailed, match="rank 0 has left before"):
        save.finished()


@pytest.mark.parametrize("step", ["_take_shares", "_publish"])
def test_a_rank_that_cannot_see_the_others_any_more_tears_no_checkpoint(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 gives up when rank 0 knows that all shares are durable, and has taken them or not."""
    reached = threading.Event()
    ended = threading.Event()
    original = getattr(CommonCommit, step)

    def see_nothing(self: CommonCommit) -> bool:
        assert reached.wait(30)
        raise OSError(24, "Too many open files")

    def wait_before(self: CommonCommit) -> None:
        reached.set()
        assert ended.wait(30)
        original(self)

    monkeypatch.setattr(CommonCommit, "_has_published", see_nothing)
    monkeypatch.setattr(CommonCommit, step, wait_before)
    first = new_engine(0, 2).save(rank_state(0), folder / "checkpoint", STEP)
    with pytest.raises(OSError, match="Too many open files"):
        new_engine(1, 2).save(rank_state(1), folder / "checkpoint", STEP).finished()
    ended.set()
    if step == "_take_shares":
        with pytest.raises(CommitFailed, match="rank 1 has withdrawn its share"):
            first.finished()
        assert list(folder.iterdir()) == []
    else:
        first.finished()
        for rank in range(2):
            loaded = new_engine(rank, 2).load(folder / "checkpoint", SPECS, {})
            assert equal(loaded, rank_state(rank))


# A meeting that is over


def test_a_meeting_without_marks_is_over_even_if_its_directory_stays(folder: Path) -> None:
    save = new_engine(1, 2).save(rank_state(1), folder / "checkpoint", STEP)
    meeting_folder = meeting_of(folder / "checkpoint")
    wait_until(lambda: list(meeting_folder.glob("rank-1.*.done-*")))
    for mark in meeting_folder.glob("rank-*"):
        mark.unlink()
    with pytest.raises(CommitFailed, match="another rank could not write its share"):
        save.finished()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("step", ["come", "report"])
def test_a_rank_whose_meeting_is_cleared_up_before_it_has_come_learns_that_another_has_failed(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 fails at once and removes what is there, while another rank is on its way."""
    original = getattr(Meeting, step)

    def step_after_removal(self: Meeting, *arguments: str) -> None:
        shutil.rmtree(self.folder)
        original(self, *arguments)

    monkeypatch.setattr(Meeting, step, step_after_removal)
    with pytest.raises(CommitFailed, match="another rank could not write its share"):
        new_engine(1, 2).save(rank_state(1), folder / "checkpoint", STEP).finished()
