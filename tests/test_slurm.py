"""Slurm: site files, the script of a job, and runs on a cluster of two nodes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import slurm_cluster
from conftest import ROOT, planned
from slurm_cluster import NODES, Cluster
from test_leftovers import Watched
from test_session import heed_ctrl_c

from harness.driver import slurm, slurm_jobs
from harness.driver.shared_memory import folder_of
from harness.driver.slurm import Request, Site
from harness.driver.slurm_jobs import State
from harness.experiments.cost.records import SaveRecord
from harness.run import store
from harness.run.errors import UsageError
from harness.wire.records import WorkerRecord

pytestmark = pytest.mark.slow

SMOKE = (
    "smoke",
    "--framework",
    "raw",
    "--method",
    "buffered",
    "--workload",
    "resnet50",
    "--launcher",
    "slurm",
)


# Some sites let jobs begin with an empty environment. Here srun hands on the one variable by which
# its commands find the cluster.
NO_EXPORT = {"SLURM_EXPORT_ENV": "SLURM_CONF"}


@pytest.fixture(autouse=True)
def nobodys_site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "ckptbench" / "site.toml"


def site_file(folder: Path, text: str) -> Path:
    path = folder / "site.toml"
    path.write_text(text)
    return path


def on_nodes(nodes: int, *worlds: int, device: str = "cpu") -> list:
    return slurm.spread(
        [planned(world=world, launcher="slurm", device=device) for world in worlds], nodes
    )


# The site file


def test_a_site_file_holds_the_options_for_slurm(tmp_path: Path) -> None:
    lines = [
        'account = "lab"',
        'partition = "gpu"',
        'time = "01:00:00"',
        "gpus_per_node = 4",
        'modules = ["gcc"]',
        'extra_sbatch = ["-q high"]',
    ]
    assert slurm.read_site(site_file(tmp_path, "\n".join(lines))) == Site(
        account="lab",
        partition="gpu",
        time="01:00:00",
        gpus_per_node=4,
        modules=("gcc",),
        extra_sbatch=("-q high",),
    )


def test_without_a_site_file_slurm_decides_itself(nobodys_site_file: Path) -> None:
    assert slurm.read_site(None) == Site()
    nobodys_site_file.parent.mkdir(parents=True)
    nobodys_site_file.write_text('partition = "debug"')
    assert slurm.read_site(None) == Site(partition="debug")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('partion = "gpu"', "unknown key 'partion'; did you mean 'partition'?"),
        ("time = 60", "time: input should be a valid string, not 60"),
        ("gpus_per_node = 0", "gpus_per_node: input should be greater than or equal to 1, not 0"),
        ('modules = "gcc"', "modules: "),
        ("account = ", "is not valid TOML"),
    ],
)
def test_a_mistake_in_a_site_file_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = site_file(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        slurm.read_site(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_a_site_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read .*none.toml: No such file"):
        slurm.read_site(tmp_path / "none.toml")


# Ranks over nodes


def test_ranks_are_spread_evenly_and_a_single_one_stays_on_the_first_node() -> None:
    assert [item.case.nodes for item in on_nodes(2, 1, 2, 4)] == [0, 2, 2]


def test_the_number_of_nodes_makes_another_case() -> None:
    assert len({on_nodes(nodes, 4)[0].case.id for nodes in (1, 2, 4)}) == 3


@pytest.mark.parametrize(
    ("nodes", "worlds", "message"),
    [
        (
            2,
            [2, 3],
            "a world of 3 cannot be spread evenly over 2 nodes: --world takes multiples of 2 here",
        ),
        (4, [2], "a world of 2 cannot be spread evenly over 4 nodes"),
        (2, [1], "every case has one rank, which needs no 2 nodes"),
        (0, [1], "--nodes is a number from 1 on, not 0"),
    ],
)
def test_ranks_that_do_not_fit_the_nodes_are_refused(
    nodes: int, worlds: list[int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        on_nodes(nodes, *worlds)


def test_inside_a_job_the_run_is_measured_and_not_submitted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = on_nodes(2, 4)
    assert slurm.is_outside(plan)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    for launched in (plan, [planned()]):
        with pytest.raises(
            UsageError, match="this shell holds a Slurm job and is on none of its nodes"
        ):
            slurm.is_outside(launched)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert not slurm.is_outside(plan)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    with pytest.raises(
        UsageError, match="the run wants 2 nodes, and the Slurm job in which this runs has 1"
    ):
        slurm.is_outside(plan)


# The script


def test_the_script_asks_for_the_nodes_and_resumes_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "my results" / "run"
    script = Request(
        on_nodes(2, 2, 8), Site(account="lab", partition="gpu", time="01:00:00"), timeout_s=60.0
    ).script(folder)
    assert script.splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=ckptbench",
        "#SBATCH --account=lab",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=01:00:00",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        f"#SBATCH --chdir={Path.cwd()}",
        f"#SBATCH '--output={folder}/slurm-%j.out'",
        "#SBATCH --no-requeue",
        "set -e",
        f'export PYTHONPATH={ROOT}"${{PYTHONPATH:+:$PYTHONPATH}}"',
        f"exec {sys.executable} -m harness.cli run --resume '{folder}' --timeout 60.0",
    ]


def test_modules_are_loaded_in_a_login_shell_and_options_of_the_site_are_passed_on(
    tmp_path: Path,
) -> None:
    lines = (
        Request(on_nodes(1, 2), Site(modules=("gcc/13", "cuda"), extra_sbatch=("--exclusive",)))
        .script(tmp_path)
        .splitlines()
    )
    assert lines[0] == "#!/bin/bash -l"
    assert lines[lines.index("set -e") :][:3] == [
        "set -e",
        "module load gcc/13",
        "module load cuda",
    ]
    assert "#SBATCH --exclusive" in lines[: lines.index("set -e")]


@pytest.mark.parametrize(("site", "gpus"), [(Site(), 2), (Site(gpus_per_node=8), 8)])
def test_gpus_are_asked_for_where_they_are_measured(site: Site, gpus: int, tmp_path: Path) -> None:
    assert f"#SBATCH --gpus-per-node={gpus}\n" in Request(
        on_nodes(2, 4, device="cuda"), site
    ).script(tmp_path)
    assert "--gpus-per-node" not in Request(on_nodes(2, 4), site).script(tmp_path)


@pytest.mark.parametrize(
    ("state", "text", "ended"),
    [
        (State("PENDING", reason="Resources"), "PENDING (Resources)", False),
        (State("RUNNING", nodes="n[1-2]"), "RUNNING (n[1-2])", False),
        (State("COMPLETING"), "COMPLETING", False),
        (State("TIMEOUT", reason="TimeLimit"), "TIMEOUT (TimeLimit)", True),
        (
            State("FAILED", reason="NonZeroExitCode", exit_status="2"),
            "FAILED (exit status 2)",
            True,
        ),
        (State("NODE_FAIL"), "NODE_FAIL", True),
        (slurm_jobs.GONE, "unknown to Slurm", True),
    ],
)
def test_a_jobs_state_says_what_there_is_to_know(state: State, text: str, ended: bool) -> None:
    assert (str(state), state.ended) == (text, ended)


# Slurm's answers


RUNNING = "echo JobId=17 JobState=RUNNING Reason=None NodeList=n1 ExitCode=0:0"
CANCELLED = "echo JobId=17 JobState=CANCELLED Reason=None NodeList=n1 ExitCode=0:15"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts commands with Slurm's names first on the path.

    Nobody waits long for them.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name, value in {
        "_COMMAND_TIMEOUT_S": 1.0,
        "_END_TIMEOUT_S": 3.0,
        "_CANCEL_AGAIN_S": 0.1,
    }.items():
        monkeypatch.setattr(slurm_jobs, name, value)

    def put(**scripts: str) -> None:
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    return put


def interrupted(script: Path) -> None:
    with slurm_jobs.submitted(script):
        raise KeyboardInterrupt


def test_a_job_that_cannot_be_cancelled_is_named(
    commands: Callable[..., None], tmp_path: Path
) -> None:
    commands(sbatch="echo 17", scontrol=RUNNING, scancel=f"echo once >> {tmp_path}/asked; exit 1")
    with pytest.raises(
        slurm_jobs.NotCancelled,
        match="^Slurm job 17 could not be cancelled and may go on: scancel 17$",
    ):
        interrupted(tmp_path / "slurm.sh")
    assert len((tmp_path / "asked").read_text().splitlines()) > 1, "it is tried again"


def test_a_cancellation_that_fails_at_first_is_tried_again(
    commands: Callable[..., None], tmp_path: Path
) -> None:
    first, done = tmp_path / "first", tmp_path / "done"
    fails_once = f"test -e {first} && touch {done} && exit; touch {first}; exit 1"
    commands(
        sbatch="echo 17", scancel=fails_once, scontrol=f"test -e {done} && {CANCELLED} || {RUNNING}"
    )
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "slurm.sh")
    assert done.exists()


TIMED_OUT = (
    "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2"
    "; exit 1"
)


@pytest.mark.parametrize(
    "sbatch", ["exec sleep 30", TIMED_OUT], ids=["sbatch hangs", "the controller hangs"]
)
def test_a_job_that_may_be_queued_is_not_called_refused(
    commands: Callable[..., None], sbatch: str, tmp_path: Path
) -> None:
    commands(sbatch=sbatch)
    with pytest.raises(
        slurm_jobs.Unanswered, match="^Slurm has not answered: the job may be in the queue"
    ) as caught:
        interrupted(tmp_path / "my run" / "slurm.sh")
    assert str(caught.value).endswith("go on with: ckptbench run --resume 'my run'")


def test_the_run_of_a_job_that_may_be_queued_is_kept(
    commands: Callable[..., None], tmp_path: Path
) -> None:
    commands(sbatch=TIMED_OUT, scontrol=RUNNING, scancel="true")
    site = site_file(tmp_path, 'account = "lab"')
    said = ["--summary-above", "8", "--timeout", "60", "--site", str(site)]
    done = ckptbench("run", *SMOKE, *said, "--results", str(tmp_path / "results"))
    assert (done.returncode, "the job may be in the queue" in done.stderr) == (2, True), done.stderr
    run = store.Run(store.find(tmp_path / "results", "latest"))
    assert run.settings == store.Settings(summary_above=8, timeout_s=60.0, site=str(site)), (
        "what the job's resumed run will go by"
    )
    again = ckptbench(
        "run", "--resume", run.name, "--dry-run", "--results", str(tmp_path / "results")
    )
    assert ("#SBATCH --account=lab" in again.stdout, "--timeout 60.0" in again.stdout) == (
        True,
        True,
    ), again.stderr


# The command line


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness.cli", *arguments]


def ckptbench(
    *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    variables = os.environ | (environment or {})
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_dry_run_prints_the_script_and_needs_no_slurm(tmp_path: Path) -> None:
    done = ckptbench(
        "run",
        *SMOKE,
        "--world",
        "4",
        "--nodes",
        "2",
        "--dry-run",
        "--results",
        str(tmp_path / "results"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "#!/bin/bash\n#SBATCH --job-name=ckptbench\n#SBATCH --nodes=2\n"
        "#SBATCH --ntasks-per-node=2\n"
    )
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("option", [["--nodes", "2"], ["--site", "site.toml"], ["--dry-run"]])
def test_options_of_slurm_are_refused_for_another_launcher(
    option: list[str], tmp_path: Path
) -> None:
    done = ckptbench("run", "smoke", "--framework", "raw", *option, "--results", str(tmp_path))
    assert (done.returncode, done.stderr) == (
        2,
        f"ckptbench: {option[0]} needs --launcher slurm\n",
    )


def test_without_slurm_the_message_names_its_commands(tmp_path: Path) -> None:
    done = ckptbench("run", *SMOKE, "--results", str(tmp_path), environment={"PATH": "/nowhere"})
    assert (
        "launcher slurm needs Slurm's commands, "
        "and on the path there is no sbatch, scontrol, scancel" in done.stderr
    )
    assert done.returncode == 2


# A cluster of two nodes


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


def in_cluster(cluster: Cluster, *argv: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | cluster.environment
    return subprocess.run(
        argv, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False
    )


def test_doctor_names_the_partitions(cluster: Cluster) -> None:
    done = ckptbench("doctor", environment=cluster.environment)
    assert "partitions: bench" in " ".join(done.stdout.split())


def test_ranks_that_do_not_share_the_scratch_directory_are_refused(
    short_folder: Path, tmp_path: Path
) -> None:
    """On the second node, another file system lies over the scratch directory."""
    reason = slurm_cluster.missing() or slurm_cluster.no_private_mounts()
    if reason:
        pytest.skip(reason)
    (short_folder / "other").mkdir()
    private = tmp_path / "scratch"
    private.mkdir()
    with slurm_cluster.cluster(short_folder / "other", private) as made:
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
