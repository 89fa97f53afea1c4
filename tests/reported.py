"""Stored runs for the tests of the report hold what a page must not stumble over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import records
from conftest import planned

from harness.driver import machine
from harness.run import store
from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase
from harness.wire.records import Record, to_line

HOSTILE = (
    "<script>window.harmed = true</script></script>"
    """<img src=x onerror="window.harmed = true"> "quoted" 'and' {{ 7 * 7 }} &amp;"""
    "$a_{ $ -->"
)
LAST_WORDS = f"{HOSTILE} \x1b[31mred\x1b[0m \x07"  # a terminal's colours, and what XML cannot hold
# whose order as text is not that as numbers
SPEEDS_S = {"direct": 0.9, "buffered": 0.08, "npz": 10.0, "npz-raw": 0.0099}


def item(method: str, **changes: object) -> PlannedCase:
    """A planned case under any name, also one that no catalog has."""
    return replace(made := planned(), case=replace(made.case, method=method, **changes))


def measured(case: str, seconds: float) -> list[Record]:
    """A good case leaves two saves and loads, its state, its calls and its verification."""
    tenth = int(seconds * 1e9 / 4)
    phases = {"save_ns": tenth, "staged_ns": tenth, "finished_ns": tenth, "sync_ns": tenth}
    saves = [records.save(case, index=index, **phases) for index in range(2)]
    loads = [records.load(case, index=index) for index in range(2)]
    return [records.state(case), records.syscalls(case), *saves, *loads, records.verified(case)]


def store_run(
    results: Path,
    plan: Sequence[PlannedCase],
    found: Sequence[Record],
    manifest: Manifest | None = None,
) -> Path:
    """Store a run of the suite `bench`, and return its folder."""
    results.mkdir(parents=True, exist_ok=True)
    here = manifest or machine.capture(results)
    run = store.create(
        results, "bench", ["ckptbench", "run", "bench", "--framework", "raw"], plan, here
    )
    run.close()
    (run.folder / store.RECORDS).write_text("".join(to_line(record) for record in found))
    return run.folder


def hostile_run(results: Path) -> Path:
    """Four good rows, one failed row with markup in name and reason, and a damaged line."""
    good = [item(method) for method in SPEEDS_S] + [item("buffered", workload="candle-mlp")]
    bad = item(f"evil{HOSTILE}", framework="jax")
    found = [record for it in good for record in measured(it.case.id, SPEEDS_S[it.case.method])]
    folder = store_run(
        results, [*good, bad], [*found, records.failure(bad.case.id, reason=LAST_WORDS)]
    )
    with (folder / store.RECORDS).open("a") as file:
        file.write("<b>torn</b>\n")
    return folder
