"""A run that cannot work is refused before it starts."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import records
from conftest import planned

from harness.cli import measuring
from harness.driver import machine, preflight
from harness.driver.preflight import (
    GIB,
    check_memory,
    check_scratch,
    direct_io,
    needed_memory_bytes,
)
from harness.run import store
from harness.run.errors import UsageError


def test_a_good_directory_is_left_as_it_was(tmp_path: Path) -> None:
    check_scratch(tmp_path, 1)
    direct_io(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"scratch directory {tmp_path}/no does not exist"):
        check_scratch(tmp_path / "no", 0)


def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(UsageError, match="does not exist"):
        check_scratch(tmp_path / "link", 0)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a directory"):
        check_scratch(tmp_path / "file", 0)


def test_a_directory_without_room_says_how_much_is_needed_and_free(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"has \d+\.\d\d GiB free, and the run needs 1048576\.00 GiB"
    ):
        check_scratch(tmp_path, 2**50)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory that nobody can write in.

    Permissions do not stop the superuser; a read-only mount does.
    """
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield folder
        return
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=4k", "tmpfs", folder],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(
            "the superuser of this machine may not mount, so no directory is read-only to it"
        )
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_read_only_directory_is_refused(read_only: Path) -> None:
    with pytest.raises(
        UsageError, match=f"cannot write in scratch directory {read_only}: (Read-only|Permission)"
    ):
        check_scratch(read_only, 0)


def test_a_file_system_in_memory_is_not_direct() -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or machine.mount_of(shm).type != "tmpfs":
        pytest.skip("no tmpfs at /dev/shm")
    assert direct_io(shm) == "tmpfs keeps files in memory"


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.EINVAL, r" does not take O_DIRECT$"), (errno.EIO, r"^a direct write failed: ")],
)
@pytest.mark.parametrize("call", ["open", "write"])
def test_a_refused_direct_write_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, expected: str
) -> None:
    def refuse(file: object, *_: object) -> int:
        if call == "open":
            # Linux makes the file, and then refuses the flag.
            Path(str(file)).open("w").close()
        raise OSError(code, os.strerror(code))

    mount = machine.Mount("/", "1:1", "odd", "/dev/odd", "rw")
    monkeypatch.setattr(preflight, "mount_of", lambda path: mount)
    monkeypatch.setattr(os, call, refuse)
    reason = direct_io(tmp_path)
    monkeypatch.undo()
    assert reason is not None
    assert re.search(expected, reason)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("launcher", "hint"), [("mprun", "; did you mean 'mpirun'?"), ("", "")])
def test_an_unknown_launcher_gets_the_known_ones(launcher: str, hint: str) -> None:
    item = planned(launcher=launcher)
    with pytest.raises(
        UsageError,
        match=rf"^unknown launcher '{launcher}'{re.escape(hint)} \(known: local, mpirun, slurm\)$",
    ):
        preflight.check_cases([item])


def test_memory_grows_with_state_and_ranks() -> None:
    assert needed_memory_bytes(3 * GIB, 1) > 3 * GIB
    assert needed_memory_bytes(3 * GIB, 4) == 4 * needed_memory_bytes(3 * GIB, 1)


def test_memory_that_just_suffices_is_enough() -> None:
    check_memory(5 * GIB, 5 * GIB, "resnet50", "narrow it")
    with pytest.raises(
        UsageError,
        match=r"4\.50 GiB of memory is available, and the largest case, resnet50, needs about "
        r"5\.00 GiB; narrow it",
    ):
        check_memory(5 * GIB, 9 * GIB // 2, "resnet50", "narrow it")


def test_the_case_with_the_most_ranks_may_need_the_most_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank has an interpreter of its own, which a small state does not show."""
    large = planned(preset="full")
    many = planned(world=64, launcher="mpirun")
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 8 * GIB)
    with pytest.raises(UsageError, match=r"the largest case, resnet50 \(small\) in a world of 64"):
        measuring.refuse_what_does_not_fit([large, many], tmp_path)


def test_a_resumed_run_needs_room_for_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.create(tmp_path / "results", "smoke", [], [planned()], None)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(UsageError, match=r"has 0\.00 GiB free, and the run needs"):
        measuring.refuse_what_does_not_fit_any_more(run, tmp_path)
    run.append(records.failure(planned().case.id))
    measuring.refuse_what_does_not_fit_any_more(run, tmp_path)


def test_the_files_in_a_folder_are_counted(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(b"1" * 10_000)
    blocks = (tmp_path / "below" / "file").lstat().st_blocks
    assert preflight.bytes_in(tmp_path) == 512 * blocks > 0
    assert preflight.bytes_in(tmp_path / "missing") == 0
