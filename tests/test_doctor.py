"""The doctor reports what this machine has and lacks, and never raises an error."""

from __future__ import annotations

import errno
import mmap
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.driver import doctor
from harness.driver.doctor import Check
from harness.driver.environments import Environments
from harness.driver.machine import BlockDevice


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    """Return one managed environment that was never made, and an interpreter of the user's."""
    for name in ("managed", "own"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
        (tmp_path / "adapters" / name / "requirements.txt").touch()
    own = tmp_path / "bin" / "python"
    own.parent.mkdir()
    own.symlink_to(sys.executable)
    return Environments(tmp_path / "venvs", tmp_path / "adapters", {"own": own})


def _checks(environments: Environments, scratch: Path) -> dict[str, Check]:
    return {check.name: check for check in doctor.doctor(environments, scratch)}


def test_everything_is_looked_at(environments: Environments, tmp_path: Path) -> None:
    found = _checks(environments, tmp_path)
    machine = [
        "mpirun",
        "slurm",
        "gpu",
        "strace",
        "faults",
        "disks",
        "fio",
        "compiler",
        "disk",
        "direct I/O",
        "page cache",
        "sockets",
        "memory",
    ]
    assert list(found) == ["python", "managed", "own", *machine]
    assert all(check.detail for check in found.values())
    assert (found["python"].status, found["managed"].status, found["own"].status) == (
        "ok",
        "missing",
        "ok",
    )


def test_a_bare_machine_misses_its_tools(
    environments: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = _checks(environments, tmp_path)
    assert {
        found[name].status for name in ("mpirun", "slurm", "gpu", "strace", "fio", "compiler")
    } == {"missing"}


def test_the_mpirun_beside_an_interpreter_is_found(
    environments: Environments, tmp_path: Path
) -> None:
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun 9.9'; echo more\n")
    mpirun.chmod(0o755)
    assert _checks(environments, tmp_path)["mpirun"] == Check(
        "mpirun", "ok", f"mpirun 9.9 ({mpirun})"
    )


def test_an_interpreter_that_is_not_there_is_said(
    environments: Environments, tmp_path: Path
) -> None:
    own = tmp_path / "bin" / "python"
    own.unlink()
    check = _checks(environments, tmp_path)["own"]
    assert check.status == "missing"
    assert check.detail == f"the interpreter for own, {own}, does not exist"


def test_a_tool_that_does_not_run_is_no_reason_to_stop(
    environments: Environments, tmp_path: Path
) -> None:
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.write_bytes(b"\x7fELF broken")
    mpirun.chmod(0o755)
    assert "does not answer" in _checks(environments, tmp_path)["mpirun"].detail


def test_a_missing_scratch_directory_is_one_finding(
    environments: Environments, tmp_path: Path
) -> None:
    found = _checks(environments, tmp_path / "no")
    assert found["disk"].status == "missing"
    assert "page cache" not in found


def test_a_loop_device_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._disk(tmp_path).status == "ok"
    loop = BlockDevice("loop3", rotational=False, scheduler="none")
    monkeypatch.setattr(doctor.machine, "block_device", lambda mount: loop)
    found = doctor._disk(tmp_path)
    assert found.status == "warning"
    assert " on loop3, " in found.detail
    assert "a loop device is a file that its host may hold in memory" in found.detail


def test_pages_that_stay_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(doctor._PROBE_BYTES))
        file.flush()
        assert doctor._resident_pages(file) == doctor._PROBE_BYTES // mmap.PAGESIZE
    monkeypatch.setattr("os.posix_fadvise", lambda *_: None)
    assert doctor._page_cache(tmp_path).status == "warning"


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a directory whose path is shorter than that of `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        yield Path(folder)


def test_a_scratch_directory_in_which_sockets_have_room_is_left_as_it_was(short: Path) -> None:
    assert doctor._sockets(short).status == "ok"
    assert list(short.iterdir()) == []


def test_a_scratch_directory_too_long_for_sockets_says_so(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    found = doctor._sockets(folder)
    # The folders of a run and of a thread, a temporary one, and multiprocessing's socket lie below.
    length = len(str(folder)) + len("/01234567") + len("/lane-0/tmp") + 32
    assert found == Check(
        "sockets",
        "warning",
        f"sockets in a run's folder would have paths of {length} bytes, and the kernel takes 107; "
        "name a scratch directory with a shorter path (--dir): methods that write from a daemon "
        "process fail here, such as PyTorch's asynchronous DCP",
    )
    assert list(folder.iterdir()) == []


def test_a_scratch_directory_that_takes_no_sockets_says_so(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refuse)
    found = doctor._sockets(short)
    assert found.status == "warning"
    assert "no socket can be made in the scratch directory (Operation not" in found.detail


def test_a_file_system_in_memory_gives_warnings(environments: Environments) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("no /dev/shm")
    found = _checks(environments, shm)
    assert (found["direct I/O"].status, found["page cache"].status) == ("warning", "warning")
