"""A side is another checkout of this project, maybe of another version."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ab_commands import SUITE, Command, ckptbench, edit
from conftest import ROOT
from conftest import planned as planned_item

from harness.analysis.runs import read_run
from harness.driver import arms, border, launch, suite
from harness.run import store
from harness.run.errors import IncomparableError, UsageError
from harness.run.plan import Selection
from harness.wire.case import Job, Task, job_from_json
from harness.wire.records import SCHEMA

pytest_plugins = ["shared_fixtures"]


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


def test_a_checkout_that_does_not_answer_is_refused(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "harness" / "wire" / "case.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(border, "_PROBE_TIMEOUT_S", 1)
    with pytest.raises(IncomparableError, match="did not say within 1 s which records it writes"):
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


def test_each_side_reports_the_packages_that_its_own_checkout_names(
    checkout: Path, tmp_path: Path
) -> None:
    adapter = checkout / "adapters" / "raw" / "adapter.toml"
    edit(adapter, ('packages = ["numpy"', 'packages = ["an-engine", "numpy"'))
    sides = {"a": arms.describe([arms.HERE]), "b": arms.describe([str(checkout)])}
    opened = arms.opened(sides, ["raw"], tmp_path)
    added = set(opened["b"].packages["raw"]) - set(opened["a"].packages["raw"])
    assert added == {"an-engine"}
