"""Runs over the nodes of a Slurm cluster on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import slurm_cluster
from conftest import ROOT, planned
from slurm_cluster import NODES, Cluster
from slurm_runs import NO_EXPORT, SMOKE, ckptbench, command, site_file
from test_leftovers import Watched
from test_session import heed_ctrl_c

from harness.driver import slurm, slurm_jobs
from harness.driver.shared_memory import folder_of
from harness.experiments.cost.records import SaveRecord
from harness.experiments.recovery.records import KillRecord, SteadyRecord
from harness.run import store
from harness.run.plan import PlannedCase
from harness.wire.records import FailureRecord, WorkerRecord

pytest_plugins = ["shared_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nobodys_site_file")]


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """Yield a folder whose name leaves room in the 107 bytes of a socket's path."""
    folder = Path(tempfile.mkdtemp(prefix="ckptbench-slurm-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(short_folder: Path) -> Iterator[Cluster]:
    reason = slurm_cluster.missing()
    if reason:
        pytest.skip(reason)
    with slurm_cluster.cluster(short_folder) as made:
        yield made


@dataclass
class Submitted:
    """A run that was submitted and goes on."""

    driver: subprocess.Popen[str]
    results: Path
    scratch: Path
    watched: Watched

    @property
    def run(self) -> store.Run:
        return store.Run(store.find(self.results, "latest"))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 90
        while not condition():
            assert self.driver.poll() is None, self.driver.communicate()
            assert time.monotonic() < deadline, "the job did not come that far"
            time.sleep(0.1)

    def has_saved(self) -> bool:
        """Return whether the job measures."""
        return bool(store.folders(self.results)) and any(
            isinstance(record, SaveRecord) for record in self.run.records
        )

    def end(self, timeout_s: float = 90) -> tuple[int, str]:
        """Return the driver's exit status and its messages, once it has ended."""
        _, text = self.driver.communicate(timeout=timeout_s)
        return self.driver.returncode, text


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path, scratch: Path) -> Iterator[Callable[..., Submitted]]:
    """Yield a function that starts a driver, which submits a run of two ranks on two nodes."""
    place = Path(tempfile.mkdtemp(dir=scratch))
    drivers = []

    def start(*arguments: str, suite: Sequence[str] = SMOKE) -> Submitted:
        options = [
            "--nodes",
            "2",
            "--world",
            "2",
            "--dir",
            str(place),
            "--results",
            str(tmp_path / "results"),
        ]
        driver = subprocess.Popen(
            command("run", *suite, *options, *arguments),
            cwd=ROOT,
            env=os.environ | cluster.environment | NO_EXPORT,
            preexec_fn=heed_ctrl_c,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        drivers.append(driver)
        return Submitted(driver, tmp_path / "results", place, watched)

    watched = Watched(place)
    watched.start()
    yield start
    for driver in drivers:
        # It cancels its job.
        driver.terminate()
        driver.communicate()
    watched.end()


def left_behind(submitted: Submitted, cluster: Cluster) -> list[str]:
    """Return the jobs, scratch files, shared memory and processes that a run has left."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if str(submitted.results) in line or str(submitted.scratch) in line:
                processes.append(line)
    opened = [*submitted.watched.shared_memory, *map(folder_of, store.folders(submitted.results))]
    memory = [str(path) for path in opened if path.exists()]
    return [*cluster.jobs(), *map(str, submitted.scratch.iterdir()), *memory, *processes]


@pytest.mark.patient
def test_a_job_that_is_cancelled_outside_says_so_and_its_run_goes_on_over_both_nodes(
    submit: Callable[..., Submitted], cluster: Cluster
) -> None:
    submitted = submit("--world", "2,4")
    submitted.wait_until(submitted.has_saved)
    cluster.run("scancel", f"--name={slurm_jobs.JOB_NAME}")
    status, text = submitted.end()
    assert status == 1
    assert "ended as CANCELLED before the run was complete; its last words, from" in text
    assert "CANCELLED AT" in text, "the end of the job's output is shown"
    assert left_behind(submitted, cluster) == []

    run = submitted.run
    assert [record for record in run.records if record.kind == "failure"] == []
    resumed = ckptbench(
        "run", "--resume", str(run.folder), environment=cluster.environment | NO_EXPORT
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "resnet50 small on cpu, 2 and 4 ranks" in resumed.stdout
    assert submitted.watched.shared_memory, (
        "two ranks of a node share memory: the watcher has seen nothing"
    )
    assert left_behind(submitted, cluster) == []
    check_both_nodes_took_part(submitted.run)


@pytest.mark.patient
@pytest.mark.parametrize(("framework", "method"), [("pytorch", "dcp"), ("jax", "orbax")])
def test_ranks_of_a_framework_find_each_other_over_two_nodes(
    submit: Callable[..., Submitted], cluster: Cluster, framework: str, method: str
) -> None:
    if not (ROOT / ".venvs" / framework / "bin" / "python").exists():
        pytest.skip(f"the environment of {framework} is not made")
    submitted = submit(suite=(*SMOKE[:1], "--framework", framework, "--method", method, *SMOKE[5:]))
    status, text = submitted.end(timeout_s=240)
    assert status == 0, text
    records = list(submitted.run.records)
    assert {record.node for record in records if isinstance(record, WorkerRecord)} == set(NODES)
    assert {record.rank for record in records if isinstance(record, SaveRecord)} == {0, 1}
    assert left_behind(submitted, cluster) == []


def check_both_nodes_took_part(run: store.Run) -> None:
    jobs: dict[str, Counter[str]] = {}
    for record in run.records:
        if isinstance(record, WorkerRecord):
            jobs.setdefault(record.job, Counter())[record.node] += 1
    shares = {tuple(sorted(nodes.items())) for nodes in jobs.values()}
    assert shares == {tuple((node, ranks) for node in NODES) for ranks in (1, 2)}
    # One rank of each node flushes, also where two nodes are one machine.
    case_of_four = next(item.case.id for item in run.plan if item.case.world == 4)
    flushing = [
        record.rank
        for record in run.records
        if isinstance(record, SaveRecord) and record.case == case_of_four and record.sync_ns
    ]
    assert set(flushing) == {0, 2}


def test_an_interrupted_driver_leaves_no_job_and_no_process(
    submit: Callable[..., Submitted], cluster: Cluster
) -> None:
    submitted = submit()
    submitted.wait_until(submitted.has_saved)
    submitted.driver.send_signal(signal.SIGINT)
    status, text = submitted.end()
    assert status == 130
    assert f"cancelled; go on with: ckptbench run --resume {submitted.run.name}" in text
    assert left_behind(submitted, cluster) == []


def test_a_job_that_still_waits_is_cancelled_with_its_driver(
    submit: Callable[..., Submitted], cluster: Cluster, tmp_path: Path
) -> None:
    submitted = submit("--site", str(site_file(tmp_path, 'extra_sbatch = ["--hold"]')))
    submitted.wait_until(lambda: any("PENDING" in job for job in cluster.jobs()))
    submitted.driver.send_signal(signal.SIGTERM)
    assert submitted.end()[0] == 130
    assert left_behind(submitted, cluster) == []


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ('partition = "nope"', [], "Slurm refuses the job: invalid partition specified: nope"),
        (
            "",
            ["--nodes", "3", "--world", "3"],
            "Slurm refuses the job: Batch job submission failed: ",
        ),
        ('partion = "bench"', [], "unknown key 'partion'; did you mean 'partition'?"),
    ],
)
def test_a_job_that_slurm_would_refuse_leaves_nothing(
    text: str,
    arguments: list[str],
    message: str,
    submit: Callable[..., Submitted],
    cluster: Cluster,
    tmp_path: Path,
) -> None:
    submitted = submit("--site", str(site_file(tmp_path, text)), *arguments)
    status, said = submitted.end()
    assert status == 2
    assert message in said
    assert store.folders(submitted.results) == []
    assert left_behind(submitted, cluster) == []


@pytest.mark.patient
@pytest.mark.parametrize(
    ("launched", "nodes"), [([], NODES[:1]), (["--launcher", "slurm", "--nodes", "2"], NODES)]
)
def test_in_an_allocation_ranks_are_on_as_many_of_its_nodes_as_were_named(
    launched: list[str], nodes: tuple[str, ...], cluster: Cluster, tmp_path: Path, scratch: Path
) -> None:
    options = [
        *SMOKE[:-2],
        *launched,
        "--world",
        "4",
        "--dir",
        str(scratch),
        "--results",
        str(tmp_path),
    ]
    held = ["salloc", "--nodes=2", "--ntasks-per-node=2"]
    beside = in_cluster(cluster, *held, *command("run", *options))
    assert (beside.returncode, store.folders(tmp_path)) == (2, [])
    assert (
        "this shell holds a Slurm job and is on none of its nodes: "
        "start the run with `srun --overlap -N1 -n1`" in beside.stderr
    )
    on_it = in_cluster(cluster, *held, "srun", "--overlap", "-N1", "-n1", *command("run", *options))
    assert on_it.returncode == 0, on_it.stderr
    records = store.Run(store.find(tmp_path, "latest")).records
    assert {record.node for record in records if isinstance(record, WorkerRecord)} == set(nodes)


def in_cluster(
    cluster: Cluster, *argv: str, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    variables = os.environ | cluster.environment
    return subprocess.run(
        argv,
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_doctor_names_the_partitions(cluster: Cluster) -> None:
    done = ckptbench("doctor", environment=cluster.environment)
    assert "partitions: bench" in " ".join(done.stdout.split())


def test_ranks_that_do_not_share_the_scratch_directory_are_refused(
    short_folder: Path, tmp_path: Path
) -> None:
    """On the second node, another file system lies over the scratch directory."""
    private = tmp_path / "scratch"
    private.mkdir()
    hidden = slurm_cluster.private_file_system(private)
    reason = slurm_cluster.missing() or slurm_cluster.cannot(hidden)
    if reason:
        pytest.skip(reason)
    (short_folder / "other").mkdir()
    with slurm_cluster.cluster(short_folder / "other", hidden) as made:
        options = [
            "--nodes",
            "2",
            "--world",
            "2",
            "--dir",
            str(private),
            "--results",
            str(tmp_path / "results"),
        ]
        done = ckptbench("run", *SMOKE, *options, "--timeout", "30", environment=made.environment)
    assert done.returncode == 1
    reasons = [
        json.loads(line)["reason"]
        for line in next((tmp_path / "results").glob("*/records.jsonl")).open()
        if "failure" in line
    ]
    assert any(
        f"{NODES[1]} does not see scratch directory {private}" in reason for reason in reasons
    ), done.stdout


@pytest.mark.patient
def test_kills_are_timed_over_nodes_whose_clocks_differ(
    short_folder: Path, tmp_path: Path, scratch: Path
) -> None:
    ahead = slurm_cluster.clock_ahead(seconds=1000)
    reason = slurm_cluster.missing() or slurm_cluster.cannot(ahead)
    if reason:
        pytest.skip(reason)
    (short_folder / "ahead").mkdir()
    cases = [
        killed("direct", "restart"),
        killed("direct", "peer-spare", mirror="yes"),
        killed("direct", "shrink"),
        killed("deepfreeze-memory", "restart"),
    ]
    made = store.create(tmp_path, "test", ["pytest"], slurm.spread(cases, 2), None, scratch)
    with slurm_cluster.cluster(short_folder / "ahead", ahead) as cluster:
        resumed = command("run", "--resume", str(made.folder))
        done = in_cluster(cluster, *resumed, timeout_s=300)
    records = list(store.Run(made.folder).records)
    refused = [record.reason for record in records if isinstance(record, FailureRecord)]
    assert refused == [
        "the checkpoint in memory is on one node, and ranks of the others cannot load it"
    ], done.stderr
    kills = [record for record in records if isinstance(record, KillRecord)]
    assert [kill.same_as for kill in kills] == 12 * ["all ranks"] + 6 * ["fewer ranks"], kills
    for kill in kills:
        parts_ns = [kill.detect_ns, kill.reconfigure_ns, kill.restart_ns, kill.restore_ns]
        assert all(part_ns is None or 0 <= part_ns < 100e9 for part_ns in parts_ns), kill
    steady = [record for record in records if isinstance(record, SteadyRecord)]
    assert all(0 < record.clock_error_ns < 10e6 for record in steady)
    nodes = {record.node for record in records if isinstance(record, WorkerRecord)}
    assert nodes == set(NODES)


def killed(method: str, way: str, mirror: str = "no") -> PlannedCase:
    """Return a case whose four ranks are killed."""
    item = planned(method, world=4, launcher="slurm", experiment="recovery", samples=1, warmups=0)
    settings = {"way": way, "mirror": mirror}
    return replace(item, case=replace(item.case, settings=settings))
