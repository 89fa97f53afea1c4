"""A job of several ranks leaves no process, shared memory, socket or temporary file at any end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from conftest import Measure, faulty, planned
from test_session import command, processes_in, start

from harness.driver.shared_memory import folder_of

pytestmark = pytest.mark.slow

SHARED_MEMORY = Path("/dev/shm")
# The time until ranks have saved, or until a driver has ended, on a machine that is busy.
WAIT_S = 120


@contextmanager
def nothing_left(where: Path) -> Iterator[Watched]:
    """Fail where a job in `where` has left anything after the block."""
    watched = Watched(where)
    watched.start()
    yield watched
    deadline = time.monotonic() + 5
    while processes_in(where) and time.monotonic() < deadline:
        time.sleep(0.1)
    watched.end()
    assert watched.listeners, "ranks listen on sockets: the watcher has seen nothing"
    assert watched.shared_memory, "ranks of one machine share memory: the watcher has seen nothing"
    assert processes_in(where) == []
    assert watched.listening() == []
    assert [path for path in watched.shared_memory if path.exists()] == []
    assert not list(where.iterdir()), (
        "the scratch directory was not cleaned: temporary files lie there too"
    )


class Watched(threading.Thread):
    """A watcher of the ports and the shared memory that a job's processes open."""

    def __init__(self, where: Path) -> None:
        super().__init__(daemon=True)
        self._where = where
        self._over = threading.Event()
        self.processes: set[str] = set()
        self.listeners: set[int] = set()
        self.shared_memory: set[Path] = set()

    def run(self) -> None:
        while not self._over.wait(0.1):
            for process in processes_in(self._where):
                with suppress(psutil.Error, OSError):
                    self._look_at(process)

    def end(self) -> None:
        """Stop watching."""
        self._over.set()
        self.join()

    def listening(self) -> list[int]:
        """Return the ports on which processes that were seen still listen."""
        opened = psutil.net_connections("tcp")
        return [
            connection.laddr.port
            for connection in opened
            if connection.status == psutil.CONN_LISTEN and str(connection.pid) in self.processes
        ]

    def _look_at(self, process: psutil.Process) -> None:
        self.processes.add(str(process.pid))
        opened = process.net_connections("tcp")
        self.listeners |= {
            connection.laddr.port
            for connection in opened
            if connection.status == psutil.CONN_LISTEN
        }
        maps = {Path(mapped.path) for mapped in process.memory_maps()}
        self.shared_memory |= {path for path in maps if path.is_relative_to(SHARED_MEMORY)}


@pytest.fixture
def where(scratch: Path, request: pytest.FixtureRequest) -> Path:
    """Return a scratch directory of the test's own."""
    folder = scratch / request.node.name.replace("[", "-").rstrip("]")
    folder.mkdir()
    return folder


@pytest.mark.parametrize("fault", ["none", "raises", "killed", "hangs", "exits"])
def test_two_ranks_leave_nothing(measure: Measure, where: Path, fault: str) -> None:
    with nothing_left(where):
        found = measure(
            [faulty(fault, world=2, launcher="mpirun")],
            timeout_s=20 if fault == "hangs" else 60,
            where=where,
        )
    assert found.rows[0].status == ("ok" if fault == "none" else "failed")


@pytest.mark.parametrize("launched", [{"launcher": "mpirun"}, {"launcher": "slurm", "nodes": 1}])
def test_ranks_of_one_node_share_memory_in_the_runs_own_folder(
    measure: Measure, where: Path, launched: dict[str, object]
) -> None:
    """The run clears their files away itself, also when all of mpirun has been killed."""
    item = faulty("killed", world=2)
    with nothing_left(where) as watched:
        found = measure([replace(item, case=replace(item.case, **launched))], where=where)
    assert found.rows[0].status == "failed"
    assert [
        path
        for path in watched.shared_memory
        if not path.is_relative_to(folder_of(found.run.folder))
    ] == []


def test_ranks_that_were_killed_on_purpose_leave_nothing(measure: Measure, where: Path) -> None:
    item = planned("buffered", world=2, launcher="mpirun")
    with nothing_left(where):
        found = measure(
            [replace(item, case=replace(item.case, experiment="resume"), samples=1)], where=where
        )
    assert found.rows[0].status == "ok"


@pytest.mark.patient
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_driver_that_is_ended_takes_its_ranks_along(
    tmp_path: Path, where: Path, sent: signal.Signals
) -> None:
    argv = command(tmp_path, where, "--framework", "raw", "--workload", "resnet50", "--world", "2")
    with nothing_left(where):
        driver = start(argv)
        deadline = time.monotonic() + WAIT_S
        while not any(where.glob("*/saves/*")):
            assert time.monotonic() < deadline, "nothing was saved"
            time.sleep(0.05)
        driver.send_signal(sent)
        driver.communicate(timeout=WAIT_S)
        # A killed driver cannot clear up, and the next one does.
        if sent == signal.SIGKILL:
            again = start(command(tmp_path, where, "--resume", "latest"))
            _, errors = again.communicate(timeout=WAIT_S)
            assert again.returncode == 0, errors
