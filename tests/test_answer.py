"""The answer in three sentences, at the top of the report."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import records
from references import references
from reported import item, measured, store_run

from harness.analysis.answer import answer
from harness.analysis.runs import read_run


def test_the_answer_is_three_sentences_whatever_was_measured() -> None:
    for run in references():
        said = answer([run.rows])
        assert len(said) == 3
        assert all(re.fullmatch(r"[A-Z0-9].*\.", sentence) for sentence in said), said


def test_the_answer_of_several_runs_is_of_the_fullest_and_of_the_newest_of_these(
    tmp_path: Path,
) -> None:
    direct, buffered = item("direct"), item("buffered")
    full = read_run(
        store_run(
            tmp_path,
            [direct, buffered],
            [*measured(direct.case.id, 0.03), *measured(buffered.case.id, 0.05)],
        )
    )
    part = read_run(store_run(tmp_path, [buffered], measured(buffered.case.id, 0.02)))
    again = read_run(
        store_run(
            tmp_path,
            [direct, buffered],
            [*measured(direct.case.id, 0.04), *measured(buffered.case.id, 0.05)],
        )
    )
    assert answer([full.rows, part.rows])[0].endswith(
        "is durable soonest with direct in raw (30.0 ms)."
    )
    assert answer([full.rows, again.rows, part.rows])[0].endswith(
        "is durable soonest with direct in raw (40.0 ms)."
    )
    assert answer([again.rows, full.rows])[0].endswith(
        "is durable soonest with direct in raw (30.0 ms)."
    )


def test_a_method_that_has_failed_since_is_no_longer_the_answer(tmp_path: Path) -> None:
    direct, buffered = item("direct"), item("buffered")
    old = read_run(
        store_run(
            tmp_path,
            [direct, buffered],
            [*measured(direct.case.id, 0.01), *measured(buffered.case.id, 0.05)],
        )
    )
    new = read_run(
        store_run(
            tmp_path,
            [direct, buffered],
            [records.failure(direct.case.id), *measured(buffered.case.id, 0.05)],
        )
    )
    assert answer([old.rows, new.rows])[0].endswith(
        "is durable soonest with buffered in raw (50.0 ms)."
    )


def test_the_floor_is_the_answer_only_where_there_is_no_framework(tmp_path: Path) -> None:
    floor = replace(item("direct", framework="plain"), floor=True)
    framework = item("buffered", framework="jax")
    found = [*measured(floor.case.id, 0.01), *measured(framework.case.id, 0.02)]
    both = read_run(store_run(tmp_path, [floor, framework], found))
    assert answer([both.rows])[0].endswith("is durable soonest with buffered in jax (20.0 ms).")
    alone = read_run(store_run(tmp_path, [floor], found[: len(found) // 2]))
    assert answer([alone.rows])[0].endswith("is durable soonest with direct in plain (10.0 ms).")


def test_to_save_less_is_no_way_to_save_fast(tmp_path: Path) -> None:
    part, whole = item("direct", covers="weights"), item("buffered")
    run = read_run(
        store_run(
            tmp_path, [part, whole], [*measured(part.case.id, 0.01), *measured(whole.case.id, 0.02)]
        )
    )
    speed, training, _ = answer([run.rows])
    assert speed.endswith(
        "a verified full checkpoint is durable soonest with buffered in raw (20.0 ms)."
    )
    assert training == "A checkpoint stops training least with buffered in raw (10.0 ms)."


def test_the_answer_tells_what_a_power_loss_spares_and_what_failed(tmp_path: Path) -> None:
    kept, lost, failed = item("direct"), item("buffered"), item("npz")
    found = [
        *measured(kept.case.id, 0.01),
        *measured(lost.case.id, 0.02),
        records.failure(failed.case.id),
    ]
    found = [record for record in found if record.kind != "syscalls"]
    found += [
        records.syscalls(kept.case.id),
        records.syscalls(lost.case.id, durability="never", data_durability="never"),
    ]
    trust = answer([read_run(store_run(tmp_path, [kept, lost, failed], found)).rows])[2]
    assert trust.startswith("2 of 3 methods gave every byte back (failed: npz in raw); ")
    assert "only with direct in raw is a checkpoint certain to outlive a power loss" in trust


def test_a_row_in_doubt_is_not_certain_to_outlive_a_power_loss(tmp_path: Path) -> None:
    doubted, lost = item("direct"), item("buffered")
    found = [*measured(doubted.case.id, 0.01), *measured(lost.case.id, 0.02)]
    found = [record for record in found if record.kind != "syscalls"]
    found += [
        records.syscalls(doubted.case.id),
        records.syscalls(lost.case.id, durability="never", data_durability="never"),
        records.finding(doubted.case.id, guard="patched-fsync", weight="mark"),
    ]
    trust = answer([read_run(store_run(tmp_path, [doubted, lost], found)).rows])[2]
    assert "power loss" not in trust


def test_a_row_in_doubt_is_neither_the_answer_nor_counted(tmp_path: Path) -> None:
    doubted, clean, failed = item("direct"), item("buffered"), item("npz")
    found = [
        *measured(doubted.case.id, 0.01),
        *measured(clean.case.id, 0.02),
        records.finding(doubted.case.id, guard="patched-flush", weight="mark"),
        records.failure(failed.case.id),
    ]
    run = read_run(store_run(tmp_path, [doubted, clean, failed], found))
    speed, training, trust = answer([run.rows])
    assert speed.endswith("is durable soonest with buffered in raw (20.0 ms).")
    assert training == "A checkpoint stops training least with buffered in raw (10.0 ms)."
    assert trust.startswith("1 of 2 methods gave every byte back (failed: npz in raw)")


def test_an_experiment_counts_no_row_in_doubt() -> None:
    run = references("-reshard-")[0]
    rows = [replace(row, marks=[]) for row in run.rows if row.status == "ok"]
    assert f" of {len(rows)} checkpoints are whole" in answer([rows])[2]
    rows[0].marks.append("it is in doubt")
    assert f" of {len(rows) - 1} checkpoints are whole" in answer([rows])[2]


def test_a_run_of_rows_in_doubt_alone_has_no_answer(tmp_path: Path) -> None:
    doubted = item("direct")
    mark = records.finding(doubted.case.id, guard="patched-flush", weight="mark")
    run = read_run(store_run(tmp_path, [doubted], [*measured(doubted.case.id, 0.01), mark]))
    assert answer([run.rows]) == [
        "No run here shows how fast a checkpoint is.",
        "No run here shows what training loses.",
        "No run here shows whether a checkpoint can be trusted.",
    ]
