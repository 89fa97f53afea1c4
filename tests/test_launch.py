"""The command lines of ranks for each launcher, and the environment of their processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import planned

from harness.driver import jobs, launch
from harness.driver.launch import ROOT, Launch, OpenMpi
from harness.run.errors import UsageError
from harness.wire.case import TRACE, Case, Job, Task


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def started(tmp_path: Path) -> Launch:
    return Launch(tmp_path / "venv/bin/python", tmp_path / "job.json", tmp_path / "out", world=2)


def command(folder: Path, name: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


def worker(started: Launch) -> list[str]:
    return [
        str(started.interpreter),
        "-m",
        "harness.worker",
        str(started.job_file),
        str(started.folder),
    ]


@pytest.mark.usefixtures("on_path")
def test_a_local_rank_is_the_interpreters_own_process(started: Launch) -> None:
    assert launch.argv("local", started, []) == worker(started)


def test_ranks_are_started_by_the_mpirun_on_the_path(started: Launch, on_path: Path) -> None:
    mpirun = command(on_path, "mpirun")
    mapping = ["--map-by", "ppr:2:node:oversubscribe", "--bind-to", "none"]
    assert launch.argv("mpirun", started, []) == [mpirun, "-n", "2", *mapping, *worker(started)]


def test_a_launcher_of_the_frameworks_own_starts_the_worker(started: Launch) -> None:
    start = replace(started, own=("-m", "launcher", "--ranks={ranks}"))
    interpreter, *arguments = worker(started)
    expected = [interpreter, "-m", "launcher", "--ranks=2", *arguments]
    # Where setpriv ties the job to this process, its prefix comes first.
    assert launch.argv("mpirun", start, [])[-len(expected) :] == expected


def test_the_mpirun_beside_the_interpreter_comes_first(started: Launch, on_path: Path) -> None:
    command(on_path, "mpirun")
    beside = command(started.interpreter.parent, "mpirun")
    assert launch.argv("mpirun", started, [])[0] == beside


def test_the_mpirun_that_the_user_names_comes_before_all_others(
    started: Launch, tmp_path: Path
) -> None:
    command(started.interpreter.parent, "mpirun")
    named = OpenMpi(tmp_path / "site" / "mpirun", tmp_path / "site" / "libmpi.so.40")
    assert str(named.mpirun) in launch.argv("mpirun", replace(started, mpi=named), [])
    assert launch.environment(tmp_path, {}, mpi=named)["MPI4PY_LIBMPI"] == str(named.library)
    assert "MPI4PY_LIBMPI" not in launch.environment(tmp_path, {})


def test_an_mpirun_of_no_open_mpi_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=f"^--mpirun: there is no file {tmp_path}/mpirun$",
    ):
        launch.open_mpi(tmp_path / "mpirun")
    mpirun = Path(command(tmp_path, "mpirun"))
    with pytest.raises(
        UsageError,
        match=f"^{tmp_path}/mpirun does not look like Open MPI's mpirun, "
        "because there is no ompi_info beside it; name another one with --mpirun$",
    ):
        launch.open_mpi(mpirun)
    command(tmp_path, "ompi_info")
    with pytest.raises(
        UsageError, match=f"^{tmp_path}/ompi_info loads no libmpi that can be found"
    ):
        launch.open_mpi(mpirun)


def test_the_library_of_an_mpirun_is_the_one_beside_it() -> None:
    beside = Path(sys.executable).with_name("mpirun")
    found = launch.open_mpi(beside)
    assert found.mpirun == beside
    assert found.library.resolve().is_relative_to(Path(sys.prefix).resolve())


@pytest.mark.usefixtures("on_path")
def test_without_mpirun_the_message_says_where_it_was_looked_for(started: Launch) -> None:
    message = (
        f"^no mpirun beside {started.interpreter} or on the path: several ranks cannot be started; "
        "install Open MPI or give --mpirun$"
    )
    with pytest.raises(UsageError, match=message):
        launch.argv("mpirun", started, [])


@pytest.mark.parametrize(("world", "nodes", "per_node"), [(4, 2, 2), (8, 1, 8), (3, 2, 2)])
def test_slurm_spreads_ranks_over_the_nodes(
    started: Launch, on_path: Path, world: int, nodes: int, per_node: int
) -> None:
    mpirun = command(on_path, "mpirun")
    spread = replace(started, world=world, nodes=nodes)
    mapping = ["--map-by", f"ppr:{per_node}:node:oversubscribe", "--bind-to", "none"]
    assert launch.argv("slurm", spread, []) == [
        mpirun,
        "-n",
        str(world),
        *mapping,
        *worker(started),
    ]


def test_a_tracer_sees_one_node() -> None:
    assert launch.out_of_sight(2) == "ranks on 2 nodes cannot be traced from one of them"
    assert [launch.out_of_sight(nodes) for nodes in (0, 1)] == [None, None]


def test_a_tracer_comes_before_everything_it_traces(started: Launch, on_path: Path) -> None:
    mpirun, setpriv = command(on_path, "mpirun"), command(on_path, "setpriv")
    tracer = ["strace", "-f"]
    assert launch.argv("local", started, tracer) == [
        setpriv,
        "--pdeathsig",
        "KILL",
        "--",
        *tracer,
        *worker(started),
    ]
    for launcher in ("mpirun", "slurm"):
        assert launch.argv(launcher, started, tracer)[:6] == [
            setpriv,
            "--pdeathsig",
            "TERM",
            "--",
            *tracer,
        ]
    assert launch.argv("mpirun", started, tracer)[6] == mpirun


def test_this_project_comes_first_on_the_workers_path_and_the_users_own_stays(
    tmp_path: Path,
) -> None:
    variables = launch.environment(tmp_path, {"PYTHONPATH": "/site/packages", "HOME": "/home/me"})
    assert variables["PYTHONPATH"] == f"{ROOT}{os.pathsep}/site/packages"
    assert variables["HOME"] == "/home/me"


@pytest.mark.parametrize("base", [{}, {"PYTHONPATH": ""}])
def test_an_empty_path_brings_no_current_directory_in(tmp_path: Path, base: dict[str, str]) -> None:
    assert launch.environment(tmp_path, base)["PYTHONPATH"] == str(ROOT)


def test_temporary_files_go_to_the_scratch_directory(tmp_path: Path) -> None:
    assert launch.environment(tmp_path, {"TMPDIR": "/tmp"})["TMPDIR"] == str(tmp_path)


def test_the_drivers_own_environment_is_inherited_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTBENCH_TEST", "here")
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert launch.environment(tmp_path)["CKPTBENCH_TEST"] == "here"
    assert os.environ["TMPDIR"] == "/elsewhere"


def test_srun_hands_the_environment_to_other_nodes_whatever_the_site_has_set(
    tmp_path: Path,
) -> None:
    assert launch.environment(tmp_path, {"SLURM_EXPORT_ENV": "NONE"})["SLURM_EXPORT_ENV"] == "ALL"


def test_the_superuser_may_start_mpi(tmp_path: Path) -> None:
    allowed = launch.environment(tmp_path, {}).get("OMPI_ALLOW_RUN_AS_ROOT")
    assert allowed == ("1" if os.geteuid() == 0 else None)


def test_a_process_in_this_environment_finds_the_worker_and_its_temporary_directory(
    tmp_path: Path,
) -> None:
    program = "import harness.worker, tempfile; print(tempfile.gettempdir())"
    variables = launch.environment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd="/",
        env=variables,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.stderr, done.stdout) == ("", f"{tmp_path}\n")


def test_a_rank_computes_with_its_share_of_the_processors_unless_the_user_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch.environment(tmp_path, {}, threads=2)["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in launch.environment(tmp_path, {})
    told = launch.environment(tmp_path, {"OMP_NUM_THREADS": "3"}, threads=2)
    assert told["OMP_NUM_THREADS"] == "3"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    case = replace(planned("direct").case, experiment="goodput")
    worlds = {world: replace(case, world=world) for world in (1, 2, 3, 16)}
    threads = {w: jobs._threads(job(of, "recover", world=w)) for w, of in worlds.items()}
    assert threads == {1: 8, 2: 4, 3: 2, 16: 1}
    with_spares = job(worlds[2], "recover", world=5)
    assert jobs._threads(with_spares) == 4, "spares wait, so they have no share"
    assert jobs._threads(job(replace(case, experiment="cost"), "save", world=2)) is None
    assert jobs._threads(job(case, TRACE, world=2)) is None


def job(case: Case, role: str, world: int) -> Job:
    return Job("001-job", role, 0, "scratch", world=world, tasks=(Task(case, 1, 0, 0),))
