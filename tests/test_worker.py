"""The worker's process: which cases a failure concerns, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import planned

from harness.wire.case import Job, Task
from harness.worker import __main__ as worker
from harness.worker.bench import Bench
from harness.worker.world import World


class Deviceless:
    """A framework that lacks one precision, and whose device does not answer."""

    def unsupported(self, workload: Any, device: str) -> str | None:
        return "no bfloat16" if workload.precision == "bf16-mixed" else None


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of three cases, whose framework does not start."""

    def does_not_start(*_: object) -> Bench:
        raise RuntimeError("no device")

    monkeypatch.setattr(worker, "load_class", lambda path: Deviceless)
    monkeypatch.setattr(worker, "start", does_not_start)
    cases = [
        planned(workload="llm-slice", precision="bf16-mixed").case,
        planned().case,
        planned("direct").case,
    ]
    tasks = tuple(Task(case, samples=1, warmups=0, repeats=0) for case in cases)
    return Job("001-save-0", "save", process=0, scratch=str(tmp_path), tasks=tasks)


def test_a_start_that_fails_leaves_a_case_that_is_not_supported_alone(job: Job) -> None:
    failed = failures(job)
    assert failed == [
        (job.tasks[0].case.id, "no bfloat16"),
        (job.tasks[1].case.id, "RuntimeError: no device"),
        (job.tasks[2].case.id, "RuntimeError: no device"),
    ]


def test_a_start_that_fails_in_a_forked_process_fails_its_own_task_alone(job: Job) -> None:
    failed = failures(job, [(2, job.tasks[2])])
    assert failed == [(job.tasks[2].case.id, "RuntimeError: no device")]


def failures(job: Job, chosen: list[tuple[int, Task]] | None = None) -> list[tuple[str, str]]:
    """Do the tasks, and return what the worker has written about each case."""
    written: list[tuple[str, str]] = []
    output: Any = SimpleNamespace(fail=lambda case, reason, *_: written.append((case, reason)))
    worker.run_tasks(job, World(), output, chosen)
    return written


def test_what_was_printed_outlives_an_end_at_once() -> None:
    program = "from harness.worker.world import end_now; print('said'); end_now()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "said\n")


@pytest.mark.parametrize("restores", [True, False])
def test_only_a_case_that_restores_from_memory_has_a_folder_there(
    restores: bool,
) -> None:
    """The cases of a job share it, and another one of them may need it."""
    bench: Any = SimpleNamespace(job=SimpleNamespace(memory="/dev/shm/of-the-job"))
    folder = Bench.memory(bench, planned(from_memory=restores).case)
    assert (folder is not None) == restores
