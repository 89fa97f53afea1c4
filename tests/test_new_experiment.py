"""A new experiment is one folder and one suite file, and a new column is three edits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from copied_tree import Tree, copy_tree

FILES = {
    "__init__.py": '''
"""The time of a listing: how long a framework takes to name its leaves."""

from harness.wire.experiment import Experiment, Stage, SuiteKey

EXPERIMENT = Experiment(
    name="listing",
    question="How long does it take to list the leaves?",
    place=80,
    stages=(Stage("list_leaves", "listings"),),
    methods=False,
    suite_keys={"times": SuiteKey("how often the leaves are listed")},
)
''',
    "records.py": '''
"""The record of one listing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.wire.records import StageRecord


@dataclass(frozen=True)
class ListingRecord(StageRecord):
    """The nanoseconds of several listings."""

    kind: Literal["listing"]
    case: str
    process: int
    rank: int
    listing_ns: int
    leaves: int

    @property
    def stage(self) -> str:
        """Return the name of the stage that the record completes."""
        return "list_leaves"


RECORDS = (ListingRecord,)
''',
    "worker.py": '''
"""Lists the leaves, and times it."""

from __future__ import annotations

from harness.experiments.listing.records import ListingRecord
from harness.wire.case import Task
from harness.worker.bench import Bench, Entries
from harness.worker.clock import now_ns


def list_leaves(bench: Bench, entries: Entries) -> None:
    """List the leaves as often as each case asks for."""

    def measure(task: Task) -> None:
        begin = now_ns()
        for _ in range(task.case.settings["times"]):
            names = [leaf.name for leaf in bench.framework.leaves(bench.state)]
        bench.output.write(
            ListingRecord(
                kind="listing",
                case=task.case.id,
                process=bench.job.process,
                rank=bench.world.rank,
                listing_ns=now_ns() - begin,
                leaves=len(names),
            )
        )

    bench.attempt(entries, measure)


STAGES = {"list_leaves": list_leaves}
''',
    "rows.py": '''
"""The rows of experiment `listing`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from harness.analysis.columns import column
from harness.analysis.compared import Flag
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, identity
from harness.experiments.listing.records import ListingRecord


@dataclass(kw_only=True)
class ListingRow(Row):
    """One framework's listing."""

    first_heading: ClassVar[str] = "framework"

    times: int | None = column("how often the leaves were listed", heading="times")
    leaves: int | None = column("how many leaves the state has", heading="leaves")
    listed: bool = column(
        "whether any leaf was listed", default=False, heading="listed", compared=Flag("listed")
    )

    def title(self, several_frameworks: bool) -> str:
        """Return the text of a table's first column."""
        return self.framework


def rows(items: Sequence[Wanted], records: RunRecords) -> list[ListingRow]:
    """Derive the row of every case."""
    built = []
    for item in items:
        row = ListingRow(**identity(item), times=item.case.settings["times"])
        built.append(row)
        if row.fail(records.failures(item.case.id)):
            continue
        record = records.last(ListingRecord, item.case.id)
        if record is None:
            row.interrupt()
            continue
        row.leaves = record.leaves
        row.listed = record.leaves > 0
    return built
''',
}
SUITE = """
description = "how long listing takes"

[[sweep]]
experiment = "listing"
workload = "resnet50"
preset = "small"
precision = "float32"
times = [3, 5]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return copy_tree(tmp_path / "tree")


def add_experiment(tree: Tree) -> None:
    folder = tree.root / "harness" / "experiments" / "listing"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text.lstrip("\n"))
    (tree.root / "workloads" / "suites" / "listing.toml").write_text(SUITE)


def measure(tree: Tree, scratch: Path, suite: str, *options: str) -> list[dict]:
    python = f"raw={sys.executable}"
    tree.ckptbench(
        *("run", suite, "--framework", "raw", "--python", python, "--dir", str(scratch)), *options
    )
    rows: list[dict] = json.loads(tree.ckptbench("show", "--format", "json"))
    return rows


def test_an_experiment_is_one_folder_and_one_suite_file(tree: Tree, scratch: Path) -> None:
    add_experiment(tree)
    rows = measure(tree, scratch, "listing")
    assert [(row["experiment"], row["times"], row["status"]) for row in rows] == [
        ("listing", 3, "ok"),
        ("listing", 5, "ok"),
    ]
    assert rows[0]["leaves"] == rows[1]["leaves"] > 0
    shown = tree.ckptbench("show")
    assert "listing: resnet50 small on cpu" in shown
    tree.ckptbench("report", "--out", str(tree.root / "page"))
    page = (tree.root / "page" / "report.html").read_text()
    assert "How long does it take to list the leaves?" in page
    assert "how often the leaves were listed" in page
    compared = json.loads(tree.ckptbench("compare", "latest", "latest", "--format", "json"))
    assert [row["name"] for row in compared["rows"]] == ["raw times=3", "raw times=5"]
    assert not compared["regressed"]


def test_a_sweep_without_the_experiments_own_key_gets_one_sentence(tree: Tree) -> None:
    add_experiment(tree)
    suite = tree.root / "workloads" / "suites" / "listing.toml"
    suite.write_text(SUITE.replace("times = [3, 5]\n", ""))
    done = tree.python("-m", "harness.cli", "run", "listing", "--framework", "raw")
    assert done.returncode == 2
    words = " ".join(done.stderr.split())
    assert "experiment 'listing' needs 'times': how often the leaves are listed" in words


def test_a_column_is_three_edits(tree: Tree, scratch: Path) -> None:
    """Measure it in worker.py, record it in records.py, declare it in rows.py."""
    cost = tree.root / "harness" / "experiments" / "cost"
    worker, records, rows = cost / "worker.py", cost / "records.py", cost / "rows.py"
    text = worker.read_text()
    assert text.count("            memory_copy_ns=") == 1
    worker.write_text(
        text.replace(
            "            memory_copy_ns=", "            threads=7,\n            memory_copy_ns="
        )
    )
    text = records.read_text()
    assert text.count("    memory_copy_ns: int = 0\n") == 1
    records.write_text(
        text.replace(
            "    memory_copy_ns: int = 0\n", "    memory_copy_ns: int = 0\n    threads: int = 0\n"
        )
    )
    text = rows.read_text()
    declaration = (
        "    threads: int | None = column(\n"
        '        "threads after a save", heading="threads",\n'
        "        of=SAVES, over_ranks=largest, summary=most,\n"
        '        compared=Cost("threads", "threads", lambda samples: samples["threads"])\n'
        "    )\n"
    )
    before = "    files: int | None = column("
    assert text.count(before) == 1
    imported = "from harness.analysis.compared import "
    assert text.count(imported) == 1
    text = text.replace(imported, f"{imported}Cost, ")
    rows.write_text(text.replace(before, declaration + before))

    [row] = measure(tree, scratch, "smoke", "--workload", "resnet50", "--method", "buffered")
    assert row["threads"] == 7
    assert "threads" in tree.ckptbench("show").split()
    assert "threads" in tree.ckptbench("show", "--format", "csv").splitlines()[0].split(",")
    tree.ckptbench("report", "--out", str(tree.root / "page"))
    assert "threads after a save" in (tree.root / "page" / "report.html").read_text()
    compared = json.loads(tree.ckptbench("compare", "latest", "latest", "--format", "json"))
    [metrics] = [row["figures"] for row in compared["rows"]]
    [threads] = [metric for metric in metrics if metric["figure"] == "threads"]
    assert (threads["base"], threads["head"], threads["ratio"]) == (7, 7, 1)
    reference = next((ROOT / "results" / "reference").glob("*/*-bench-raw"))
    older = json.loads(tree.ckptbench("show", str(reference), "--format", "json"))
    assert {found["threads"] for found in older} <= {0, None}, "an older record has the default"
