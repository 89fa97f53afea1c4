"""Verdicts on handwritten logs, for orders of calls that no program makes at will."""

from __future__ import annotations

from pathlib import Path

import pytest
from traced_saves import (
    AT_RETURN,
    CASE,
    CREATE,
    FSYNC,
    FSYNC_ROOT,
    NEVER,
    SAFE_END,
    WRITE,
    judge,
    verdicts,
)

# The marks are made by thread 7, so calls that overlap them belong to others.
WRITE_ENTERED = '8 write(3</s/m>, ""..., 9 <unfinished ...>'
WRITE_RETURNED = "8 <... write resumed>) = 9"
FSYNC_ENTERED = "9 fsync(3</s/m> <unfinished ...>"
FSYNC_RETURNED = "9 <... fsync resumed>) = 0"


def test_the_shortest_safe_log(tmp_path: Path) -> None:
    assert verdicts(judge(tmp_path, "begin", CREATE, WRITE, *SAFE_END)) == AT_RETURN


# Calls that overlap


@pytest.mark.parametrize(
    ("lines", "data_durability"),
    [
        ((WRITE_ENTERED, FSYNC_ENTERED, FSYNC_RETURNED, WRITE_RETURNED), "never"),
        ((WRITE_ENTERED, FSYNC_ENTERED, WRITE_RETURNED, FSYNC_RETURNED), "never"),
        ((FSYNC_ENTERED, WRITE_ENTERED, WRITE_RETURNED, FSYNC_RETURNED), "never"),
        ((WRITE_ENTERED, WRITE_RETURNED, FSYNC_ENTERED, FSYNC_RETURNED), "at return"),
    ],
)
def test_a_flush_does_not_cover_a_write_that_overlaps_it(
    tmp_path: Path, lines: tuple[str, ...], data_durability: str
) -> None:
    record = judge(tmp_path, "begin", CREATE, *lines, FSYNC_ROOT, "returned", "finished")
    assert record.data_durability == data_durability


def test_a_flush_counts_from_its_return(tmp_path: Path) -> None:
    lines = (FSYNC_ENTERED, "returned", FSYNC_RETURNED, FSYNC_ROOT, "finished")
    record = judge(tmp_path, "begin", CREATE, WRITE, *lines)
    assert verdicts(record) == ("at finished", "at finished")


def test_a_flush_that_returns_after_finished_comes_too_late(tmp_path: Path) -> None:
    lines = (FSYNC_ENTERED, "returned", FSYNC_ROOT, "finished", FSYNC_RETURNED)
    assert verdicts(judge(tmp_path, "begin", CREATE, WRITE, *lines)) == NEVER


def test_a_write_in_flight_at_finished(tmp_path: Path) -> None:
    lines = (CREATE, WRITE, FSYNC, FSYNC_ROOT, WRITE_ENTERED)
    record = judge(tmp_path, "begin", *lines, "returned", "finished")
    assert record.data_durability == "never"


def test_a_write_in_which_its_process_ended(tmp_path: Path) -> None:
    killed = '8 write(3</s/m>, ""..., 9 <unfinished ...>) = ?'
    record = judge(tmp_path, "begin", CREATE, WRITE, killed, *SAFE_END)
    assert record.data_durability == "never"


# Calls that fail


def test_a_failed_flush_does_nothing(tmp_path: Path) -> None:
    failed = "7 fsync(3</s/m>) = -1 EIO (Input/output error)"
    lines = (CREATE, WRITE, failed, FSYNC_ROOT)
    record = judge(tmp_path, "begin", *lines, "returned", "finished")
    assert record.data_durability == "never"
    assert record.fsyncs == 1


def test_a_refused_ring_hides_nothing(tmp_path: Path) -> None:
    refused = "7 io_uring_setup(8, {flags=0}) = -1 EPERM (Operation not permitted)"
    record = judge(tmp_path, "begin", CREATE, WRITE, refused, *SAFE_END)
    assert record.durability == "at return"


# Calls that the log cannot show


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            "io_uring_setup",
            "7 io_uring_setup(8, {flags=0, sq_thread_cpu=0}) = 5<anon_inode:[io_uring]>",
        ),
        (
            "io_uring_enter",
            "7 io_uring_enter(5<anon_inode:[io_uring]>, 1, 0, 0, NULL, 8) = 1",
        ),
        (
            "io_submit",
            "7 io_submit(0x7f, 1, [{aio_data=0, aio_lio_opcode=IOCB_CMD_PWRITE, "
            "aio_fildes=3</s/m>, aio_nbytes=9}]) = 1",
        ),
    ],
)
def test_rings_hide_writes(tmp_path: Path, call: str, line: str) -> None:
    record = judge(tmp_path, "begin", CREATE, WRITE, line, *SAFE_END)
    assert verdicts(record) == ("unknown", "unknown")
    assert record.reason == (
        f"a process called {call}, and writes through it do not show in the log"
    )
    assert record.writes == 1
    before_the_save = judge(tmp_path, line, "begin", CREATE, WRITE, *SAFE_END)
    assert before_the_save.durability == "at return"


def test_a_polled_ring_hides_writes_from_its_set_up_on(tmp_path: Path) -> None:
    ring = (
        "7 io_uring_setup(8, {flags=IORING_SETUP_SQPOLL, sq_thread_cpu=0}) "
        "= 5<anon_inode:[io_uring]>"
    )
    record = judge(tmp_path, ring, "begin", CREATE, WRITE, *SAFE_END)
    assert record.durability == "unknown"


def test_missing_marks(tmp_path: Path) -> None:
    record = judge(tmp_path, "begin", CREATE, WRITE, FSYNC, "returned")
    assert verdicts(record) == ("unknown", "unknown")
    assert record.reason == (
        f"the log does not hold the whole save, because it has no mark 'finished' of case {CASE}"
    )


def test_rename_exchange(tmp_path: Path) -> None:
    other = [line.replace("/s/m", "/s/n") for line in (CREATE, WRITE)]
    swap = '7 renameat2(AT_FDCWD</>, "/s/m", AT_FDCWD</>, "/s/n", RENAME_EXCHANGE) = 0'
    lines = (CREATE, WRITE, FSYNC, *other, swap, FSYNC_ROOT)
    record = judge(tmp_path, "begin", *lines, "returned", "finished")
    assert record.reason == "m was written and not flushed before the save finished"
    assert record.files == 2
