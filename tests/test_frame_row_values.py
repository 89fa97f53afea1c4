"""Rows without numbers, and the values of those that have some."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
import records
from derived_rows import MS, ONE, TWO, case, measured_to_the_end, row, saves_of, value

from harness.wire.records import SCHEMA, FileEntry, Record

# Rows without numbers


@pytest.mark.parametrize("status", ["failed", "unsupported", "skipped"])
def test_a_failure_hides_every_number(status: str) -> None:
    found = row(
        ONE,
        [
            *measured_to_the_end(),
            records.failure(ONE.id, status=status, phase="verify", reason="wrong bytes"),
        ],
    )
    assert (found.status, found.phase, found.reason) == (status, "verify", "wrong bytes")
    assert (found.samples, found.load_samples, found.verified, found.durable_samples) == (
        0,
        0,
        False,
        None,
    )
    estimates = [item.name for item in fields(found) if item.type == "Estimate | None"]
    assert len(estimates) == 14
    assert {name: getattr(found, name) for name in estimates} == dict.fromkeys(estimates)


def test_a_failure_of_one_case_is_not_anothers() -> None:
    assert row(ONE, [*measured_to_the_end(), records.failure(case(dropout=0.3).id)]).status == "ok"


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [
        (("unsupported",), "unsupported"),
        (("skipped", "unsupported"), "unsupported"),
        (("unsupported", "failed"), "failed"),
        (("failed", "skipped", "unsupported"), "failed"),
    ],
)
def test_failed_beats_unsupported_beats_skipped_beats_ok(
    statuses: tuple[str, ...], worst: str
) -> None:
    failures = [
        records.failure(ONE.id, status=status, reason=f"it is {status}") for status in statuses
    ]
    found = row(ONE, [*failures, *measured_to_the_end()])
    assert (found.status, found.reason) == (worst, f"it is {worst}")


def test_the_first_of_equal_failures_is_the_one_told() -> None:
    failures = [
        records.failure(ONE.id, reason="the cause"),
        records.failure(ONE.id, reason="the consequence"),
    ]
    assert row(ONE, failures).reason == "the cause"


def test_a_failure_in_a_world_of_several_names_the_rank() -> None:
    assert row(TWO, [records.failure(TWO.id, rank=1)]).reason == "rank 1: it broke"
    assert row(ONE, [records.failure(ONE.id)]).reason == "it broke"


INTERRUPTED = "not measured to the end: the run was interrupted"


@pytest.mark.parametrize(
    "found", [[], saves_of([100, 110]), [records.load(ONE.id)], [records.state(ONE.id)]]
)
def test_an_interrupted_run_skips_what_it_has_not_measured_to_the_end(found: list[Record]) -> None:
    interrupted = row(ONE, found)
    assert (interrupted.status, interrupted.reason) == ("skipped", INTERRUPTED)


def test_an_interrupted_row_keeps_the_saves_it_has() -> None:
    interrupted = row(ONE, saves_of([100, 120]))
    assert (interrupted.samples, value(interrupted.durable_s), interrupted.load_s) == (
        2,
        pytest.approx(0.11),
        None,
    )


# What a row says


DESIGNED = [
    "schema",
    "framework",
    "method",
    "workload",
    "precision",
    "device",
    "world",
    "experiment",
    "status",
    "reason",
    "samples",
    "covers",
    "state_bytes",
    "file_bytes",
    "files",
    "stall_s",
    "durable_s",
    "load_s",
    "load_cache",
    "ceiling_write_s",
    "ceiling_read_s",
    "write_efficiency",
    "read_efficiency",
    "verified",
]


WITH_INTERVALS = [
    "open_s",
    "stall_s",
    "finished_s",
    "durable_s",
    "load_s",
    "ceiling_write_s",
    "ceiling_read_s",
    "write_efficiency",
    "read_efficiency",
]


@pytest.mark.parametrize(
    "found", [measured_to_the_end(), [], [records.failure(ONE.id)]], ids=["ok", "skipped", "failed"]
)
def test_a_json_row_has_the_promised_keys_whatever_its_status(found: list[Record]) -> None:
    flat = row(ONE, found).to_json()
    intervals = [name + end for name in WITH_INTERVALS for end in ("", "_low", "_high")]
    assert set(DESIGNED) | set(intervals) <= set(flat)
    assert flat["schema"] == SCHEMA
    assert json.loads(json.dumps(flat, allow_nan=False)) == flat, (
        "flat values that JSON takes, and no NaN"
    )
    known = {name for name in intervals if flat[name] is not None}
    assert known == (set(intervals) if flat["status"] == "ok" else set())


def test_processor_time_is_the_median_of_user_and_system_of_a_save() -> None:
    used = [
        replace(records.USAGE, cpu_user_ns=user, cpu_system_ns=200_000_000)
        for user in (10**9, 3 * 10**9, 2 * 10**9)
    ]
    found = row(
        ONE, [records.save(ONE.id, index=index, usage=usage) for index, usage in enumerate(used)]
    )
    assert found.cpu_s == pytest.approx(2.2)
    assert found.to_json()["cpu_s"] == found.cpu_s
    assert row(ONE, [records.failure(ONE.id)]).to_json()["cpu_s"] is None


def test_an_interval_in_json_holds_its_value() -> None:
    flat = row(ONE, [*saves_of([100, 150, 200, 120]), records.load(ONE.id)]).to_json()
    assert flat["durable_s_low"] < flat["durable_s"] < flat["durable_s_high"]


@pytest.mark.parametrize(
    ("caches", "said"),
    [
        (("cold", "cold"), "cold"),
        (("warm", "warm"), "warm"),
        (("unknown", "unknown"), "unknown"),
        (("cold", "warm"), "mixed"),
        (("cold", "unknown"), "mixed"),
    ],
)
def test_loads_are_as_cold_as_all_of_them(caches: tuple[str, ...], said: str) -> None:
    loads = [records.load(ONE.id, index=index, cache=cache) for index, cache in enumerate(caches)]
    assert row(ONE, loads).load_cache == said


def test_a_warmups_cache_does_not_count() -> None:
    loads = [
        records.load(ONE.id, cache="warm", warmup=True),
        records.load(ONE.id, index=1, cache="cold"),
    ]
    assert row(ONE, loads).load_cache == "cold"


def test_efficiency_is_the_mean_of_the_two_ceilings_over_the_durable_time() -> None:
    between = records.ceilings(0.1, 0.3)
    found = row(
        ONE,
        [*measured_to_the_end(ceilings=between), records.load(ONE.id, index=3, ceilings=between)],
        samples=3,
    )
    assert value(found.ceiling_write_s) == pytest.approx(0.2)
    assert value(found.write_efficiency) == pytest.approx(0.2 / 0.4)
    loads = [
        records.load(ONE.id, index=index, ceilings=between, load_ns=400 * MS) for index in (1, 2)
    ]
    assert value(row(ONE, loads).read_efficiency) == pytest.approx(0.2 / 0.4)


def test_efficiency_is_the_median_of_each_samples_own() -> None:
    """A disk that slows down in the middle of a run slows ceiling and sample alike."""
    found = row(
        ONE,
        [
            *saves_of([200], ceilings=records.ceilings(0.1)),
            *saves_of([2000], first=1, ceilings=records.ceilings(1.0)),
            *saves_of([2000], first=2, ceilings=records.ceilings(1.0)),
        ],
    )
    assert value(found.write_efficiency) == pytest.approx(0.5)
    assert found.write_efficiency is not None
    assert found.write_efficiency.low == pytest.approx(found.write_efficiency.high)


@pytest.mark.parametrize(
    ("milliseconds", "flagged"),
    [([50, 55, 52], True), ([50, 150, 52], False), ([100, 100], False), ([200, 210], False)],
)
def test_a_method_that_beats_its_ceiling_beyond_the_interval_is_flagged(
    milliseconds: list[int], flagged: bool
) -> None:
    assert (
        row(ONE, saves_of(milliseconds, ceilings=records.ceilings(0.1)), samples=3).above_ceiling
        is flagged
    )


def test_what_was_not_measured_is_not_flagged() -> None:
    assert not row(ONE, []).above_ceiling


def test_one_ceiling_through_the_page_cache_makes_the_row_one() -> None:
    cached = saves_of([100], first=1, ceilings=records.ceilings(0.1, direct=False))
    assert row(ONE, [*saves_of([100]), *cached]).ceiling_direct is False


def test_unknown_system_calls_give_no_counts() -> None:
    found = row(
        ONE, [records.syscalls(ONE.id, durability="unknown", reason="strace is not installed")]
    )
    assert (found.durability, found.durability_reason) == ("unknown", "strace is not installed")
    assert (found.writes, found.write_median_bytes, found.fsyncs, found.renames) == (None,) * 4


def test_a_case_never_traced_is_unknown() -> None:
    assert row(ONE, []).durability == "unknown"


def test_sizes_are_those_of_most_saves() -> None:
    one_more = [FileEntry("a", 10), FileEntry("b", 10), FileEntry("c", 10)]
    odd = saves_of([100], first=2, files=tuple(one_more), file_bytes=30)
    found = row(ONE, [*saves_of([100, 100]), *odd], samples=3)
    assert (found.file_bytes, found.files) == (1100, 2)
