"""The gate strikes system calls of real programs. Run as a program, this measures its cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from traced_saves import require_strace

from harness.durability import gate, log, strace
from harness.wire import strikes
from harness.wire.strikes import Report, Strike

TIMEOUT_S = 60

PRELUDE = """
import ctypes, errno, mmap, os, signal, sys, threading, time
from harness.wire import strikes

root, outside = sys.argv[1:3]
at = lambda *names: os.path.join(root, *names)

def order(call, number, effect, lasting=False):
    assert strikes.order(strikes.Strike(call, number, effect, lasting))

def create(name, content=b""):
    fd = os.open(at(name), os.O_CREAT | os.O_WRONLY)
    if content:
        os.write(fd, content)
    return fd

def attempt(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
"""


@cache
def obstacle() -> str | None:
    return gate.available()


needs_gate = pytest.mark.skipif("obstacle() is not None", reason="the gate cannot strike here")


@dataclass(frozen=True)
class Outcome:
    status: int
    output: str
    errors: str
    root: Path
    report: Path

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    def counted(self) -> Report:
        return strikes.read_report(self.report)

    def content(self, name: str = "a") -> bytes:
        return (self.root / name).read_bytes()

    def names(self) -> set[str]:
        paths = self.root.rglob("*")
        return {os.fspath(path.relative_to(self.root)) for path in paths}


def python(program: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(program)]


def gated(tmp_path: Path, command: list[str], *, arguments: bool = True) -> Outcome:
    """Run a command under the gate. Its arguments are the root and a folder outside of it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    report = tmp_path / "report"
    folders = [os.fspath(root), os.fspath(outside)] if arguments else []
    done = subprocess.run(
        [*gate.command(root, report), *command, *folders],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr, root, report)


def run(tmp_path: Path, program: str) -> Outcome:
    """Run a program that must end by itself."""
    outcome = gated(tmp_path, python(program))
    assert (outcome.errors, outcome.status) == ("", 0)
    return outcome


def run_killed(tmp_path: Path, program: str) -> Outcome:
    """Run a program that a strike must kill."""
    outcome = gated(tmp_path, python(program))
    assert (outcome.errors, outcome.status) == ("", 128 + signal.SIGKILL)
    return outcome


def test_it_is_available_here_or_says_why() -> None:
    reason = gate.available()
    assert reason is None or reason.startswith("the gate cannot strike here: ")


# What a program does with the descriptors `fd` of the file a and `folder` of the root.
CALLS = {
    "write": ("write", "os.write(fd, b'1234')", "write to a"),
    "pwrite": ("write", "os.pwrite(fd, b'1234', 8)", "write to a"),
    "writev": ("write", "os.writev(fd, [b'12', b'34'])", "write to a"),
    "pwritev": ("write", "os.pwritev(fd, [b'12', b'34'], 8)", "write to a"),
    "sendfile": ("write", "os.sendfile(fd, source, 0, 4)", "copy to a"),
    "copy_file_range": ("write", "os.copy_file_range(source, fd, 4)", "copy to a"),
    "open": ("open", "os.open(at('a'), os.O_WRONLY)", "open a"),
    "open in a folder": ("open", "os.open('a', os.O_RDWR, dir_fd=folder)", "open a"),
    "open to create": ("open", "os.open(at('n'), os.O_CREAT | os.O_RDONLY)", "open n"),
    "creat": ("open", "libc.creat(at('n').encode(), 0o600) == -1 and fail()", "open n"),
    "fsync": ("fsync", "os.fsync(fd)", "fsync a"),
    "fdatasync": ("fsync", "os.fdatasync(fd)", "fsync a"),
    "fsync of the root": ("fsync", "os.fsync(folder)", "fsync ."),
    "rename": ("rename", "os.rename(at('a'), at('b'))", "rename a to b"),
    "rename between folders": (
        "rename",
        "os.rename('a', 'b', src_dir_fd=folder, dst_dir_fd=folder)",
        "rename a to b",
    ),
    "close": ("close", "os.close(fd)", "close a"),
    "truncate": ("change", "os.truncate(at('a'), 1)", "truncate a"),
    "ftruncate": ("change", "os.ftruncate(fd, 1)", "truncate a"),
    "fallocate": ("change", "os.posix_fallocate(fd, 0, 64)", "allocate a"),
    "mkdir": ("change", "os.mkdir(at('d'))", "mkdir d"),
    "mkdirat": ("change", "os.mkdir('d', dir_fd=folder)", "mkdir d"),
    "unlink": ("change", "os.unlink(at('a'))", "unlink a"),
    "unlinkat": ("change", "os.unlink('a', dir_fd=folder)", "unlink a"),
    "rmdir": ("change", "os.rmdir(at('empty'))", "rmdir empty"),
    "link": ("change", "os.link(at('a'), at('b'))", "link a to b"),
    "symlink": ("change", "os.symlink('/nowhere', at('b'))", "symlink b"),
    "a write as a change": ("change", "os.write(fd, b'1234')", "write to a"),
    "a rename as a change": ("change", "os.rename(at('a'), at('b'))", "rename a to b"),
    "a new file as a change": ("change", "os.open(at('n'), os.O_CREAT)", "open n"),
    "an emptied file as a change": ("change", "os.open(at('a'), os.O_TRUNC | os.O_RDWR)", "open a"),
    "a link below another path": ("write", "os.write(linked, b'1234')", "write to a"),
    "a relative path": ("change", "os.chdir(root) or os.mkdir('d')", "mkdir d"),
}


@needs_gate
@pytest.mark.parametrize("name", CALLS)
def test_each_call_fails_once_as_ordered(name: str, tmp_path: Path) -> None:
    family, call, words = CALLS[name]
    program = f"""
    libc = ctypes.CDLL(None, use_errno=True)
    def fail():
        raise OSError(ctypes.get_errno(), "failed")
    os.mkdir(at("empty"))
    fd = create("a", b"0123456789")
    folder = os.open(root, os.O_RDONLY)
    with open(os.path.join(outside, "source"), "wb") as file:
        file.write(b"source")
    source = os.open(os.path.join(outside, "source"), os.O_RDONLY)
    os.symlink(root, os.path.join(outside, "link"))
    linked = os.open(os.path.join(outside, "link", "a"), os.O_WRONLY)
    def names():
        return sorted((each.name, each.stat().st_size) for each in os.scandir(root))
    before = names()
    order("{family}", 1, "ENOSPC")
    print(attempt(lambda: {call}))
    assert names() == before
    print(attempt(lambda: {call}))
    """
    outcome = run(tmp_path, program)
    assert outcome.lines == ["ENOSPC", "done"]
    # A close that has failed leaves no file to close again.
    seen = 1 if family == "close" else 2
    assert outcome.counted() == Report(struck=1, seen=seen, first=words)


@needs_gate
@pytest.mark.parametrize(
    ("lasting", "seen"),
    [
        (False, ["done", "EIO", "done", "done"]),
        (True, ["done", "EIO", "EIO", "EIO"]),
    ],
)
def test_a_strike_hits_once_or_from_then_on(lasting: bool, seen: list[str], tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        f"""
        fd = create("a")
        order("write", 2, "EIO", lasting={lasting})
        for byte in (b"0", b"1", b"2", b"3"):
            print(attempt(os.write, fd, byte))
        assert strikes.call_off()
        print(attempt(os.write, fd, b"4"))
        """,
    )
    assert outcome.lines == [*seen, "done"]
    written = [byte for byte, result in zip("0123", seen, strict=True) if result == "done"]
    assert outcome.content().decode() == "".join([*written, "4"])
    assert outcome.counted() == Report(seen.count("EIO"), 4, "write to a")


@needs_gate
def test_the_program_reads_its_strikes_and_a_new_order_counts_anew(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        """
        from pathlib import Path
        report = Path(root).with_name("report")
        assert not report.exists()
        fd = create("a")
        order("write", 1, "EIO", lasting=True)
        print(strikes.read_report(report).seen)
        for _ in range(2):
            attempt(os.write, fd, b"0")
            print(strikes.read_report(report).struck)
        order("change", 2, "EIO")
        print(strikes.read_report(report).seen)
        os.write(fd, b"0")
        assert strikes.call_off()
        print(strikes.read_report(report))
        """,
    )
    assert outcome.lines == ["0", "1", "2", "0", "Report(struck=0, seen=1, first=None)"]


@needs_gate
def test_a_report_tells_which_changes_were_renames(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        """
        order("change", 100, "EIO")
        os.close(create("a"))
        os.rename(at("a"), at("b"))
        os.mkdir(at("d"))
        attempt(os.mkdir, at("d"))
        os.rename(at("b"), at("c"))
        """,
    )
    assert outcome.counted().seen == 5
    assert outcome.counted().renames == (2, 5)


@needs_gate
def test_reads_and_other_folders_are_not_counted(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        """
        os.close(create("a", b"0"))
        for call in strikes.get_args(strikes.Struck):
            order(call, 1, "EIO", lasting=True)
            with open(at("a"), "rb") as file:
                assert file.read() == b"0"
            assert os.listdir(root) == ["a"]
            assert not os.access(at("b"), os.F_OK)
            beside = root + "-beside"
            os.mkdir(beside)
            os.rmdir(beside)
            other = os.path.join(outside, "file")
            with open(other, "wb") as file:
                file.write(b"0")
                file.flush()
                os.fsync(file.fileno())
            os.rename(other, other + "2")
            reader, writer = os.pipe()
            os.write(writer, b"0")
            os.close(reader)
            os.close(writer)
            os.close(os.memfd_create("m"))
            # An existing file is opened, and not changed.
            if call == "change":
                os.close(os.open(at("a"), os.O_CREAT | os.O_WRONLY))
            assert strikes.call_off()
        """,
    )
    assert outcome.counted() == Report()


THREADS_AND_CHILDREN = """
fds = [create(name) for name in "abcd"]
def write(fd):
    for _ in range(10):
        attempt(os.write, fd, b"0")
order("write", 31, "EIO", lasting=True)
threads = [threading.Thread(target=write, args=(fd,)) for fd in fds[:2]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
children = []
for fd in fds[2:]:
    child = os.fork()
    if child == 0:
        write(fd)
        os._exit(0)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
"""


@needs_gate
def test_threads_and_children_count_together(tmp_path: Path) -> None:
    outcome = run(tmp_path, THREADS_AND_CHILDREN)
    assert (outcome.counted().struck, outcome.counted().seen) == (10, 40)
    assert sum(len(outcome.content(name)) for name in "abcd") == 30


SAVE = """
os.mkdir(at("s.tmp"))
fd = create("s.tmp/a", b"12")
os.fsync(fd)
os.ftruncate(fd, 1)
os.close(fd)
os.rename(at("s.tmp"), at("s"))
os.unlink(at("s/a"))
"""
# The names and sizes after each change of the save.
STATES: list[dict[str, int]] = [
    {},
    {"s.tmp": -1},
    {"s.tmp": -1, "s.tmp/a": 0},
    {"s.tmp": -1, "s.tmp/a": 2},
    {"s.tmp": -1, "s.tmp/a": 1},
    {"s": -1, "s/a": 1},
    {"s": -1},
]


@needs_gate
def test_a_close_that_fails_has_closed_the_file_and_given_its_locks_back(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        """
        import fcntl
        fd = create("a", b"12")
        fcntl.flock(fd, fcntl.LOCK_EX)
        order("close", 1, "EIO")
        print(attempt(os.close, fd))
        strikes.call_off()
        other = os.open(at("a"), os.O_RDWR)
        print(attempt(fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB))
        print(attempt(os.write, fd, b"3"))
        print(os.read(other, 3))
        """,
    )
    assert outcome.lines == ["EIO", "done", "EBADF", "b'12'"]
    assert outcome.counted().struck == 1


@needs_gate
@pytest.mark.parametrize("number", range(1, len(STATES) + 1))
def test_a_kill_leaves_what_the_changes_before_it_made(number: int, tmp_path: Path) -> None:
    outcome = gated(tmp_path, python(f'order("change", {number}, "kill")\n{SAVE}'))
    left = {name: outcome.root / name for name in outcome.names()}
    sizes = {name: -1 if path.is_dir() else path.stat().st_size for name, path in left.items()}
    assert sizes == STATES[number - 1]
    is_hit = number < len(STATES)
    assert outcome.status == (128 + signal.SIGKILL if is_hit else 0)
    assert outcome.counted().struck == int(is_hit)
    assert outcome.counted().seen == min(number, len(STATES) - 1)


@needs_gate
@pytest.mark.parametrize("family", ["write", "open", "fsync", "rename", "close"])
def test_each_family_can_kill(family: str, tmp_path: Path) -> None:
    outcome = run_killed(tmp_path, f'order("{family}", 1, "kill")\n{SAVE}\nprint("lives")')
    assert outcome.lines == []
    assert outcome.counted().struck == 1


@needs_gate
def test_a_kill_takes_children_and_grandchildren_along(tmp_path: Path) -> None:
    program = """
    if os.fork() == 0:
        # An orphan in a session of its own is part of the tree too.
        os.setsid()
        if os.fork() == 0:
            os.close(create("orphan"))
            time.sleep(1000)
        os._exit(0)
    os.wait()
    while not os.path.exists(at("orphan")):
        time.sleep(0.01)
    if os.fork() == 0:
        order("change", 1, "kill")
        os.mkdir(at("d"))
    time.sleep(1000)
    """
    outcome = run_killed(tmp_path, program)
    assert outcome.names() == {"orphan"}


@needs_gate
def test_killing_one_process_leaves_its_sibling_alive(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        """
        order("change", 1, "kill-process")
        child = os.fork()
        if child == 0:
            threading.Thread(target=os.mkdir, args=(at("d"),)).start()
            time.sleep(1000)
        status = os.waitpid(child, 0)[1]
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        assert os.listdir(root) == []
        os.mkdir(at("e"))
        """,
    )
    assert outcome.names() == {"e"}
    assert outcome.counted() == Report(1, 2, "mkdir d")


# Each writes the bytes from `done` on once, and returns how many were written.
WRITERS = {
    "write": "os.write(fd, content[done:])",
    "pwrite": "os.pwrite(fd, content[done:], done)",
    "writev": "os.writev(fd, [content[done:][:7], content[done:][7:]])",
    "pwritev": "os.pwritev(fd, [content[done:][:7], content[done:][7:]], done)",
    "pwritev2": "os.pwritev(fd, [content[done:]], -1, 0)",
    "sendfile": "os.sendfile(fd, source, None, 1 << 20)",
    "sendfile from an offset": "os.sendfile(fd, source, done, 1 << 20)",
    "copy_file_range": "os.copy_file_range(source, fd, 1 << 20)",
    "copy_file_range to an offset": "os.copy_file_range(source, fd, 1 << 20, done, done)",
}


@needs_gate
@pytest.mark.parametrize("call", WRITERS)
def test_a_short_write_can_be_continued(call: str, tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        f"""
        content = bytes(range(100))
        with open(os.path.join(outside, "source"), "wb") as file:
            file.write(content)
        source = os.open(os.path.join(outside, "source"), os.O_RDONLY)
        fd = create("a")
        order("write", 1, "short")
        done = 0
        while done < len(content):
            written = {WRITERS[call]}
            print(written)
            done += written
        """,
    )
    assert outcome.lines == ["50", "50"]
    assert outcome.content() == bytes(range(100))
    assert outcome.counted().struck == 1


@needs_gate
def test_a_program_that_ignores_short_writes_leaves_half(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        """
        fd = create("a")
        order("write", 1, "short")
        os.write(fd, bytes(range(10)))
        print(os.lseek(fd, 0, os.SEEK_CUR))
        """,
    )
    assert outcome.lines == ["5"]
    assert outcome.content() == bytes(range(5))


@needs_gate
def test_every_write_can_be_short_down_to_a_byte(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        """
        fd = os.open(at("a"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        order("write", 1, "short", lasting=True)
        done = 0
        while done < 8:
            done += os.write(fd, bytes(range(done, 8)))
        """,
    )
    # Of 8, 4, 2 and 1 bytes, the last cannot be halved.
    assert outcome.content() == bytes(range(8))
    assert outcome.counted() == Report(3, 4, "write to a")


@needs_gate
def test_a_direct_write_ends_at_a_block(tmp_path: Path, scratch: Path) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        outcome = run(
            Path(folder),
            """
            try:
                fd = os.open(at("a"), os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
            except OSError:
                sys.exit(0)
            buffer = mmap.mmap(-1, 3 * 4096)
            order("write", 1, "short", lasting=True)
            print(os.write(fd, buffer))
            print(os.write(fd, memoryview(buffer)[:4096]))
            """,
        )
    if not outcome.lines:
        pytest.skip("this file system takes no direct writes")
    assert outcome.lines == ["4096", "4096"]


@needs_gate
def test_a_call_that_a_signal_interrupts_is_counted_once(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        """
        signal.signal(signal.SIGALRM, lambda *_: None)
        fd = create("a")
        order("write", 2001, "EIO")
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        for _ in range(2000):
            os.write(fd, b"0")
        signal.setitimer(signal.ITIMER_REAL, 0)
        """,
    )
    assert outcome.counted() == Report(struck=0, seen=2000)
    assert len(outcome.content()) == 2000


@needs_gate
def test_a_short_write_that_a_signal_interrupts_is_not_written_twice(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        """
        signal.signal(signal.SIGALRM, lambda *_: None)
        fd = create("a")
        order("write", 1, "short", lasting=True)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        print(sum(os.write(fd, bytes(100)) for _ in range(1000)))
        signal.setitimer(signal.ITIMER_REAL, 0)
        """,
    )
    assert outcome.lines == ["50000"]
    assert len(outcome.content()) == 50000


@needs_gate
def test_wrong_arguments_fail_as_without_the_gate(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        """
        libc = ctypes.CDLL(None, use_errno=True)
        order("change", 1, "EIO", lasting=True)
        print(attempt(os.write, 999, b"0"))
        for address in (None, ctypes.c_void_p(1), ctypes.c_void_p(2**64 - 1)):
            assert libc.mkdir(address, 0) == -1
            print(errno.errorcode[ctypes.get_errno()])
        assert not os.access("/ckptbench/gate/write/0/EIO/once", os.F_OK)
        assert not os.access("/ckptbench/gate/", os.F_OK)
        """,
    )
    assert outcome.lines == ["EBADF", "EFAULT", "EFAULT", "EFAULT"]


@needs_gate
@pytest.mark.parametrize("status", [0, 3, 255])
def test_the_status_passes_through(status: int, tmp_path: Path) -> None:
    assert gated(tmp_path, python(f"sys.exit({status})")).status == status


@needs_gate
def test_input_and_output_and_separators_pass_through(tmp_path: Path) -> None:
    program = "import sys; print(input(), sys.argv[1:]); print('e', file=sys.stderr)"
    done = subprocess.run(
        [*gate.command(tmp_path, tmp_path / "r"), sys.executable, "-c", program, "--", "--root"],
        input="word",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("word ['--', '--root']\n", "e\n")


@needs_gate
def test_a_signal_that_ends_the_program_gives_its_status(tmp_path: Path) -> None:
    outcome = gated(tmp_path, python("os.kill(os.getpid(), signal.SIGSEGV)"))
    assert outcome.status == 128 + signal.SIGSEGV


def started(tmp_path: Path, program: str) -> subprocess.Popen[str]:
    """Start a program under the gate, and wait for its first line."""
    command = [*gate.command(tmp_path, tmp_path / "report"), *python(program)]
    folders = [os.fspath(tmp_path), os.fspath(tmp_path)]
    process = subprocess.Popen([*command, *folders], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@needs_gate
def test_a_signal_to_the_gate_ends_the_program(tmp_path: Path) -> None:
    with started(tmp_path, "print(1, flush=True)\ntime.sleep(1000)") as process:
        process.terminate()
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM


@needs_gate
def test_the_gate_stays_for_a_daemon_and_a_signal_ends_it(tmp_path: Path) -> None:
    program = """
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.01)
        time.sleep(0.5)
        os.mkdir(at("late"))
        print(1, flush=True)
        time.sleep(1000)
    """
    with started(tmp_path, program) as process:
        assert (tmp_path / "late").is_dir()
        assert process.poll() is None
        process.terminate()
        # The command itself had ended well.
        assert process.wait(TIMEOUT_S) == 0


@needs_gate
def test_a_killed_gate_leaves_no_program_that_waits(tmp_path: Path) -> None:
    program = """
    print(1, flush=True)
    while True:
        os.mkdir(at("d"))
        os.rmdir(at("d"))
    """
    with started(tmp_path, program) as process:
        process.kill()
        # The program's end closes its output. All of its filtered calls have failed.
        process.communicate(timeout=TIMEOUT_S)


@needs_gate
def test_a_gate_that_cannot_go_on_kills_the_program(tmp_path: Path) -> None:
    outcome = gated(
        tmp_path,
        python("""
        os.mkdir(os.path.join(os.path.dirname(root), "report"))
        fd = create("a")
        strikes.order(strikes.Strike("write", 1, "EIO"))
        print("lives")
        time.sleep(1000)
        """),
    )
    assert (outcome.status, outcome.output) == (125, "")
    assert outcome.errors.startswith("gate: it cannot write its report: ")


@needs_gate
def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    outcome = gated(tmp_path, ["no-such-command"])
    assert (outcome.status, outcome.errors) == (127, "gate: there is no command no-such-command\n")


@needs_gate
def test_a_command_that_may_not_be_run(tmp_path: Path) -> None:
    outcome = gated(tmp_path, ["/"])
    assert (outcome.status, outcome.errors) == (126, "gate: cannot start /: Permission denied\n")


@needs_gate
def test_a_gate_cannot_stand_in_a_gate(tmp_path: Path) -> None:
    inner = gate.command(tmp_path, tmp_path / "inner")
    outcome = gated(tmp_path, [*inner, "true"])
    assert outcome.status == 125
    assert outcome.errors.endswith("supervisor answers this process's system calls already\n")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ImportError('no', name='pyseccomp')", "the package pyseccomp is not installed"),
        ("RuntimeError('Unable to find libseccomp')", "the library libseccomp is not installed"),
    ],
)
def test_an_absent_library_is_the_reason(
    error: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyseccomp.py").write_text(f"raise {error}\n")
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{before}")
    assert gate.available() == f"the gate cannot strike here: {reason}"


def test_without_a_gate_nobody_hears() -> None:
    assert not strikes.order(Strike("write", 1, "EIO"))
    assert not strikes.call_off()


@pytest.mark.parametrize(
    "strike", [Strike("write", 1, "short"), Strike("change", 12, "kill-process", lasting=True)]
)
def test_orders_read_back(strike: Strike) -> None:
    assert strikes.parse(strikes.spelled(strike)) == strike


def test_paths_that_are_no_orders() -> None:
    assert strikes.parse(strikes.spelled(strikes.OFF)) == strikes.OFF
    for words in ("write/1/EIO", "write/0/EIO/once", "read/1/EIO/once", "write/1/EIO/twice"):
        assert strikes.parse(f"/ckptbench/gate/{words}") is None
    assert strikes.parse("/ckptbench/gate/fsync/1/short/once") is None
    assert strikes.parse("write/1/EIO/once") is None


def test_impossible_strikes_are_refused() -> None:
    with pytest.raises(ValueError, match="counts calls from 1, so it cannot hit call 0"):
        Strike("write", 0, "EIO")
    with pytest.raises(ValueError, match='only the call "write" can be short, not "fsync"'):
        Strike("fsync", 1, "short")


def test_a_file_that_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "report").write_text('{"other": 1}')
    with pytest.raises(ValueError, match="holds no report of a gate"):
        strikes.read_report(tmp_path / "report")


# Filtered calls are invisible to a strace that leaves the filtering to the kernel.
def traced(tmp_path: Path, program: str) -> list[str]:
    require_strace()
    names = [name for name in strace.command(tmp_path / "log") if name != "--seccomp-bpf"]
    return [*names, *python(program)]


@needs_gate
def test_a_kill_under_strace_leaves_the_log_of_the_calls_before(tmp_path: Path) -> None:
    outcome = gated(tmp_path, traced(tmp_path, f'order("change", 6, "kill")\n{SAVE}'))
    assert outcome.status == 128 + signal.SIGKILL
    assert outcome.names() == {"s", "s/a"}
    calls = log.read(tmp_path / "log")
    inside = [call for call in calls if os.fspath(outcome.root) in " ".join(call.arguments)]
    changes = [call for call in inside if call.name in ("mkdir", "write", "ftruncate", "rename")]
    assert [call.name for call in changes] == ["mkdir", "write", "ftruncate", "rename"]
    assert all(call.has_returned and not call.has_failed for call in changes)
    assert not any(call.has_returned for call in inside if call.name == "unlink")


@needs_gate
def test_errors_and_short_writes_show_under_strace(tmp_path: Path) -> None:
    outcome = gated(
        tmp_path,
        traced(
            tmp_path,
            """
            fd = create("a")
            order("write", 1, "short")
            assert os.write(fd, bytes(10)) == 5
            order("write", 1, "EIO")
            assert attempt(os.write, fd, bytes(10)) == "EIO"
            """,
        ),
    )
    assert (outcome.status, outcome.errors) == (0, "")
    path = os.fspath(outcome.root / "a")
    calls = log.read(tmp_path / "log")
    writes = [call for call in calls if call.name == "write" and path in call.arguments[0]]
    assert [call.result[:6] for call in writes] == ["5", "-1 EIO"]


BENCHMARK = """
import os, sys, time
fd = os.open(sys.argv[1] + "/a", os.O_CREAT | os.O_WRONLY)
if len(sys.argv) > 3:
    os.access(sys.argv[3], os.F_OK)
begin_s = time.perf_counter()
for _ in range(20_000):
    os.write(fd, b"0123456789abcdef")
print(time.perf_counter() - begin_s)
"""


def benchmark() -> None:
    """Print the time that the gate adds to each of 20,000 small writes."""

    def seconds(prefix: Callable[[Path], list[str]], *arguments: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            command = [*prefix(Path(folder)), sys.executable, "-c", BENCHMARK, folder, folder]
            done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, check=True)
            return float(done.stdout)

    def around(folder: Path) -> list[str]:
        return gate.command(folder, folder / "report")

    count = 20_000
    counted = strikes.spelled(Strike("write", count + 1, "EIO"))
    alone_s = seconds(lambda folder: [])
    begin_s = time.perf_counter()
    for name, taken_s in {
        "without an order": seconds(around),
        "counted": seconds(around, counted),
    }.items():
        print(f"{name}: {(taken_s - alone_s) / count * 1e6:.1f} us more a write")
    print(f"alone: {alone_s / count * 1e6:.2f} us a write; {time.perf_counter() - begin_s:.1f} s")


if __name__ == "__main__":
    benchmark()
