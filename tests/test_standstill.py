"""A job that makes no progress says in which function each of its workers stood."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Measure, faulty

from harness.driver import process, standstill
from harness.driver.launch import ROOT
from harness.driver.process import Ending
from harness.driver.standstill import Standstill
from harness.wire import stacks
from harness.wire.nodes import node_name

HUNG_S = 10  # longer than an interpreter needs to start beside other tests
Run = Callable[[str], Ending]

# Python's lock stays held in the native call, so no other thread of Python could say anything.
FOUR_WORKERS = """
import ctypes, os, queue, signal

def receive():
    queue.Queue().get()

def exchange():
    library = ctypes.PyDLL(None)
    semaphore = ctypes.create_string_buffer(64)
    library.sem_init(semaphore, 0, 0)
    library.sem_wait(semaphore)

def be_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)

for work in (receive, exchange, be_stopped):
    if os.fork() == 0:
        stacks.offer(folder)
        work()
receive()
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a program as a worker that offers its stacks, until it hangs."""

    def run(program: str) -> Ending:
        worker = tmp_path / "harness/worker/__main__.py"
        worker.parent.mkdir(parents=True)
        begin = (
            "import pathlib\n"
            "from harness.wire import stacks\n"
            f"folder = pathlib.Path({str(tmp_path)!r})\n"
            "stacks.offer(folder)\n"
        )
        worker.write_text(begin + program)
        follower = process.Follower(tmp_path, 1, lambda rank, line: None)
        variables = os.environ | {
            "TMPDIR": str(tmp_path / "tmp"),
            "PYTHONPATH": str(ROOT),
            "PYTHONSAFEPATH": "1",
        }
        command = [sys.executable, str(worker)]
        return process.run(command, variables, tmp_path / "log", follower, 1, HUNG_S)

    return run


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Return a process of another job, which has the number of a worker that has ended."""
    variables = os.environ | {"TMPDIR": str(tmp_path / "other")}
    with subprocess.Popen(["sleep", "60"], env=variables) as started:
        (tmp_path / f"stacks-{node_name()}-{started.pid}").touch()
        yield started
        started.kill()


def test_workers_of_a_job_that_hangs_say_where_they_stood(
    run: Run, stranger: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """One of them is stopped and cannot answer, and one process is not the job's."""
    assert run(FOUR_WORKERS).reason == (
        f"no progress for {HUNG_S} s, so the process was killed; "
        "2 workers stood in receive of worker/__main__.py, "
        "1 in exchange of worker/__main__.py"
    )
    assert stranger.poll() is None, "the signal would have ended it"
    files = stacks.offered(tmp_path)
    answers = [number for number, file in files.items() if file.read_text()]
    assert (len(files), len(answers)) == (5, 3)
    log = (tmp_path / "log").read_text()
    for number in answers:
        assert f"A worker stood still (process {number}):\n" in log
    assert "in exchange" in log


def test_the_row_names_the_function_of_a_method_that_hangs(measure: Measure) -> None:
    (row,) = measure([faulty("hangs")], timeout_s=HUNG_S).rows
    assert row.reason.endswith("; 1 worker stood in save of doubles/processes.py"), row.reason


def test_only_the_most_frequent_places_are_named() -> None:
    main = 'File "/x/harness/worker/__main__.py", line 1 in main'
    answers = {
        number: f'File "/x/lib/mpi.py", line 1 in call{number % 5}\n{main}' for number in range(6)
    }
    assert Standstill([], answers).in_words == (
        "2 workers stood in call0 of lib/mpi.py, 1 in call1 of lib/mpi.py, "
        "1 in call2 of lib/mpi.py, others elsewhere"
    )


def test_a_folder_that_cannot_be_read_and_a_log_that_cannot_be_written_cost_no_row(
    tmp_path: Path,
) -> None:
    assert standstill.ask(tmp_path / "gone", str(tmp_path)) == {}
    Standstill([], {1: "stacks"}).add_to(tmp_path / "gone/log")


def test_the_files_of_another_node_are_left_alone(tmp_path: Path) -> None:
    """The name of one node may begin with that of another one."""
    for name in (f"stacks-{node_name()}-7", f"stacks-{node_name()}-2-8", "rank-00000.mark"):
        (tmp_path / name).touch()
    assert stacks.offered(tmp_path) == {7: tmp_path / f"stacks-{node_name()}-7"}


OWN = 'Thread 0x1 (most recent call first):\n  File "/x/saver/save.py", line 1 in save'
MAIN = (
    "Current thread 0x2 (most recent call first):\n"
    '  File "/usr/lib/python3.11/threading.py", line 1 in wait\n'
    '  File "/x/lib/python3.11/site-packages/torch/futures.py", line 1 in result\n'
    '  File "/x/job/main.py", line 1 in main'
)
IDLE = (
    "Thread 0x3 (most recent call first):\n"
    '  File "/usr/lib/python3.11/threading.py", line 1 in wait\n'
    '  File "<frozen runpy>", line 1 in run'
)


@pytest.mark.parametrize(
    ("text", "through", "place"),
    [
        (f"{OWN}\n\n{MAIN}", "saver", "save of saver/save.py"),
        (f"{OWN}\n\n{MAIN}", "job/main", "result of torch/futures.py"),
        (f"{OWN}\n\n{MAIN}", "cut off", "result of torch/futures.py"),
        (IDLE, "job", "wait of python3.11/threading.py"),
        ("", "job", "a thread that cannot be told"),
    ],
)
def test_one_thread_tells_where_a_process_stands(text: str, through: str, place: str) -> None:
    assert stacks.innermost(text, through) == place
