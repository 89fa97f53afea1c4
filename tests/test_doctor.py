"""The doctor finds what is there, what is not, and does not raise on either."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from harness.driver import doctor
from harness.driver.doctor import Check
from harness.driver.environments import Environments


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    """Return one managed environment that was never made, and an interpreter of the user's."""
    for name in ("managed", "own"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
        (tmp_path / "adapters" / name / "requirements.txt").touch()
    return Environments(
        tmp_path / "venvs", tmp_path / "adapters", {"own": tmp_path / "bin" / "python"}
    )


def _checks(environments: Environments, scratch: Path) -> dict[str, Check]:
    return {check.name: check for check in doctor.doctor(environments, scratch)}


def test_everything_is_looked_at(environments: Environments, tmp_path: Path) -> None:
    found = _checks(environments, tmp_path)
    machine = [
        "mpirun",
        "slurm",
        "gpu",
        "strace",
        "fio",
        "compiler",
        "disk",
        "direct I/O",
        "page cache",
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
    mpirun.parent.mkdir()
    mpirun.write_text("#!/bin/sh\necho 'mpirun 9.9'; echo more\n")
    mpirun.chmod(0o755)
    assert _checks(environments, tmp_path)["mpirun"] == Check(
        "mpirun", "ok", f"mpirun 9.9 ({mpirun})"
    )


def test_a_tool_that_does_not_run_is_no_reason_to_stop(
    environments: Environments, tmp_path: Path
) -> None:
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_bytes(b"\x7fELF broken")
    mpirun.chmod(0o755)
    assert "does not answer" in _checks(environments, tmp_path)["mpirun"].detail


def test_a_missing_scratch_directory_is_one_finding(
    environments: Environments, tmp_path: Path
) -> None:
    found = _checks(environments, tmp_path / "no")
    assert found["disk"].status == "missing"
    assert "page cache" not in found


def test_pages_that_stay_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(doctor._PROBE_BYTES))
        file.flush()
        assert doctor._resident_pages(file) == doctor._PROBE_BYTES // mmap.PAGESIZE
    monkeypatch.setattr("os.posix_fadvise", lambda *_: None)
    assert doctor._page_cache(tmp_path).status == "warning"


def test_a_file_system_in_memory_gives_warnings(environments: Environments) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("no /dev/shm")
    found = _checks(environments, shm)
    assert (found["direct I/O"].status, found["page cache"].status) == ("warning", "warning")
