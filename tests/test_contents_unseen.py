"""Saves whose bytes a log does not hold are refused, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from replayed_saves import record
from traced_saves import CASE

from harness.durability import log
from harness.durability.crashes import Crashes, NotSeenError
from harness.durability.trees import File
from harness.durability.window import find_window

OPEN = "fd = os.open(at('m'), os.O_CREAT | os.O_RDWR)\n"
LIBRARY = """
import ctypes
library = ctypes.CDLL(None, use_errno=True)
fallocate = lambda mode: library.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(4096))
"""
BY_SOCKET = """
import socket
here, there = socket.socketpair()
socket.send_fds(here, [b'x'], [fd])
_, received, _, _ = socket.recv_fds(there, 1, 1)
os.write(received[0], b'def')
"""
ELSEWHERE = "other = open(root + '-elsewhere', 'w+b', buffering=0)\n"


def refusal(tmp_path: Path, save: str, setup: str = "") -> str:
    """Return the reason why a save is refused, without the number of the line."""
    recorded = record(tmp_path, save, setup)
    with pytest.raises(NotSeenError) as caught:
        recorded.crashes().follow(recorded.after)
    return str(caught.value).split(" of the log does not tell enough: ")[-1]


@pytest.mark.parametrize(
    ("save", "reason"),
    [
        ("os.ftruncate(fd, 8192); mmap.mmap(fd, 8192)[0] = 1", "m is mapped for writing"),
        (
            "pipe = os.pipe(); os.write(pipe[1], b'abc'); os.splice(pipe[0], fd, 3)",
            "the log does not show the bytes that m gets by splice",
        ),
        (
            "os.write(fd, bytes(9000)); assert fallocate(3) == 0",
            "fallocate with FALLOC_FL_KEEP_SIZE|FALLOC_FL_PUNCH_HOLE is not modelled",
        ),
        ("os.write(fd, b'abc')" + BY_SOCKET, "the log does not show how descriptor"),
        (
            "source = os.open(sys.executable, os.O_RDONLY); os.sendfile(fd, source, 0, 5)",
            "which the log did not see being made",
        ),
        (
            "os.write(fd, bytes(9)); os.lseek(fd, 2, os.SEEK_SET); "
            "os.sendfile(fd, os.open(at('m'), os.O_RDONLY), 0, 5)",
            "sendfile copies a part of a file over itself",
        ),
        (
            "os.mkdir(at('d')); os.symlink('d', at('link')); os.mkdir(at('link', 'e'))",
            "names behind the symbolic link link are not followed",
        ),
    ],
    ids=["mapping", "splice", "hole", "socket", "unknown source", "overlap", "link"],
)
def test_a_call_that_does_not_show_its_bytes_is_the_reason(
    tmp_path: Path, save: str, reason: str
) -> None:
    assert reason in refusal(tmp_path, LIBRARY + OPEN + save)


@pytest.mark.slow
def test_a_write_that_is_longer_than_strace_shows(tmp_path: Path) -> None:
    reason = "the log holds only 16,777,216 bytes of a longer write"
    assert refusal(tmp_path, OPEN + "os.write(fd, bytes((16 << 20) + 1))") == reason


@pytest.mark.slow
def test_the_longest_write_that_strace_shows_is_whole(tmp_path: Path) -> None:
    recorded = record(tmp_path, OPEN + "os.write(fd, b'a' * (16 << 20))")
    recorded.crashes().follow(recorded.after)


# What the comparison with the real files finds


@pytest.mark.parametrize(
    ("save", "difference"),
    [
        # A read moves the position, and reads are not traced.
        (
            "os.write(fd, b'abcdef'); os.lseek(fd, 0, 0); os.read(fd, 6); os.write(fd, b'g')",
            "m has 6 bytes instead of 7",
        ),
        # Two processes have two positions under one number.
        (
            "os.write(fd, b'abc')\n"
            "if os.fork() == 0:\n"
            "    os.close(fd)\n"
            "    os.write(os.open(at('m'), os.O_WRONLY), b'X')\n"
            "    os._exit(0)\n"
            "os.wait()\n"
            "os.write(fd, b'd')",
            "m has 3 bytes instead of 4",
        ),
        # The mapping was made before the save, and stores do not show.
        ("view[0] = 1", "old has another byte at 0"),
        # The bytes of a file elsewhere may be unknown until it is moved below the root.
        (
            "other.truncate(9); mmap.mmap(other.fileno(), 9)[0] = 1\n"
            "os.rename(root + '-elsewhere', at('n'))",
            "n has another byte at 0",
        ),
        (
            "pipe = os.pipe(); os.write(pipe[1], b'abc')\n"
            "os.splice(pipe[0], other.fileno(), 3); os.rename(root + '-elsewhere', at('n'))",
            "n has 0 bytes instead of 3",
        ),
    ],
    ids=["read", "process", "old mapping", "mapped elsewhere", "spliced elsewhere"],
)
def test_a_difference_to_the_real_files_is_the_reason(
    tmp_path: Path, save: str, difference: str
) -> None:
    setup = ELSEWHERE + "write(at('old'), size=9); old = os.open(at('old'), os.O_RDWR)\n"
    setup += "view = mmap.mmap(old, 9)"
    reason = f"a replay of the log does not give the real files: {difference}"
    assert refusal(tmp_path, OPEN + save, setup) == reason


@pytest.mark.parametrize(
    "save",
    [
        "mmap.mmap(other.fileno(), 9)[0] = 1",
        "os.sendfile(other.fileno(), os.open(sys.executable, os.O_RDONLY), 0, 5)",
        "os.mkdir(root + '-d'); os.symlink(root + '-d', root + '-e'); os.mkdir(root + '-e/f')",
    ],
    ids=["mapping", "unknown source", "link"],
)
def test_files_elsewhere_may_be_unknown(tmp_path: Path, save: str) -> None:
    recorded = record(tmp_path, OPEN + save, setup=ELSEWHERE + "other.truncate(9)")
    crashes = recorded.crashes()
    crashes.follow(recorded.after)
    assert [step.in_words for step in crashes.steps] == ["the creation of m"]


# Lines of a log, for calls that not every machine can make

MARK = '7 access("/ckptbench/mark/{}/{}", F_OK) = -1 ENOENT (No such file)'
CREATE = '7 openat(AT_FDCWD</>, "/s/m", O_RDWR|O_CREAT, 0666) = 3</s/m>'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "7 ioctl(3</s/m>, BTRFS_IOC_CLONE or FICLONE, 4</s/n>) = 0",
            "the bytes that m gets by ioctl",
        ),
        ("7 ioctl(3</s/m>, FICLONERANGE, {src_fd=4</s/n>}) = 0", "the bytes that m gets by ioctl"),
        ("7 write(3</s/m>, 0x7ffe0000, 5) = 5", "the log does not hold all bytes of write"),
        ('7 write(9</s/n>, "abc", 3) = 3', "the log does not show how n was made"),
        ("7 sendfile(3</s/m>, 3</s/m>, 0x7ffe, 3) = 3", "the offset 0x7ffe of sendfile"),
        ('7 rename("/s/m", "/s/n"', "line 3 of the log cannot be read"),
        ('7 mkdir("/s/d/e", 0777) = 0', "the log does not show how the directory d was made"),
        ("8 io_uring_enter(4<anon_inode:[io_uring]>, 1, 0, 0, NULL, 8) = 1", "io_uring_enter"),
    ],
)
def test_a_line_that_does_not_tell_enough_is_the_reason(line: str, reason: str) -> None:
    lines = [MARK.format(CASE, "begin"), CREATE, line]
    lines += [MARK.format(CASE, "returned"), MARK.format(CASE, "finished")]
    calls = list(log.parse(lines))
    crashes = Crashes(calls, find_window(calls, CASE), Path("/s"), {})
    with pytest.raises(NotSeenError, match=reason):
        crashes.follow({"m": File(b"")})
