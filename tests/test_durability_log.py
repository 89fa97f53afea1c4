"""Reading strace's lines into calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from traced_saves import AT_RETURN, CREATE, FSYNC, FSYNC_ROOT, SAFE_END, WRITE, judge, verdicts

from harness.durability import log
from harness.durability.calls import Descriptor, UnreadableError


def test_every_argument_is_read(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(
        '7 openat(AT_FDCWD</w>, "a \\"b\\", (c", O_RDWR|O_CREAT, 0666) = 3</w/a>\n'
        '7 pwrite64(3</w/a>, "pay, load\\0"..., 9, 4096) = 9\n'
        "7 writev(3</w/a>, [{iov_base=0x7f, iov_len=4}, {iov_base=0x80, iov_len=5}], 2) = 9\n"
    )
    openat, pwrite, writev = log.read(file)
    assert openat.arguments == ("AT_FDCWD</w>", '"a \\"b\\", (c"', "O_RDWR|O_CREAT", "0666")
    assert openat.descriptor(0) == Descriptor(-1, "/w", is_deleted=False)
    assert openat.returned_descriptor == Descriptor(3, "/w/a", is_deleted=False)
    assert openat.open_flags == {"O_RDWR", "O_CREAT"}
    assert pwrite.arguments == ("3</w/a>", '"pay, load\\0"...', "9", "4096")
    assert (pwrite.number(3), pwrite.value) == (4096, 9)
    assert writev.argument(1) == "[{iov_base=0x7f, iov_len=4}, {iov_base=0x80, iov_len=5}]"


def test_an_absent_argument_is_an_error() -> None:
    [fsync] = log.parse([FSYNC])
    with pytest.raises(UnreadableError, match="the log shows too few arguments of fsync"):
        fsync.argument(1)


def test_calls_come_in_the_order_of_their_return() -> None:
    lines = [
        "7 fsync(3</a> <unfinished ...>",
        "8 fsync(4</b> <unfinished ...>",
        "9 fsync(5</c>) = 0",
        "8 <... fsync resumed>) = 0",
    ]
    calls = list(log.parse(lines))
    assert [call.descriptor(0).path for call in calls] == ["/c", "/b", "/a"]
    assert [call.start for call in calls] == [2, 1, 0]
    assert [call.has_returned for call in calls] == [True, True, False]


def test_exits_and_signals_are_no_calls() -> None:
    lines = ["7 +++ exited with 0 +++", "7 --- SIGCHLD {si_signo=SIGCHLD} ---", FSYNC]
    assert [call.name for call in log.parse(lines)] == ["fsync"]


def test_a_resumed_call_is_read_whole(tmp_path: Path) -> None:
    lines = [
        '7 write(3</s/m>, ""..., 9 <unfinished ...>',
        "8 fsync(5</x> <unfinished ...>",
        "7 <... write resumed>) = 9",
        "8 <... fsync resumed>) = 0",
    ]
    record = judge(tmp_path, "begin", CREATE, *lines, *SAFE_END)
    assert verdicts(record) == AT_RETURN
    assert record.write_bytes == 9


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("7 <... write resumed>) = 9", "line 4 of the log cannot be read"),
        ("7 write(3</s/m>, 9", "line 4 of the log cannot be read"),
        ("7 wri", "line 4 of the log cannot be read"),
        (
            '7 write(3, ""..., 9) = 9',
            "line 4 of the log cannot be interpreted, because the descriptor '3' has no path",
        ),
        (
            '7 unlink("m") = 0',
            "line 4 of the log cannot be interpreted, "
            "because its path is relative and the working directory is not known",
        ),
        (
            "7 unlink() = 0",
            "line 4 of the log cannot be interpreted, because the log shows no path for unlink",
        ),
    ],
)
def test_unreadable_lines(tmp_path: Path, line: str, reason: str) -> None:
    # Without a path, AT_FDCWD does not show the working directory.
    save = [text.replace("AT_FDCWD</>", "AT_FDCWD") for text in (CREATE, WRITE)]
    record = judge(tmp_path, "begin", *save, line, *SAFE_END)
    assert verdicts(record) == ("unknown", "unknown")
    assert record.reason == reason
    before_the_save = judge(tmp_path, line, "begin", *save, *SAFE_END)
    assert before_the_save.durability == "at return"


def test_old_spelling_of_deleted(tmp_path: Path) -> None:
    write_after_unlink = ['7 unlink("/s/m") = 0', '7 write(3</s/m (deleted)>, ""..., 9) = 9']
    other = [line.replace("/s/m", "/s/n") for line in (CREATE, WRITE, FSYNC)]
    lines = (CREATE, *write_after_unlink, *other, FSYNC_ROOT)
    record = judge(tmp_path, "begin", *lines, "returned", "finished")
    assert record.durability == "at return"
