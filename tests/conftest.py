"""The tests share a scratch directory on a real disk, and runs of real cases."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.analysis.row import Row, Wanted
from harness.analysis.rows import rows
from harness.driver import catalog, machine, preflight
from harness.driver.arms import Arm
from harness.driver.environments import Environments
from harness.driver.session import Goal, Session
from harness.run import store
from harness.run.plan import PlannedCase
from harness.wire.case import Case
from harness.wire.records import Record

ROOT = Path(__file__).resolve().parents[1]


# Files whose few tests take long. The others end sooner if these do not come last.
LONG = (
    "test_guards.py",
    "test_fuzz.py",
    "test_memory_level.py",
    "test_calibration.py",
    "test_new_experiment.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long files."""
    items.sort(key=lambda item: item.path.name not in LONG)


BEGUN_S = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    """Note when the tests begin."""
    config.stash[BEGUN_S] = time.time()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the copies that test doubles have hidden in shared memory, after the last worker."""
    if hasattr(config, "workerinput"):
        return
    for copy in Path("/dev/shm").glob("double-*.bin"):
        # Other tests may run at the same time, and remove theirs.
        with contextlib.suppress(FileNotFoundError):
            if copy.stat().st_mtime >= config.stash[BEGUN_S]:
                copy.unlink()


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A directory whose file system takes direct I/O; the temporary directory may be in memory."""
    candidates = [Path(tempfile.gettempdir()), ROOT / ".scratch"]
    (ROOT / ".scratch").mkdir(exist_ok=True)
    parent = next((path for path in candidates if preflight.direct_io(path) is None), candidates[0])
    folder = Path(tempfile.mkdtemp(prefix="ckptbench-tests-", dir=parent))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def planned(method: str = "buffered", **changes: object) -> PlannedCase:
    """A case of the raw adapter on a small state; `changes` go to the case or to the plan."""
    entry = catalog.frameworks()["raw"].methods[method]
    case = {
        "framework": "raw",
        "framework_path": "adapters.raw.framework:Raw",
        "workload": "resnet50",
        "preset": "small",
        "precision": "float32",
        "dropout": 0.1,
        "method": method,
        "method_path": entry.class_path,
        "options": dict(entry.options),
        "covers": entry.covers,
        "rank_local": entry.rank_local,
        "device": "cpu",
        "world": 1,
        "launcher": "local",
        "experiment": "cost",
        "from_memory": entry.from_memory,
    }
    plan = {
        "samples": 2,
        "warmups": 1,
        "repeats": 0,
        "processes": 1,
        "own_process": False,
        "expected_failure": None,
    }
    for key, value in changes.items():
        (case if key in case else plan)[key] = value
    return PlannedCase(case=Case(**case), **plan)


def faulty(fault: str, **changes: object) -> PlannedCase:
    """The test double with a misbehaviour."""
    item = planned("double", options={"fault": fault, "slowdown": 1.0}, **changes)
    return replace(item, case=replace(item.case, method=f"double[fault={fault}]"))


@dataclass(frozen=True)
class Measured:
    """A run that was measured, and what came of it."""

    run: store.Run
    rows: list[Row]
    messages: list[str]
    scratch: Path

    def row(self, method: str) -> Row:
        return next(row for row in self.rows if row.method == method)

    def records(self, kind: str) -> list:
        return [record for record in self.run.records if record.kind == kind]


Measure = Callable[..., Measured]


def measure_cases(
    plan: Sequence[PlannedCase],
    results: Path,
    place: Path,
    timeout_s: float = 60,
    before: Sequence[Record] = (),
    settings: store.Settings | None = None,
    arms: Mapping[str, Arm] | None = None,
    goal: Goal | None = None,
) -> Measured:
    """Measure cases in worker processes of this interpreter, with checkpoints under `place`.

    `before` are records of an attempt that was interrupted.
    """
    made = store.create(
        results, "test", ["pytest"], plan, machine.capture(place), settings=settings
    )
    interpreters = Environments(ROOT / ".venvs", ROOT / "adapters", {"raw": Path(sys.executable)})
    for record in before:
        made.append(record)
    messages: list[str] = []
    session = Session(
        run=made,
        arms={"": Arm(interpreters, {"raw": ("numpy",)}), **(arms or {})},
        scratch=place / made.name,
        not_direct=preflight.direct_io(place),
        timeout_s=timeout_s,
        on_event=lambda event: messages.append(event.text),
    )
    session.measure(goal)
    return Measured(made, table_of(made), messages, place / made.name)


@pytest.fixture(scope="session")
def measure(scratch: Path, tmp_path_factory: pytest.TempPathFactory) -> Measure:
    """Measure cases in worker processes of this interpreter and return the rows."""
    # The first run in this folder sweeps the directory for all.
    shared = tmp_path_factory.getbasetemp() / "results"

    def run(
        plan: Sequence[PlannedCase],
        timeout_s: float = 60,
        where: Path | None = None,
        results: Path | None = None,
        **more: object,
    ) -> Measured:
        return measure_cases(plan, results or shared, where or scratch, timeout_s, **more)

    return run


def table_of(run: store.Run) -> list[Row]:
    """The rows of a run's own plan."""
    return rows(
        [Wanted.of(item) for item in run.plan],
        run.records,
    )


@pytest.fixture
def own_mpirun(tmp_path: Path) -> Path:
    """The system's mpirun under another name, beside which each start leaves a line in a file."""
    system = Path("/usr/bin")
    if not (system / "mpirun").exists() or not (system / "ompi_info").exists():
        pytest.skip("no Open MPI of the system: apt-get install openmpi-bin")
    named = tmp_path / "mpirun"
    named.write_text(f'#!/bin/sh\necho started >> {tmp_path}/started\nexec {system}/mpirun "$@"\n')
    named.chmod(0o755)
    (tmp_path / "ompi_info").symlink_to(system / "ompi_info")
    return named
