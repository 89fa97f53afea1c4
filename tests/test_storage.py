"""The worker's work on files: flush them, drop them from memory and prove it, watch, remove."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from harness.driver import preflight
from harness.durability import strace
from harness.wire.records import FileEntry
from harness.worker import storage
from harness.worker.guards import late_work

PAGE = mmap.PAGESIZE
MIB = 1 << 20


@pytest.fixture
def place(scratch: Path) -> Iterator[Path]:
    folder = scratch / "storage"
    folder.mkdir()
    yield folder
    storage.remove_tree(folder)


@pytest.fixture
def on_disk(scratch: Path) -> None:
    """Skip where files are in memory, because they have no cache to be dropped from."""
    reason = preflight.direct_io(scratch)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def tree(place: Path) -> Path:
    """Make a checkpoint of several files, one of them empty, in several directories."""
    path = place / "checkpoint"
    (path / "deep" / "deeper").mkdir(parents=True)
    (path / "weights").write_bytes(os.urandom(MIB))
    (path / "deep" / "odd").write_bytes(os.urandom(PAGE + 1))
    (path / "deep" / "deeper" / "empty").touch()
    return path


@pytest.fixture
def file(place: Path) -> Path:
    """Make a checkpoint of one file."""
    path = place / "checkpoint"
    path.write_bytes(os.urandom(MIB))
    return path


# What there is


def test_a_time_alone_proves_nothing(tree: Path) -> None:
    before = storage.fingerprint(tree)
    assert late_work.check_finished(tree, before) == []
    os.utime(tree / "weights", ns=(1, 1))
    assert late_work.check_finished(tree, before) == ["weights"]
    (tree / "weights").write_bytes(b"")
    with pytest.raises(late_work.LateWork, match="weights changed after finished"):
        late_work.check_finished(tree, before)


@pytest.mark.parametrize("name", [".nfs000000000123", ".fuse_hidden0000abcd"])
def test_what_a_file_system_keeps_of_a_removed_open_file_is_no_file(tree: Path, name: str) -> None:
    before = storage.inventory(tree)
    (tree / name).write_bytes(b"x")
    assert storage.inventory(tree) == before


def test_a_tree_is_listed_by_paths_inside_it(tree: Path) -> None:
    assert storage.inventory(tree) == (
        FileEntry("deep/deeper/empty", 0),
        FileEntry("deep/odd", PAGE + 1),
        FileEntry("weights", MIB),
    )


def test_a_file_is_listed_by_its_name(file: Path) -> None:
    assert storage.inventory(file) == (FileEntry("checkpoint", MIB),)


def test_nothing_is_listed_where_nothing_is(place: Path) -> None:
    assert storage.inventory(place / "none") == ()
    assert storage.fingerprint(place / "none") == {}
    assert storage.resident_fraction(place / "none") == 0.0


def test_a_fingerprint_stays_while_nothing_is_written(tree: Path) -> None:
    before = storage.fingerprint(tree)
    (tree / "weights").read_bytes()
    storage.sync_tree(tree)
    storage.drop_from_cache(tree)
    assert storage.fingerprint(tree) == before


def _append(tree: Path) -> None:
    with (tree / "weights").open("ab") as file:
        file.write(b"x")


def _overwrite_in_place(tree: Path) -> None:
    with (tree / "weights").open("r+b") as file:
        file.write(b"x")


def _add(tree: Path) -> None:
    (tree / "deep" / "new").touch()


def _remove(tree: Path) -> None:
    (tree / "deep" / "odd").unlink()


@pytest.mark.parametrize("change", [_append, _overwrite_in_place, _add, _remove])
def test_a_fingerprint_changes_with_every_change(tree: Path, change: object) -> None:
    assert callable(change)
    before = storage.fingerprint(tree)
    time.sleep(0.01)  # modification times are as coarse as the kernel's tick
    change(tree)
    assert storage.fingerprint(tree) != before


# Flushing


def flushed(path: Path, log: Path) -> list[str]:
    """Return the files that `sync_tree` flushes, in the order in which strace sees it."""
    reason = strace.available()
    if reason is not None:
        pytest.skip(reason)
    program = (
        "import sys; from pathlib import Path; from harness.worker import storage; "
        "storage.sync_tree(Path(sys.argv[1]))"
    )
    tracer = ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync", "-o", str(log)]
    subprocess.run(
        [*tracer, sys.executable, "-c", program, str(path)], cwd=ROOT, check=True, timeout=60
    )
    return re.findall(r"fsync\(\d+<(.*)>\) += 0", log.read_text())


def test_every_file_and_directory_of_a_tree_and_its_parent_are_flushed_names_last(
    tree: Path, tmp_path: Path
) -> None:
    found = flushed(tree, tmp_path / "log")
    deep = tree / "deep"
    everything = [
        tree / "weights",
        tree,
        deep / "odd",
        deep,
        deep / "deeper" / "empty",
        deep / "deeper",
        tree.parent,
    ]
    assert sorted(found) == sorted(str(path) for path in everything)
    assert found[-1] == str(tree.parent)
    assert found.index(str(tree / "weights")) < found.index(str(tree))


def test_a_file_is_flushed_and_then_its_directory(file: Path, tmp_path: Path) -> None:
    assert flushed(file, tmp_path / "log") == [str(file), str(file.parent)]


def test_a_missing_checkpoint_has_only_a_parent_to_flush(place: Path) -> None:
    storage.sync_tree(place / "none")
    with pytest.raises(FileNotFoundError):
        storage.sync_tree(place / "none" / "of them")


def test_links_and_pipes_in_a_checkpoint_do_not_stop_the_flush(tree: Path) -> None:
    (tree / "latest").symlink_to("weights")
    (tree / "previous").symlink_to("removed long ago")
    (tree / "here").symlink_to(tree)
    os.mkfifo(tree / "pipe")
    storage.sync_tree(tree)
    storage.drop_from_cache(tree)


# The page cache


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize("kind", ["file", "tree"])
def test_what_was_just_written_is_in_memory_until_it_is_dropped(
    kind: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(kind)
    assert storage.resident_fraction(path) == 1.0
    storage.drop_from_cache(path)
    assert storage.resident_fraction(path) == 0.0


@pytest.mark.usefixtures("on_disk")
def test_asking_brings_no_page_in(file: Path) -> None:
    storage.drop_from_cache(file)
    assert [storage.resident_fraction(file) for _ in range(3)] == [0.0] * 3


@pytest.mark.usefixtures("on_disk")
def test_the_fraction_counts_pages_over_all_files(place: Path) -> None:
    path = place / "checkpoint"
    path.mkdir()
    for name, pages in (("a", 3), ("b", 1)):
        (path / name).write_bytes(bytes(pages * PAGE))
    storage.drop_from_cache(path)
    (path / "b").read_bytes()
    assert storage.resident_fraction(path) == 0.25


@pytest.mark.usefixtures("on_disk")
def test_a_page_that_is_mapped_and_touched_stays_and_is_seen_to_stay(file: Path) -> None:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        assert mapping[0] is not None
        storage.drop_from_cache(file)
        assert 0.0 < storage.resident_fraction(file) <= 1.0
    storage.drop_from_cache(file)
    assert storage.resident_fraction(file) == 0.0


# Mappings and writers


def test_only_files_of_the_checkpoint_count_as_mapped(tree: Path, place: Path) -> None:
    other = place / "checkpoint-2"
    other.write_bytes(bytes(PAGE))
    with other.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ):
        assert storage.mapped_files(tree) == []
        assert storage.mapped_files(other) == [str(other)]
    with (
        (tree / "deep" / "odd").open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ),
    ):
        assert storage.mapped_files(tree) == [str(tree / "deep" / "odd")]
    assert storage.mapped_files(tree) == []


def test_a_mapping_outlives_its_descriptor(file: Path) -> None:
    with file.open("rb") as opened:
        mapping = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    assert storage.mapped_files(file) == [str(file)]
    mapping.close()
    assert storage.mapped_files(file) == []


def test_a_name_with_a_space_is_seen(place: Path) -> None:
    path = place / "a b" / "c d"
    path.parent.mkdir()
    path.write_bytes(bytes(PAGE))
    with path.open("r+b") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ):
        assert storage.mapped_files(path.parent) == [str(path)]
        assert storage.open_writers(path.parent, [os.getpid()]) == [str(path)]


@pytest.mark.parametrize(
    ("mode", "writes"), [("rb", False), ("wb", True), ("r+b", True), ("ab", True)]
)
def test_a_file_open_for_writing_here_is_named(file: Path, mode: str, writes: bool) -> None:
    with file.open(mode):
        assert storage.open_writers(file, [os.getpid()]) == [str(file)] * writes
    assert storage.open_writers(file, [os.getpid()]) == []


def test_a_file_open_for_writing_in_a_child_is_named(tree: Path) -> None:
    program = (
        "import sys; file = open(sys.argv[1], 'ab'); print('open', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", program, str(tree / "weights")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        assert storage.open_writers(tree, [os.getpid()]) == []
        assert storage.open_writers(tree, [os.getpid(), child.pid]) == [str(tree / "weights")]
        child.communicate()
    assert storage.open_writers(tree, [child.pid]) == [], "it has ended"


def test_a_file_beside_the_checkpoint_is_none_of_its_files(tree: Path) -> None:
    with tree.with_name("checkpoint-2").open("wb"):
        assert storage.open_writers(tree, [os.getpid()]) == []


# Order


def test_trees_files_and_nothing_are_removed(tree: Path, place: Path) -> None:
    (place / "file").touch()
    for path in (tree, place / "file", place / "none"):
        storage.remove_tree(path)
    assert list(place.iterdir()) == []


def test_a_link_is_removed_and_not_what_it_points_to(tree: Path, place: Path) -> None:
    (place / "link").symlink_to(tree)
    storage.remove_tree(place / "link")
    assert not (place / "link").is_symlink()
    assert (tree / "weights").exists()


def test_waiting_for_a_quiet_disk_ends_and_says_what_it_saw(place: Path) -> None:
    begin = time.monotonic()
    assert storage.wait_until_quiet(place, limit_s=0.2) in (True, False, None)
    assert time.monotonic() - begin < 60


def test_a_disk_that_does_not_get_its_moment_of_stillness_is_not_quiet(place: Path) -> None:
    quiet = storage.wait_until_quiet(place, limit_s=0.0)
    assert quiet is (None if storage.wait_until_quiet(place, limit_s=0.05) is None else False)


def test_a_file_system_without_a_device_does_not_tell() -> None:
    assert storage.wait_until_quiet(Path("/proc")) is None
