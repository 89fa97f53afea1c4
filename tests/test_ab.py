"""Runs with two arms: what an arm may be, which checkouts can be driven, and what is found."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from conftest import planned as planned_item
from records import failure

from harness.analysis import comparison
from harness.analysis.runs import read_run
from harness.cli import compare
from harness.driver import arms, border, catalog, launch, pins, suite
from harness.driver.environments import Environments
from harness.driver.units import group
from harness.experiments.cost.records import SaveRecord
from harness.run import store
from harness.run.errors import IncomparableError, UsageError
from harness.run.plan import Selection
from harness.run.stored import folders
from harness.wire.case import Job, Task, job_from_json
from harness.wire.records import SCHEMA

CKPTBENCH = [sys.executable, "-c", "from harness.cli import main; main()"]
SUITE = """
description = "two processes on a small state"
[[sweep]]
workload = "resnet50"
preset = "small"
precision = "float32"
method = "double"
samples = 2
warmups = 0
repeats = 0
processes = 2
"""


def ckptbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CKPTBENCH, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


# The description of an arm


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["torch==2.12.*"], {"pins": {"torch": "torch==2.12.*"}}),
        (
            ["Typing_Extensions==4.16.0", "numpy==2.4.0"],
            {"pins": {"typing-extensions": "Typing_Extensions==4.16.0", "numpy": "numpy==2.4.0"}},
        ),
        (["crc=false"], {"options": {"crc": False}}),
        ([sys.executable], {"python": sys.executable}),
        (["."], {}),
    ],
)
def test_a_side_is_what_it_was_asked_to_be(asked: list[str], expected: dict) -> None:
    assert arms.describe(asked) == arms.Described(tuple(asked), **expected)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["torch>=2.12"], "a pin must be NAME==VERSION or NAME==VERSION.*, not 'torch>=2.12'"),
        (["torch==2.*.1"], "a pin must be NAME==VERSION, not 'torch==2.*.1'"),
        (["no-such-thing"], "'no-such-thing' is none of NAME==VERSION, KEY=VALUE"),
        (["tests"], "tests is no checkout of this project"),
        (
            [sys.executable, "numpy==2.4.0"],
            "takes no pins, because pins are for an environment that is made here",
        ),
        ([sys.executable, sys.executable], "an arm has one interpreter"),
    ],
)
def test_a_side_that_cannot_be_gets_one_sentence(
    asked: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UsageError) as error:
        arms.describe(asked)
    assert message in str(error.value)


def test_a_pin_that_no_framework_requires_names_the_nearest() -> None:
    with pytest.raises(
        UsageError, match="unknown package 'torhc' among the requirements; did you mean 'torch'"
    ):
        arms.require_pins({"a": arms.describe(["torhc==2.0"])}, ["pytorch"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name at least one side"),
        (["--a", "torhc==2.12.*"], "did you mean 'torch'?"),
        (["--a", "numpy==2.4.0"], "name a --framework: "),
        (["--b", "slowdwn=2.0", "--framework", "raw", "--method", "double"], "slowdwn"),
        (["--b", "torch==2.12.*", "--framework", "raw"], "unknown package 'torch'"),
        (
            ["--b", "slowdown=2.0", "--framework", "raw", "--budget", "10m"],
            "so give --precision too",
        ),
        (
            ["--b", "slowdown=2.0", "--framework", "raw", "--mpirun", "/no/mpirun"],
            "/no/mpirun does not look like Open MPI's mpirun",
        ),
        (
            ["--b", "slowdown=2.0", "--framework", "raw", "--precision", "0.1", "--budget", "soon"],
            "--budget must be a time such as 90s, 10m",
        ),
    ],
)
def test_wrong_usage_gets_one_sentence_and_exit_2(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = ckptbench("ab", *arguments, "--results", str(tmp_path))
    assert (done.returncode, message in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert not list(tmp_path.iterdir())


# Pins

REQUIREMENTS = (
    "# all of it\nnumpy==2.4.0  # arrays\ntorch==2.13.0\nTyping_extensions==4.16.0\n--no-deps\n"
)


def test_a_pin_replaces_its_own_line_alone() -> None:
    changed = pins.replaced(
        REQUIREMENTS, dict([pins.parse("torch==2.12.*"), pins.parse("typing-extensions==4.15.0")])
    )
    assert changed.splitlines() == [
        "# all of it",
        "numpy==2.4.0  # arrays",
        "torch==2.12.*",
        "typing-extensions==4.15.0",
        "--no-deps",
    ]
    assert pins.names(REQUIREMENTS) == {"numpy", "torch", "typing-extensions"}


def test_other_pins_have_an_environment_of_their_own_beside_the_usual_one(tmp_path: Path) -> None:
    usual = Environments(tmp_path, catalog.ADAPTERS, {})
    other = Environments(
        tmp_path, catalog.ADAPTERS, {}, dict([pins.parse("numpy==2.3.*")]), usual=catalog.ADAPTERS
    )
    same = Environments(
        tmp_path, catalog.ADAPTERS, {}, dict([pins.parse("numpy==2.4.6")]), usual=catalog.ADAPTERS
    )
    folders = [
        next(e.interpreter for e in made.listing() if e.framework == "raw").parents[1].name
        for made in (usual, other, same)
    ]
    assert (folders[0], folders[2]) == ("raw", "raw")
    assert folders[1].startswith("raw-")
    assert "numpy==2.3.*" in other.requirements("raw")


# The plan of a run with two arms


def planned(tmp_path: Path, text: str = SUITE) -> list:
    (tmp_path / "quick.toml").write_text(text)
    described = {"a": arms.describe(["."]), "b": arms.describe(["slowdown=3.0"])}
    return arms.plan(described, ["raw"], suite.load("quick", tmp_path))


def test_both_sides_have_the_same_rows_under_the_same_name(tmp_path: Path) -> None:
    first, second = planned(tmp_path)
    assert (first.case.arm, second.case.arm) == ("a", "b")
    assert first.case.method == second.case.method == "double"
    assert (first.case.options["slowdown"], second.case.options["slowdown"]) == (1.0, 3.0)
    assert first.case.id != second.case.id


def test_sides_share_no_process(tmp_path: Path) -> None:
    assert [unit.case.arm for unit in group(planned(tmp_path))] == ["a", "b"]


def test_the_sides_processes_of_the_same_cases_follow_one_another() -> None:
    described = {"a": arms.describe(["."]), "b": arms.describe(["."])}
    units = group(arms.plan(described, ["raw", "pytorch"], suite.load("gate")))
    pairs = list(zip(units[::2], units[1::2], strict=True))
    assert len(pairs) > 3
    for first, second in pairs:
        assert (first.case.arm, second.case.arm) == ("a", "b")
        assert [replace(item.case, arm="") for item in first.items] == [
            replace(item.case, arm="") for item in second.items
        ]


# Runs


Command = Callable[..., list[str]]


@pytest.fixture
def command(tmp_path: Path, scratch: Path) -> Command:
    """Return a function that makes command lines of ckptbench with suites of the test's own."""
    suites, where = tmp_path / "suites", scratch / tmp_path.name
    suites.mkdir()
    (suites / "quick.toml").write_text(SUITE)
    (suites / "long.toml").write_text(SUITE.replace("processes = 2", "processes = 6"))
    where.mkdir()
    lines = [
        "from harness.driver import suite",
        "import pathlib, sys",
        "suite.load.__defaults__ = (pathlib.Path(sys.argv.pop(1)),)",
        "from harness.cli import main",
        "main()",
    ]
    driver = [sys.executable, "-c", "\n".join(lines), str(suites)]
    return lambda *words: [
        *driver,
        *words,
        "--framework",
        "raw",
        "--dir",
        str(where),
        "--results",
        str(tmp_path / "results"),
    ]


@pytest.fixture
def ab(command: Command) -> Command:
    """Return a function that makes command lines of `ab`. Both arms have this interpreter."""
    return lambda *words: command("ab", *words, "--a", sys.executable, "--b", sys.executable)


@pytest.mark.slow
def test_the_first_run_is_the_baseline_and_the_next_is_compared_with_it(
    command: Command, tmp_path: Path
) -> None:
    argv = command("regress", "--suite", "quick", "--python", f"raw={sys.executable}")
    first = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (first.returncode, "is the baseline now" in first.stdout) == (0, True), first.stderr
    (baseline,) = folders(tmp_path / "results" / "baseline")
    assert baseline.parents[0].name == "quick-raw"
    assert baseline.parents[1].name == store.Run(baseline).manifest.machine
    records = baseline / "records.jsonl"
    records.write_text(re.sub(r'"file_bytes":(\d+)\d', r'"file_bytes":\1', records.read_text()))
    second = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (second.returncode, "files had" in second.stdout) == (1, True), second.stderr
    assert f"against {baseline.name}" in " ".join(second.stdout.split())
    calibrations = [
        record
        for run in folders(tmp_path)
        for record in store.Run(run).records
        if record.kind == "calibration"
    ]
    assert len(calibrations) == 2, "one of each run"
    assert len(set(calibrations)) == 1, "which is the baseline's"
    own_suite = tmp_path / "suites" / "quick.toml"
    own_suite.write_text(SUITE.replace('preset = "small"', 'preset = "light"'))
    changed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (changed.returncode, "has no row in common with today's suite" in changed.stderr) == (
        3,
        True,
    ), changed.stderr
    own_suite.write_text(SUITE)
    machine = (baseline / "manifest.json").read_text()
    (baseline / "manifest.json").write_text(machine.replace('"kernel": "', '"kernel": "an older '))
    elsewhere = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (
        elsewhere.returncode,
        " (kernel): remove" in " ".join(elsewhere.stderr.split()),
    ) == (3, True)
    (baseline / "manifest.json").write_text(machine)
    whole = records.read_text()
    lines = [line for line in whole.splitlines() if '"kind":"verified"' not in line]
    records.write_text("\n".join(lines) + "\n")
    third = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (third.returncode, "the baseline was interrupted" in third.stderr) == (3, True)
    records.write_text(whole)
    ended_later = store.Run(baseline)
    ended_later.append(failure(ended_later.plan[0].case.id))
    ended_later.close()
    fourth = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (fourth.returncode, "a row of the baseline" in fourth.stderr) == (3, True), fourth.stderr
    assert len(folders(tmp_path / "results")) == 2, (
        "nothing may be measured before the baseline is known to be good"
    )


@pytest.mark.parametrize(("failed", "place"), [(0, "baseline"), (1, "results")])
def test_a_first_run_in_which_a_row_failed_is_no_baseline(
    tmp_path: Path, failed: int, place: str
) -> None:
    baseline, results = tmp_path / "baseline", tmp_path / "results"
    results.mkdir()
    run = store.create(baseline, "quick", ["pytest"], planned(tmp_path), None)
    compare._settle_first(run, baseline, results, failed)
    assert [found.parent.name for found in folders(tmp_path)] == [place]


@pytest.mark.patient
@pytest.mark.slow
def test_a_slowdown_is_found_and_the_sides_alternate(ab: Command, tmp_path: Path) -> None:
    # A save of a millisecond takes three seconds more. Six pairs show that also while other tests
    # flush to the same disk.
    out = tmp_path / "out"
    done = subprocess.run(
        ab("long", "--b", "delay_s=3.0", "--out", str(out)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads((out / "comparison.json").read_text())
    durable = next(
        figure for figure in found["rows"][0]["figures"] if figure["figure"] == "durable"
    )
    assert (durable["verdict"], durable["ratio"] > 3) == ("slower", True)
    run = store.Run(store.find(tmp_path / "results", "latest"))
    jobs = [
        record.job for record in run.records if record.kind == "worker" and "save" in record.job
    ]
    assert [job[-2:] for job in jobs] == [
        "0a",
        "0b",
        "1b",
        "1a",
        "2a",
        "2b",
        "3b",
        "3a",
        "4a",
        "4b",
        "5b",
        "5a",
    ]
    assert [run.header["arms"][arm]["options"] for arm in arms.ARMS] == [{}, {"delay_s": 3.0}]
    shown = ckptbench("show", run.name, "--results", str(tmp_path / "results"))
    assert [text for text in ("arm a", "arm b", "delay_s=3.0") if text not in shown.stdout] == []


@pytest.mark.slow
def test_the_ranks_of_both_sides_are_started_by_the_mpirun_that_is_named(
    ab: Command, tmp_path: Path, own_mpirun: Path
) -> None:
    argv = ab(
        "quick", "--method", "buffered", "--b", ".", "--world", "2", "--mpirun", str(own_mpirun)
    )
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    run = store.Run(store.find(tmp_path / "results", "latest"))
    jobs = {record.job for record in run.records if record.kind == "worker"}
    assert {job[-1] for job in jobs} == set("ab")
    assert len(own_mpirun.with_name("started").read_text().split()) == len(jobs)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_same_sides(ab: Command, tmp_path: Path) -> None:
    driver = subprocess.Popen(
        ab("quick", "--b", "slowdown=2.0"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(
        "1b" in log.name for log in tmp_path.glob("results/*/logs/*")
    ):
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    assert "run --resume" in driver.communicate(timeout=30)[1]
    resumed = ckptbench("run", "--resume", "latest", "--results", str(tmp_path / "results"))
    assert resumed.returncode == 0, resumed.stderr
    read = read_run(store.find(tmp_path / "results", "latest"))
    assert [row.status for row in read.rows] == ["ok", "ok"]
    assert len(read.records.all(SaveRecord)) == 8
    assert comparison.of_arms(read).paired


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the folders that a worker needs."""
    folder = tmp_path / "checkout"
    for name in ("harness", "adapters", "workloads"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.slow
def test_another_checkouts_worker_runs_wherever_the_driver_is(
    ab: Command, checkout: Path, tmp_path: Path
) -> None:
    double = checkout / "adapters" / "raw" / "double.py"
    edit(double, ("_class_of(fault)(place", '_class_of("truncated")(place'))
    done = subprocess.run(
        ab("quick", "--b", str(checkout), "--format", "json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    row = json.loads(done.stdout)["rows"][0]
    assert row["faults"][0].startswith("failed in load: EOFError: the file ends at byte")
    run = store.Run(store.find(tmp_path / "results", "latest"))
    assert run.header["arms"]["b"]["checkout"] == str(checkout)
    assert run.selection == Selection.of(["raw"])


def edit(file: Path, *replacements: tuple[str, str]) -> None:
    """Replace texts in a file, each of which must be there."""
    text = file.read_text()
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    file.write_text(text)


# The fields of a version that reads every value strictly.
STRICT = ("in values.items() if name in names}", "in values.items()}")
LACKS = ("    settings: dict[str, Any] = field(default_factory=dict)\n", "")
ADDS = ("    first_index: int = 0\n", "    first_index: int = 0\n    pace: float = 1.0\n")


@pytest.mark.slow
def test_a_checkout_that_lacks_a_field_and_has_another_runs(
    ab: Command, checkout: Path, tmp_path: Path
) -> None:
    edit(checkout / "harness" / "wire" / "case.py", STRICT, LACKS, ADDS)
    done = subprocess.run(
        ab("quick", "--b", str(checkout)), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    read = read_run(store.find(tmp_path / "results", "latest"))
    assert [row.status for row in read.rows] == ["ok", "ok"]


def test_a_field_that_the_other_side_does_not_know_is_left_out(checkout: Path) -> None:
    edit(checkout / "harness" / "wire" / "case.py", LACKS)
    described = {"a": arms.describe(["."]), "b": arms.describe([str(checkout)])}
    opened = arms.opened(described, ["raw"], checkout / ".venvs")
    case = planned_item().case
    job = Job("001-save-0", "save", 0, "/scratch", tasks=(Task(case, 1, 0, 0),))
    written = {name: json.loads(arm.job_to_json(job)) for name, arm in opened.items()}
    keys = {name: set(values["tasks"][0]["case"]) for name, values in written.items()}
    assert keys["a"] - keys["b"] == {"settings"}
    assert job_from_json(opened["b"].job_to_json(job)) == job


def test_a_field_that_is_set_and_unknown_to_the_other_side_is_refused(
    checkout: Path, tmp_path: Path
) -> None:
    edit(checkout / "harness" / "wire" / "case.py", ("    every: int = 0", "    # "))
    text = SUITE.replace('method = "double"', 'method = "double"\nexperiment = "train"\nevery = 3')
    (tmp_path / "quick.toml").write_text(text)
    described = {"b": arms.describe([str(checkout)])}
    message = (
        f"the worker of {checkout} cannot be driven from here: "
        "it knows no Case.every, which this run sets to 3"
    )
    with pytest.raises(IncomparableError, match=f"^{re.escape(message)}$"):
        arms.plan(described, ["raw"], suite.load("quick", tmp_path))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([("    arm: str =", "    side: str =")], "its Case differs from that of .* in arm, side$"),
        ([("    covers: str ", "    # ")], "its Case differs from that of .* in covers$"),
        ([("    warmups: int\n", "    warmups: int\n    pace: float\n")], "its Task .* in pace$"),
        ([("    samples: int ", "    wanted: int ")], "its Task differs .* in samples, wanted$"),
    ],
    ids=["renamed", "removed", "added without a default", "renamed without a default"],
)
def test_a_checkout_whose_fields_were_renamed_or_removed_is_refused(
    checkout: Path, changes: list[tuple[str, str]], reason: str
) -> None:
    edit(checkout / "harness" / "wire" / "case.py", *changes)
    with pytest.raises(IncomparableError, match=reason):
        arms.describe([str(checkout)])


def test_a_checkout_with_another_schema_is_not_comparable(checkout: Path, tmp_path: Path) -> None:
    edit(checkout / "harness" / "wire" / "records.py", (f"SCHEMA = {SCHEMA}\n", "SCHEMA = 1\n"))
    done = ckptbench("ab", "--b", str(checkout), "--framework", "raw", "--results", str(tmp_path))
    reason = f"its records have schema 1, and those of this checkout {SCHEMA}"
    assert (done.returncode, reason in done.stderr) == (3, True), done.stderr


def test_a_checkout_that_does_not_say_what_it_reads_is_refused(checkout: Path) -> None:
    (checkout / "harness" / "wire" / "case.py").write_text("this is no Python")
    message = "does not say which records it writes: SyntaxError"
    with pytest.raises(IncomparableError, match=message):
        arms.describe([str(checkout)])


def test_a_checkout_with_the_first_layout_is_understood(checkout: Path) -> None:
    wire = checkout / "harness" / "wire"
    edit(wire / "case.py", LACKS)
    (wire / "case.py").rename(checkout / "harness" / "case.py")
    (wire / "records.py").rename(checkout / "harness" / "record.py")
    shutil.rmtree(wire)
    assert arms.describe([str(checkout)]).checkout == str(checkout)
    assert border.unknown_fields(checkout)["Case"] == {"settings"}


def test_a_side_that_lacks_a_framework_is_no_regression_of_the_one_that_adds_it(
    checkout: Path,
) -> None:
    described = {"a": arms.describe([str(checkout)]), "b": arms.describe(["."])}
    arms.require_pins(described, ["raw"])
    shutil.rmtree(checkout / "adapters" / "raw")
    with pytest.raises(
        IncomparableError, match=f"{checkout} has no framework raw, so there is nothing to compare"
    ):
        arms.require_pins(described, ["raw"])


def test_declarations_that_only_one_side_can_read_are_no_regression(
    checkout: Path, tmp_path: Path
) -> None:
    declaration = checkout / "adapters" / "chainer" / "adapter.toml"
    declaration.write_text(declaration.read_text().replace("speed = ", "pace = "))
    (tmp_path / "quick.toml").write_text(SUITE)
    described = {"a": arms.describe([str(checkout)]), "b": arms.describe(["."])}
    with pytest.raises(
        IncomparableError, match=f"{checkout} cannot be read from here: .*unknown key 'pace'"
    ):
        arms.plan(described, ["raw"], suite.load("quick", tmp_path))


@pytest.mark.parametrize("words", [["ab", "--b", "slowdown=2.0"], ["regress"]])
def test_a_shell_beside_the_nodes_of_its_job_measures_nothing(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    done = ckptbench(*words, "--framework", "raw")
    assert (done.returncode, "is on none of its nodes" in done.stderr) == (2, True), done.stderr


def test_a_run_does_not_go_on_with_a_checkout_that_moved_on(checkout: Path) -> None:
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    described = {"b": arms.describe([str(checkout)])}
    assert arms.opened(described, ["raw"], checkout / ".venvs")["b"].checkout == checkout
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "two"], check=True)
    with pytest.raises(UsageError, match="was at commit"):
        arms.opened(described, ["raw"], checkout / ".venvs")


def test_the_worker_is_looked_for_in_its_checkout_first(checkout: Path, tmp_path: Path) -> None:
    variables = launch.environment(tmp_path, root=checkout)
    code = "import harness.worker; print(harness.worker.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(checkout)
