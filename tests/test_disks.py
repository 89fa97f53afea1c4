"""Power is cut on real file systems, block write by block write. It needs root and a daemon."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from harness.durability import trees
from harness.durability.blocks import log, tools
from harness.durability.blocks.available import available
from harness.durability.blocks.disk import LoggedDisk, let_commit, logged_disk
from harness.durability.blocks.kinds import FILE_SYSTEMS
from harness.durability.blocks.log import Entry
from harness.durability.blocks.states import DiskState, Span, states
from harness.durability.blocks.tools import DiskError
from harness.durability.trees import File, Tree

OLD = os.urandom(300_000)
NEW = os.urandom(300_000)
every_kind = pytest.mark.parametrize("kind", sorted(FILE_SYSTEMS))

_why_not = cache(available)


def require(kind: str) -> None:
    reason = _why_not(kind)
    if reason is not None:
        pytest.skip(reason)


@dataclass(frozen=True)
class Cut:
    """The states that power losses have left of a save, and its real files."""

    states: list[DiskState]
    after: Tree


def cut(kind: str, place: Path, save: Callable[[Path], None]) -> Cut:
    """Save beside a flushed file `old`, and lose power at every instant up to the unmount."""
    require(kind)
    with logged_disk(kind, place / "disk", room_bytes=4 << 20) as disk:
        (disk.folder / "old").write_bytes(OLD)
        disk.sync()
        begin = disk.instant()
        save(disk.folder)
        let_commit(disk.folder)
        after = trees.read(disk.folder)
    every = Span(begin, disk.instant(), prefixes=1000)
    return Cut(list(states(disk, every, place)), after)


def save_safely(folder: Path) -> None:
    with (folder / "temporary").open("wb") as file:
        file.write(NEW)
        file.flush()
        os.fsync(file.fileno())
    (folder / "temporary").rename(folder / "new")
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def save_carelessly(folder: Path) -> None:
    (folder / "temporary").write_bytes(NEW)
    (folder / "temporary").rename(folder / "new")


@pytest.mark.slow
@pytest.mark.patient
@every_kind
def test_a_flushed_save_loses_neither_the_old_nor_the_new_file(kind: str, tmp_path: Path) -> None:
    left = cut(kind, tmp_path, save_safely)
    assert len(left.states) > 3
    for state in left.states:
        assert state.refused == ""
        assert state.tree.get("old") == File(OLD), state.in_words
        assert state.tree.get("new") in (None, File(NEW)), state.in_words
    last = max(left.states, key=lambda state: state.instant)
    assert trees.difference(left.after, last.tree) is None


@pytest.mark.slow
@pytest.mark.patient
@every_kind
def test_a_rename_without_a_flush_leaves_an_empty_file(kind: str, tmp_path: Path) -> None:
    left = cut(kind, tmp_path, save_carelessly)
    empty = [state for state in left.states if state.tree.get("new") == File(b"")]
    assert empty
    assert all(state.tree["old"] == File(OLD) for state in empty)
    words = {state.in_words for state in left.states}
    assert any(f"power lost on {kind} before the first of " in each for each in words)
    assert any(f"power lost on {kind} after block write 1 of " in each for each in words)
    assert any(each.endswith(" unflushed writes") for each in words)


@pytest.mark.slow
@pytest.mark.patient
def test_a_damaged_disk_is_a_state_too(tmp_path: Path) -> None:
    require("ext4")
    with logged_disk("ext4", tmp_path / "disk") as disk:
        disk.sync()
        end = disk.instant()
    with disk.base.open("rb+") as base:
        base.write(bytes(1 << 20))
    with disk.log.open("rb+") as file:
        file.write(bytes(512))  # an empty log, so that nothing repairs the disk
    (state,) = states(disk, Span(0, end, prefixes=1), tmp_path)
    assert (state.tree, state.instant) == ({}, 0)
    assert "mount failed" in state.refused
    assert state.in_words.endswith("; the disk is unusable")


def test_an_image_that_cannot_be_attached_is_no_fault_of_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_is_free(_: Path) -> Path:
        raise DiskError("losetup failed: no free loop device")

    monkeypatch.setattr(tools, "attach", none_is_free)
    monkeypatch.setattr(tools, "detach", lambda _: None)
    base, block_log = tmp_path / "base", tmp_path / "log"
    base.write_bytes(bytes(4096))
    block_log.write_bytes(struct.pack("<QQQI", 0x6A736677736872, 1, 0, 512).ljust(512, b"\0"))
    disk = LoggedDisk(FILE_SYSTEMS["ext4"], tmp_path / "files", base, block_log)
    with pytest.raises(DiskError, match="no free loop device"):
        list(states(disk, Span(0, 0), tmp_path))


@pytest.mark.slow
@pytest.mark.patient
def test_nothing_stays_mounted_after_an_error(tmp_path: Path) -> None:
    require("ext4")
    with pytest.raises(KeyboardInterrupt), logged_disk("ext4", tmp_path):
        raise KeyboardInterrupt
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert tools.run("losetup", "--associated", tmp_path / "exported.img") == ""


@pytest.mark.slow
@pytest.mark.patient
def test_an_interrupted_program_leaves_nothing_mounted(tmp_path: Path) -> None:
    require("ext4")
    program = """
        import sys, time
        from pathlib import Path
        from harness.durability.blocks.disk import LoggedDisk, let_commit, logged_disk
        with logged_disk("ext4", Path(sys.argv[1])):
            print("mounted", flush=True)
            time.sleep(60)
    """
    argv = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(
        argv, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"mounted\n"
        process.send_signal(2)
        process.communicate(timeout=30)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def entry_bytes(sector: int, data: bytes, flags: int) -> bytes:
    header = struct.pack("<QQQQ", sector, len(data) // 512, flags, 0)
    return header.ljust(512, b"\0") + data


def test_a_log_is_read_entry_by_entry(tmp_path: Path) -> None:
    file = tmp_path / "log"
    described = struct.pack("<QQQI", 0x6A736677736872, 1, 4, 512).ljust(512, b"\0")
    discard = struct.pack("<QQQQ", 8, 99, 4, 0).ljust(512, b"\0")
    written = [entry_bytes(3, bytes(1024), 0), entry_bytes(0, b"", 1), discard]
    file.write_bytes(b"".join([described, *written, entry_bytes(7, bytes(512), 2)]))
    assert log.count(file) == 4
    assert list(log.entries(file)) == [
        Entry(is_flush=False, is_forced=False, offset=1536, length=1024, at=1024),
        Entry(is_flush=True, is_forced=False, offset=0, length=0, at=2560),
        Entry(is_flush=False, is_forced=False, offset=4096, length=0, at=3072),
        Entry(is_flush=False, is_forced=True, offset=3584, length=512, at=3584),
    ]


def test_a_log_of_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"x" * 512)
    with pytest.raises(DiskError, match="is no log of block writes"):
        log.count(file)


def test_another_user_than_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert available("ext4") == "only root may mount a file system; run ckptbench as root"


def test_a_wrong_folder_of_the_daemon_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(tools.QEMU, str(tmp_path))
    with pytest.raises(DiskError, match=f"no qemu-storage-daemon in {tmp_path}"):
        tools.find_daemon()
