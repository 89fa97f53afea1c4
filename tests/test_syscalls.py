"""Verdicts on real strace logs of small programs, and on handcrafted lines for what a program cannot be made to do at will."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.durability import strace as tracer
from harness.durability.recording import Recording
from harness.wire import marks
from harness.wire.records import SyscallsRecord

CASE = "0123456789ab"
Trace = Callable[..., SyscallsRecord]

PRELUDE = """
import mmap, os, sys, threading
from harness.wire.marks import mark as _mark

root = sys.argv[1]
mark = lambda instant: _mark("0123456789ab", instant)
at = lambda *names: os.path.join(root, *names)

def write(path, flush=False, size=1000, flags=0):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o644)
    os.write(fd, bytes(size))
    if flush:
        os.fsync(fd)
    os.close(fd)

def flush(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
"""


@pytest.fixture(scope="session")
def strace() -> None:
    reason = tracer.available()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def trace(strace: None, tmp_path: Path) -> Trace:
    """Runs a program between the marks `begin` and `finished`, after which `late` follows, and judges it."""

    def run(
        save: str, then: str = "", late: str = "", setup: str = "", root: Path | None = None
    ) -> SyscallsRecord:
        root = root or tmp_path / "scratch"
        root.mkdir(exist_ok=True)
        parts = [
            PRELUDE,
            setup,
            "mark('begin')",
            save,
            "mark('returned')",
            then,
            "mark('finished')",
            late,
        ]
        program = "\n".join(textwrap.dedent(part) for part in parts)
        log = tmp_path / "log"
        argv = [*tracer.command(log), sys.executable, "-c", program, str(root)]
        subprocess.run(argv, cwd=Path(__file__).parents[1], check=True, timeout=60)
        return Recording(log).analyse(CASE, root)

    return run


def verdicts(seen: SyscallsRecord) -> tuple[str, str]:
    return seen.durability, seen.data_durability


# Programs


def test_a_plain_write_is_never_safe(trace: Trace) -> None:
    seen = trace("write(at('model.pt'))")
    assert verdicts(seen) == ("never", "never")
    assert seen.reason == "model.pt was written and never flushed"
    assert (seen.writes, seen.write_bytes, seen.files, seen.fsyncs, seen.late_writes) == (
        1,
        1000,
        1,
        0,
        0,
    )


def test_a_flushed_file_has_safe_data_but_no_safe_name(trace: Trace) -> None:
    seen = trace("write(at('model.pt'), flush=True)")
    assert verdicts(seen) == ("never", "at return")
    assert (
        seen.reason
        == "data is flushed, but the creation of model.pt is not: its directory is never flushed afterwards"
    )


def test_file_and_directory_flushed(trace: Trace) -> None:
    seen = trace("write(at('model.pt'), flush=True); flush(root)")
    assert verdicts(seen) == ("at return", "at return")
    assert seen.fsyncs == 2


def test_a_rename_needs_its_directory(trace: Trace) -> None:
    rename = "write(at('tmp'), flush=True); flush(root); os.rename(at('tmp'), at('model.pt'))"
    seen = trace(rename)
    assert verdicts(seen) == ("never", "at return")
    assert (
        seen.reason
        == "data is flushed, but the rename of model.pt is not: its directory is never flushed afterwards"
    )
    assert (seen.renames, seen.files) == (1, 1)


def test_a_rename_with_its_directory_flushed(trace: Trace) -> None:
    assert (
        verdicts(trace("write(at('tmp'), flush=True); os.replace(at('tmp'), at('m')); flush(root)"))
        == ("at return",) * 2
    )


def test_a_renamed_file_keeps_its_unflushed_data(trace: Trace) -> None:
    seen = trace("write(at('tmp')); os.rename(at('tmp'), at('model.pt')); flush(root)")
    assert seen.reason == "model.pt was written and never flushed"


def test_a_renamed_directory_takes_its_files_along(trace: Trace) -> None:
    save = "os.mkdir(at('tmp')); write(at('tmp', 'a'), flush=True); flush(at('tmp')); os.rename(at('tmp'), at('final')); "
    assert verdicts(trace(save + "flush(root)")) == ("at return", "at return")


def test_a_renamed_directory_alone_unsafe(trace: Trace) -> None:
    save = "os.mkdir(at('tmp')); write(at('tmp', 'a'), flush=True); flush(at('tmp')); os.rename(at('tmp'), at('final'))"
    seen = trace(save)
    assert verdicts(seen) == ("never", "at return")
    assert "the rename of final is not" in seen.reason


def test_a_file_moved_in_from_elsewhere_brings_its_state(trace: Trace, tmp_path: Path) -> None:
    save = f"write({str(tmp_path / 'aside')!r}); os.rename({str(tmp_path / 'aside')!r}, at('model.pt')); flush(root)"
    seen = trace(save)
    assert verdicts(seen) == ("never", "never")
    assert seen.writes == 0


def test_threads(trace: Trace) -> None:
    save = """
    threads = [threading.Thread(target=write, args=(at(str(i)), True)) for i in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    flush(root)
    """
    seen = trace(save)
    assert verdicts(seen) == ("at return", "at return")
    assert (seen.writes, seen.files, seen.fsyncs) == (8, 8, 9)


def test_one_thread_that_does_not_flush(trace: Trace) -> None:
    save = """
    threads = [threading.Thread(target=write, args=(at(str(i)), i != 5)) for i in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    flush(root)
    """
    assert trace(save).reason == "5 was written and never flushed"


@pytest.mark.parametrize("flushed", [True, False])
def test_a_child_that_writes(trace: Trace, flushed: bool) -> None:
    save = f"""
    if os.fork() == 0:
        write(at('model.pt'))
        os._exit(0)
    os.wait()
    if {flushed}:
        flush(at('model.pt'))
        flush(root)
    """
    assert verdicts(trace(save)) == (("at return",) * 2 if flushed else ("never",) * 2)


def test_a_descriptor_shared_with_a_child(trace: Trace) -> None:
    save = """
    fd = os.dup(os.open(at('model.pt'), os.O_CREAT | os.O_WRONLY))
    if os.fork() == 0:
        os.write(fd, b'x')
        os._exit(0)
    os.wait()
    os.fsync(fd)
    flush(root)
    """
    assert verdicts(trace(save)) == ("at return", "at return")


def test_work_after_return_is_safe_at_finished(trace: Trace) -> None:
    assert verdicts(trace("write(at('m'))", then="flush(at('m')); flush(root)")) == (
        "at finished",
        "at finished",
    )
    assert verdicts(trace("pass", then="write(at('n'), flush=True); flush(root)")) == (
        "at finished",
        "at finished",
    )


def test_data_at_return_but_names_at_finished(trace: Trace) -> None:
    assert verdicts(trace("write(at('m'), flush=True)", then="flush(root)")) == (
        "at finished",
        "at return",
    )


def test_a_flush_before_the_last_write_is_none(trace: Trace) -> None:
    seen = trace(
        "fd = os.open(at('m'), os.O_CREAT | os.O_WRONLY); os.write(fd, b'x'); os.fsync(fd); os.write(fd, b'y'); flush(root)"
    )
    assert verdicts(seen) == ("never", "never")
    assert seen.reason == "m was written and not flushed again afterwards"


@pytest.mark.parametrize(
    "change",
    ["os.ftruncate(fd, 10)", "os.posix_fallocate(fd, 0, 9000)", "os.truncate(at('m'), 10)"],
)
def test_a_resize_is_a_write(trace: Trace, change: str) -> None:
    seen = trace(
        f"fd = os.open(at('m'), os.O_CREAT | os.O_RDWR); os.write(fd, b'x'); os.fsync(fd); {change}; flush(root)"
    )
    assert seen.reason == "m was resized and not flushed again afterwards"


def test_a_flush_after_finished_comes_too_late(trace: Trace) -> None:
    seen = trace("write(at('m'))", late="flush(at('m')); flush(root)")
    assert verdicts(seen) == ("never", "never")
    assert seen.fsyncs == 0


def test_late_writes_are_reported_apart(trace: Trace) -> None:
    seen = trace(
        "write(at('m'), flush=True); flush(root)", late="write(at('late')); write(at('m'))"
    )
    assert verdicts(seen) == ("at return", "at return")
    assert (seen.writes, seen.late_writes, seen.files) == (1, 2, 1)


def test_the_next_save_is_not_late_work(trace: Trace) -> None:
    seen = trace(
        "write(at('m'))",
        late="mark('begin'); write(at('other')); mark('returned'); mark('finished')",
    )
    assert (seen.late_writes, seen.files) == (0, 1)


MAPPED = """
fd = os.open(at('m'), os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 8192)
view = mmap.mmap(fd, 8192)
view[0] = 1
"""


@pytest.mark.parametrize(
    ("rest", "safe"),
    [
        ("view.close(); flush(root)", False),
        ("os.fsync(fd); flush(root)", False),  # still mapped: stores may follow
        ("os.fsync(fd); view.close(); flush(root)", False),
        ("view.close(); os.fsync(fd); flush(root)", True),
        ("view.flush(); flush(root)", True),
        ("view.flush(); view.close(); flush(root)", True),
        ("view.flush(); os.write(fd, b'x'); flush(root)", False),
    ],
)
def test_shared_mappings(trace: Trace, rest: str, safe: bool) -> None:
    assert verdicts(trace(MAPPED + rest)) == (("at return",) * 2 if safe else ("never",) * 2)


def test_a_mapping_of_a_child_ends_with_it(trace: Trace) -> None:
    child = f"if os.fork() == 0:\n{textwrap.indent(MAPPED, '    ')}    os._exit(0)\nos.wait()\n"
    assert verdicts(trace(child + "flush(at('m')); flush(root)")) == ("at return", "at return")


def test_direct_writes_are_counted_and_need_a_flush(trace: Trace) -> None:
    save = """
    block = mmap.mmap(-1, 4096)
    try:
        fd = os.open(at('m'), os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
        os.write(fd, block)
    except OSError:
        sys.exit(77)
    """
    try:
        seen = trace(save)
    except subprocess.CalledProcessError as error:
        assert error.returncode == 77  # noqa: PT017 — the script says so
        pytest.skip("this file system refuses O_DIRECT")
    assert (seen.direct_writes, seen.writes) == (1, 1)
    assert verdicts(seen) == ("never", "never")


def test_direct_switched_on_and_off(trace: Trace) -> None:
    save = """
    import fcntl
    fd = os.open(at('m'), os.O_CREAT | os.O_WRONLY)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
    os.write(fd, mmap.mmap(-1, 4096))
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.write(fd, b'tail')
    """
    seen = trace(save)
    assert (seen.direct_writes, seen.writes) == (1, 2)


def test_other_unsafe_names_are_counted(trace: Trace) -> None:
    assert trace("[write(at(n), flush=True) for n in 'ab']").reason.endswith(
        " (the same goes for 1 other name)"
    )
    assert trace("[write(at(n), flush=True) for n in 'cde']").reason.endswith(
        " (the same goes for 2 other names)"
    )


@pytest.mark.parametrize("flag", ["os.O_SYNC", "os.O_DSYNC"])
def test_synchronous_descriptors(trace: Trace, flag: str) -> None:
    assert verdicts(trace(f"write(at('m'), flags={flag}); flush(root)")) == (
        "at return",
        "at return",
    )


def test_a_synchronous_write_flushes_itself_alone(trace: Trace) -> None:
    assert verdicts(trace("write(at('m')); write(at('m'), flags=os.O_DSYNC); flush(root)")) == (
        "never",
        "never",
    )


def test_a_synchronous_write_call(trace: Trace) -> None:
    save = "fd = os.open(at('m'), os.O_CREAT | os.O_WRONLY); os.pwritev(fd, [b'x', b'y'], 0, os.RWF_DSYNC); flush(root)"
    assert verdicts(trace(save)) == ("at return", "at return")


def test_sync_flushes_everything(trace: Trace) -> None:
    seen = trace("os.mkdir(at('a')); write(at('a', 'm'))", then="os.sync()")
    assert verdicts(seen) == ("at finished", "at finished")
    assert seen.syncs == 1


def test_unlinked_files_do_not_count(trace: Trace) -> None:
    seen = trace("write(at('tmp')); os.unlink(at('tmp')); write(at('m'), flush=True); flush(root)")
    assert verdicts(seen) == ("at return", "at return")
    assert (seen.files, seen.writes) == (1, 2)


def test_a_file_kept_by_another_link(trace: Trace) -> None:
    save = """
    fd = os.open(at('tmp'), os.O_CREAT | os.O_WRONLY)
    os.link(at('tmp'), at('m'))
    os.unlink(at('tmp'))
    os.write(fd, b'x')
    """
    assert trace(save + "flush(root)").reason == "m was written and never flushed"


def test_its_flush_is_seen_too(trace: Trace) -> None:
    save = "fd = os.open(at('t'), os.O_CREAT | os.O_WRONLY); os.link(at('t'), at('m')); os.unlink(at('t')); os.write(fd, b'x'); "
    assert verdicts(trace(save + "os.fsync(fd); flush(root)")) == ("at return", "at return")


def test_a_replaced_file_does_not_count(trace: Trace) -> None:
    assert (
        verdicts(
            trace(
                "write(at('m')); write(at('t'), flush=True); os.replace(at('t'), at('m')); flush(root)"
            )
        )
        == ("at return",) * 2
    )


def test_temporary_files_without_a_name(trace: Trace) -> None:
    save = """
    fd = os.open(root, os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b'x')
    os.link(f'/proc/self/fd/{fd}', at('m'), src_dir_fd=0, follow_symlinks=True)
    """
    seen = trace(save + "flush(root)")
    assert (seen.reason, seen.files) == ("m was written and never flushed", 1)


def test_temporary_files_flushed_after_the_link(trace: Trace) -> None:
    save = """
    fd = os.open(root, os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b'x')
    os.link(f'/proc/self/fd/{fd}', at('m'), src_dir_fd=0, follow_symlinks=True)
    os.fsync(fd)
    """
    seen = trace(save)
    assert verdicts(seen) == ("never", "at return")
    assert "the link of m is not" in seen.reason


def test_every_new_directory_needs_its_parent(trace: Trace) -> None:
    save = (
        "os.makedirs(at('a/b')); write(at('a/b/m'), flush=True); flush(at('a/b')); flush(at('a')); "
    )
    seen = trace(save)
    assert verdicts(seen) == ("never", "at return")
    assert (
        seen.reason
        == "data is flushed, but the creation of a is not: its directory is never flushed afterwards"
    )


def test_nested_directories_flushed(trace: Trace) -> None:
    save = "os.makedirs(at('a/b')); write(at('a/b/m'), flush=True); flush(at('a/b')); flush(at('a')); flush(root)"
    assert verdicts(trace(save)) == ("at return", "at return")


def test_relative_paths(trace: Trace) -> None:
    save = """
    os.chdir(root)
    os.mkdir('d')
    os.chdir('d')
    write('t', flush=True)
    os.rename('t', '../d/./m')
    here = os.open('.', os.O_RDONLY)
    os.rename('m', 'n', src_dir_fd=here, dst_dir_fd=here)
    os.fsync(here)
    """
    seen = trace(save, then="flush(root)")
    assert verdicts(seen) == ("at finished", "at return")
    assert (seen.files, seen.renames) == (1, 2)


def test_a_root_behind_a_symbolic_link(trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    save = "write(at('t'), flush=True); os.rename(at('t'), at('m'))"
    seen = trace(save, root=tmp_path / "alias")
    assert (seen.files, seen.renames) == (1, 1)
    assert "the rename of m is not" in seen.reason


def test_awkward_names(trace: Trace) -> None:
    save = r"""
    name = 'a "b", é\n>) = 5 <unfinished ...>'
    write(at('t'), flush=True)
    os.rename(at('t'), at(name))
    fd = os.open(at(name), os.O_WRONLY)
    os.write(fd, b'x')
    os.fsync(fd)
    flush(root)
    """
    seen = trace(save)
    assert verdicts(seen) == ("at return", "at return")
    assert (seen.files, seen.writes) == (1, 2)


def test_copies_inside_the_kernel(trace: Trace) -> None:
    save = """
    write(at('m'), flush=True)
    write(at('n'), flush=True)
    source, target = os.open(at('m'), os.O_RDONLY), os.open(at('n'), os.O_WRONLY)
    os.sendfile(target, source, 0, 500)
    flush(root)
    """
    seen = trace(save)
    assert seen.reason == "n was written and not flushed again afterwards"
    assert (seen.writes, seen.write_min_bytes, seen.write_median_bytes, seen.write_max_bytes) == (
        3,
        500,
        1000,
        1000,
    )


def test_nothing_written_is_not_safe(trace: Trace) -> None:
    assert trace("os.mkdir(at('empty'))").durability == "unknown"


def test_files_elsewhere_do_not_count(trace: Trace, tmp_path: Path) -> None:
    seen = trace(f"write({str(tmp_path / 'elsewhere')!r}); write(at('m'), flush=True); flush(root)")
    assert verdicts(seen) == ("at return", "at return")
    assert (seen.writes, seen.files) == (1, 1)


# Handcrafted logs


def judge(tmp_path: Path, *lines: str) -> SyscallsRecord:
    """Judge a log whose lines below /s are given; a line of one word is the mark of that instant."""
    marked = [
        line
        if " " in line
        else f'7 access("/ckptbench/mark/{CASE}/{line}", F_OK) = -1 ENOENT (None)'
        for line in lines
    ]
    log = tmp_path / "log"
    log.write_text("\n".join(marked) + "\n")
    return Recording(log).analyse(CASE, Path("/s"))


CREATE = '7 openat(AT_FDCWD</>, "/s/m", O_WRONLY|O_CREAT|O_CLOEXEC, 0666) = 3</s/m>'
WRITE = '7 write(3</s/m>, ""..., 9) = 9'
FSYNC = "7 fsync(3</s/m>) = 0"
FSYNC_ROOT = "7 fsync(4</s>) = 0"
SAFE = (FSYNC, FSYNC_ROOT, "returned", "finished")


def test_the_shortest_safe_log(tmp_path: Path) -> None:
    assert verdicts(judge(tmp_path, "begin", CREATE, WRITE, *SAFE)) == ("at return", "at return")


def test_a_resumed_call_is_read_whole(tmp_path: Path) -> None:
    lines = [
        '7 write(3</s/m>, ""..., 9 <unfinished ...>',
        "8 fsync(5</x> <unfinished ...>",
        "7 <... write resumed>) = 9",
    ]
    seen = judge(tmp_path, "begin", CREATE, *lines, "8 <... fsync resumed>) = 0", *SAFE)
    assert verdicts(seen) == ("at return", "at return")
    assert seen.write_bytes == 9


def test_a_flush_does_not_cover_a_write_that_overlaps_it(tmp_path: Path) -> None:
    enter, leave = '8 write(3</s/m>, ""..., 9 <unfinished ...>', "8 <... write resumed>) = 9"
    flush = ["7 fsync(3</s/m> <unfinished ...>", "7 <... fsync resumed>) = 0"]
    end = (FSYNC_ROOT, "returned", "finished")
    assert judge(tmp_path, "begin", CREATE, enter, *flush, leave, *end).data_durability == "never"
    assert (
        judge(tmp_path, "begin", CREATE, enter, flush[0], leave, flush[1], *end).data_durability
        == "never"
    )
    assert (
        judge(tmp_path, "begin", CREATE, flush[0], enter, leave, flush[1], *end).data_durability
        == "never"
    )
    assert (
        judge(tmp_path, "begin", CREATE, enter, leave, *flush, *end).data_durability == "at return"
    )


def test_a_flush_counts_from_its_return(tmp_path: Path) -> None:
    lines = [
        "8 fsync(3</s/m> <unfinished ...>",
        "returned",
        "8 <... fsync resumed>) = 0",
        FSYNC_ROOT,
        "finished",
    ]
    assert verdicts(judge(tmp_path, "begin", CREATE, WRITE, *lines)) == (
        "at finished",
        "at finished",
    )
    late = [
        "8 fsync(3</s/m> <unfinished ...>",
        "returned",
        FSYNC_ROOT,
        "finished",
        "8 <... fsync resumed>) = 0",
    ]
    assert verdicts(judge(tmp_path, "begin", CREATE, WRITE, *late)) == ("never", "never")


def test_a_write_in_flight_at_finished(tmp_path: Path) -> None:
    write = '8 write(3</s/m>, ""..., 9 <unfinished ...>'
    assert (
        judge(
            tmp_path, "begin", CREATE, WRITE, FSYNC, FSYNC_ROOT, write, "returned", "finished"
        ).data_durability
        == "never"
    )
    killed = '8 write(3</s/m>, ""..., 9 <unfinished ...>) = ?'
    assert judge(tmp_path, "begin", CREATE, WRITE, killed, *SAFE).data_durability == "never"


def test_failed_calls_do_nothing(tmp_path: Path) -> None:
    failed = "7 fsync(3</s/m>) = -1 EIO (Input/output error)"
    assert (
        judge(
            tmp_path, "begin", CREATE, WRITE, failed, FSYNC_ROOT, "returned", "finished"
        ).data_durability
        == "never"
    )
    refused = "7 io_uring_setup(8, {flags=0}) = -1 EPERM (Operation not permitted)"
    assert judge(tmp_path, "begin", CREATE, WRITE, refused, *SAFE).durability == "at return"


@pytest.mark.parametrize(
    "line",
    [
        "7 io_uring_setup(8, {flags=0, sq_thread_cpu=0}) = 5<anon_inode:[io_uring]>",
        "7 io_uring_enter(5<anon_inode:[io_uring]>, 1, 0, 0, NULL, 8) = 1",
        "7 io_submit(0x7f, 1, [{aio_data=0, aio_lio_opcode=IOCB_CMD_PWRITE, aio_fildes=3</s/m>, aio_nbytes=9}]) = 1",
    ],
)
def test_rings_hide_writes(tmp_path: Path, line: str) -> None:
    seen = judge(tmp_path, "begin", CREATE, WRITE, line, *SAFE)
    assert verdicts(seen) == ("unknown", "unknown")
    assert "do not show in the log" in seen.reason
    assert seen.writes == 1
    assert judge(tmp_path, line, "begin", CREATE, WRITE, *SAFE).durability == "at return"


def test_rings_can_be_refused(strace: None, tmp_path: Path) -> None:
    program = "import ctypes, errno; lib = ctypes.CDLL(None, use_errno=True); lib.syscall(425, 8, bytes(120)); "
    check = "assert ctypes.get_errno() == errno.ENOSYS"
    argv = [*tracer.command(tmp_path / "log"), sys.executable, "-c", program + check]
    subprocess.run(argv, check=True, timeout=60)


def test_a_polled_ring_hides_writes_from_its_set_up_on(tmp_path: Path) -> None:
    ring = "7 io_uring_setup(8, {flags=IORING_SETUP_SQPOLL, sq_thread_cpu=0}) = 5<anon_inode:[io_uring]>"
    assert judge(tmp_path, ring, "begin", CREATE, WRITE, *SAFE).durability == "unknown"


@pytest.mark.parametrize(
    "line",
    [
        "7 <... write resumed>) = 9",
        "7 write(3</s/m>, 9",
        "7 wri",
        '7 write(3, ""..., 9) = 9',
        '7 unlink("m") = 0',
    ],
)
def test_unreadable_lines(tmp_path: Path, line: str) -> None:
    save = [line.replace("AT_FDCWD</>", "AT_FDCWD") for line in (CREATE, WRITE)]
    seen = judge(tmp_path, "begin", *save, line, *SAFE)
    assert verdicts(seen) == ("unknown", "unknown")
    assert seen.reason.startswith("line 4 of the log cannot be")
    assert judge(tmp_path, line, "begin", *save, *SAFE).durability == "at return"


def test_missing_marks(tmp_path: Path) -> None:
    seen = judge(tmp_path, "begin", CREATE, WRITE, FSYNC, "returned")
    assert (seen.durability, seen.reason) == (
        "unknown",
        f"the log has no mark 'finished' of case {CASE}",
    )


def test_rename_exchange(tmp_path: Path) -> None:
    other = [line.replace("/s/m", "/s/n") for line in (CREATE, WRITE)]
    swap = '7 renameat2(AT_FDCWD</>, "/s/m", AT_FDCWD</>, "/s/n", RENAME_EXCHANGE) = 0'
    seen = judge(
        tmp_path, "begin", CREATE, WRITE, FSYNC, *other, swap, FSYNC_ROOT, "returned", "finished"
    )
    assert (seen.reason, seen.files) == ("m was written and never flushed", 2)


def test_old_spelling_of_deleted(tmp_path: Path) -> None:
    gone = ['7 unlink("/s/m") = 0', '7 write(3</s/m (deleted)>, ""..., 9) = 9']
    other = [line.replace("/s/m", "/s/n") for line in (CREATE, WRITE, FSYNC)]
    assert (
        judge(
            tmp_path, "begin", CREATE, *gone, *other, FSYNC_ROOT, "returned", "finished"
        ).durability
        == "at return"
    )


# Marks and availability


def test_marks_read_back() -> None:
    assert marks.parse(f"/ckptbench/mark/{CASE}/staged") == (CASE, "staged")
    assert marks.parse(f"/ckptbench/mark/{CASE}/else") is None
    assert marks.parse("/etc/passwd") is None
    assert marks.parse("/ckptbench/mark/staged") is None


def test_absence_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert tracer.available() == "strace is not installed"
