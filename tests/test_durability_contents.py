"""Real programs whose files' contents are flushed, or not."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest
from traced_saves import AT_RETURN, NEVER, trace, verdicts

EIGHT_WRITERS = """
threads = [threading.Thread(target=write, args=(at(str(i)), FLUSH(i))) for i in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
flush(root)
"""
MAPPED = """
fd = os.open(at('m'), os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 8192)
view = mmap.mmap(fd, 8192)
view[0] = 1
"""


def test_a_plain_write_is_never_safe(tmp_path: Path) -> None:
    record = trace(tmp_path, "write(at('model.pt'))")
    assert verdicts(record) == NEVER
    assert record.reason == "model.pt was written and not flushed before the save finished"
    assert (record.writes, record.write_bytes, record.late_writes) == (1, 1000, 0)
    assert (record.files, record.fsyncs) == (1, 0)


def test_several_unflushed_files_are_counted(tmp_path: Path) -> None:
    record = trace(tmp_path, "write(at('a')); write(at('b'))")
    assert record.reason == "a and 1 other were written and not flushed before the save finished"
    record = trace(tmp_path, "write(at('c')); write(at('d')); write(at('e'))")
    assert record.reason == "c and 2 others were written and not flushed before the save finished"


def test_a_flushed_file_has_safe_data_but_no_safe_name(tmp_path: Path) -> None:
    record = trace(tmp_path, "write(at('model.pt'), flush=True)")
    assert verdicts(record) == ("never", "at return")
    assert record.reason == (
        "data is flushed, but the creation of model.pt is not, "
        "because its directory was not flushed afterwards"
    )


def test_file_and_directory_flushed(tmp_path: Path) -> None:
    record = trace(tmp_path, "write(at('model.pt'), flush=True); flush(root)")
    assert verdicts(record) == AT_RETURN
    assert record.reason == "every file and every name was flushed before save returned"
    assert record.fsyncs == 2


# Threads and processes


def test_threads(tmp_path: Path) -> None:
    record = trace(tmp_path, EIGHT_WRITERS.replace("FLUSH(i)", "True"))
    assert verdicts(record) == AT_RETURN
    assert (record.writes, record.files, record.fsyncs) == (8, 8, 9)


def test_one_thread_that_does_not_flush(tmp_path: Path) -> None:
    record = trace(tmp_path, EIGHT_WRITERS.replace("FLUSH(i)", "i != 5"))
    assert record.reason == "5 was written and not flushed before the save finished"


@pytest.mark.parametrize(("is_flushed", "verdict"), [(True, AT_RETURN), (False, NEVER)])
def test_a_child_that_writes(tmp_path: Path, is_flushed: bool, verdict: tuple[str, str]) -> None:
    save = f"""
    if os.fork() == 0:
        write(at('model.pt'))
        os._exit(0)
    os.wait()
    if {is_flushed}:
        flush(at('model.pt'))
        flush(root)
    """
    assert verdicts(trace(tmp_path, save)) == verdict


def test_a_descriptor_shared_with_a_child(tmp_path: Path) -> None:
    save = """
    fd = os.dup(os.open(at('model.pt'), os.O_CREAT | os.O_WRONLY))
    if os.fork() == 0:
        os.write(fd, b'x')
        os._exit(0)
    os.wait()
    os.fsync(fd)
    flush(root)
    """
    assert verdicts(trace(tmp_path, save)) == AT_RETURN


# Instants


@pytest.mark.parametrize(
    ("save", "then"),
    [
        ("write(at('m'))", "flush(at('m')); flush(root)"),
        ("pass", "write(at('n'), flush=True); flush(root)"),
    ],
)
def test_work_after_return_is_safe_at_finished(tmp_path: Path, save: str, then: str) -> None:
    record = trace(tmp_path, save, then=then)
    assert verdicts(record) == ("at finished", "at finished")
    assert record.reason == (
        "every file and every name was flushed before the save finished, "
        "but not all of them before save returned"
    )


def test_data_at_return_but_names_at_finished(tmp_path: Path) -> None:
    record = trace(tmp_path, "write(at('m'), flush=True)", then="flush(root)")
    assert verdicts(record) == ("at finished", "at return")


def test_a_flush_before_the_last_write_does_not_cover_it(tmp_path: Path) -> None:
    save = """
    fd = os.open(at('m'), os.O_CREAT | os.O_WRONLY)
    os.write(fd, b'x')
    os.fsync(fd)
    os.write(fd, b'y')
    flush(root)
    """
    record = trace(tmp_path, save)
    assert verdicts(record) == NEVER
    assert record.reason == "m was written and not flushed again before the save finished"


def test_a_flush_after_finished_comes_too_late(tmp_path: Path) -> None:
    record = trace(tmp_path, "write(at('m'))", late="flush(at('m')); flush(root)")
    assert verdicts(record) == NEVER
    assert record.reason == "m was written and not flushed before the save finished"
    assert record.fsyncs == 0


def test_late_writes_are_counted_apart(tmp_path: Path) -> None:
    save = "write(at('m'), flush=True); flush(root)"
    record = trace(tmp_path, save, late="write(at('late')); write(at('m'))")
    assert verdicts(record) == AT_RETURN
    assert (record.writes, record.late_writes, record.files) == (1, 2, 1)


def test_the_next_save_is_not_late_work(tmp_path: Path) -> None:
    next_save = "mark('begin'); write(at('other')); mark('returned'); mark('finished')"
    record = trace(tmp_path, "write(at('m'))", late=next_save)
    assert (record.late_writes, record.files) == (0, 1)


# Kinds of changes


@pytest.mark.parametrize(
    "change",
    ["os.ftruncate(fd, 10)", "os.posix_fallocate(fd, 0, 9000)", "os.truncate(at('m'), 10)"],
)
def test_a_resize_is_a_write(tmp_path: Path, change: str) -> None:
    save = f"""
    fd = os.open(at('m'), os.O_CREAT | os.O_RDWR)
    os.write(fd, b'x')
    os.fsync(fd)
    {change}
    flush(root)
    """
    reason = "m was resized and not flushed again before the save finished"
    assert trace(tmp_path, save).reason == reason


def test_copies_inside_the_kernel(tmp_path: Path) -> None:
    save = """
    write(at('m'), flush=True)
    write(at('n'), flush=True)
    source, target = os.open(at('m'), os.O_RDONLY), os.open(at('n'), os.O_WRONLY)
    os.sendfile(target, source, 0, 500)
    flush(root)
    """
    record = trace(tmp_path, save)
    assert record.reason == "n was written and not flushed again before the save finished"
    sizes_bytes = (record.write_min_bytes, record.write_median_bytes, record.write_max_bytes)
    assert record.writes == 3
    assert sizes_bytes == (500, 1000, 1000)


def test_direct_writes_are_counted_and_need_a_flush(tmp_path: Path) -> None:
    save = """
    block = mmap.mmap(-1, 4096)
    try:
        fd = os.open(at('m'), os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
        os.write(fd, block)
    except OSError:
        sys.exit(77)
    """
    try:
        record = trace(tmp_path, save)
    except subprocess.CalledProcessError as error:
        if error.returncode != 77:
            raise
        pytest.skip("this file system refuses O_DIRECT")
    assert (record.direct_writes, record.writes) == (1, 1)
    assert verdicts(record) == NEVER


def test_direct_switched_on_and_off(tmp_path: Path) -> None:
    save = """
    import fcntl
    fd = os.open(at('m'), os.O_CREAT | os.O_WRONLY)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
    os.write(fd, mmap.mmap(-1, 4096))
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.write(fd, b'tail')
    """
    record = trace(tmp_path, save)
    assert (record.direct_writes, record.writes) == (1, 2)


@pytest.mark.parametrize("flag", ["os.O_SYNC", "os.O_DSYNC"])
def test_synchronous_descriptors(tmp_path: Path, flag: str) -> None:
    record = trace(tmp_path, f"write(at('m'), flags={flag}); flush(root)")
    assert verdicts(record) == AT_RETURN


def test_a_synchronous_write_flushes_itself_alone(tmp_path: Path) -> None:
    record = trace(tmp_path, "write(at('m')); write(at('m'), flags=os.O_DSYNC); flush(root)")
    assert verdicts(record) == NEVER


def test_a_synchronous_write_call(tmp_path: Path) -> None:
    save = """
    fd = os.open(at('m'), os.O_CREAT | os.O_WRONLY)
    os.pwritev(fd, [b'x', b'y'], 0, os.RWF_DSYNC)
    flush(root)
    """
    assert verdicts(trace(tmp_path, save)) == AT_RETURN


def test_sync_flushes_everything(tmp_path: Path) -> None:
    record = trace(tmp_path, "os.mkdir(at('a')); write(at('a', 'm'))", then="os.sync()")
    assert verdicts(record) == ("at finished", "at finished")
    assert record.syncs == 1


# Mappings


@pytest.mark.parametrize(
    ("rest", "verdict"),
    [
        ("view.close(); flush(root)", NEVER),
        # The file is still mapped, so stores may follow the flush.
        ("os.fsync(fd); flush(root)", NEVER),
        ("os.fsync(fd); view.close(); flush(root)", NEVER),
        ("view.close(); os.fsync(fd); flush(root)", AT_RETURN),
        ("view.flush(); flush(root)", AT_RETURN),
        ("view.flush(); view.close(); flush(root)", AT_RETURN),
        ("view.flush(); os.write(fd, b'x'); flush(root)", NEVER),
        # msync flushes the mapped range alone, and the written byte may lie beyond it.
        ("os.write(fd, b'x'); view.flush(); flush(root)", NEVER),
        ("os.write(fd, b'x'); os.fsync(fd); view.flush(); flush(root)", AT_RETURN),
    ],
)
def test_shared_mappings(tmp_path: Path, rest: str, verdict: tuple[str, str]) -> None:
    assert verdicts(trace(tmp_path, MAPPED + rest)) == verdict


def test_a_mapping_of_a_child_ends_with_it(tmp_path: Path) -> None:
    in_child = textwrap.indent(MAPPED, "    ")
    save = f"if os.fork() == 0:\n{in_child}    os._exit(0)\nos.wait()\n"
    record = trace(tmp_path, save + "flush(at('m')); flush(root)")
    assert verdicts(record) == AT_RETURN
