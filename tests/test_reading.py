"""Records come back as they were written. A damaged line is named, and the others are read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import records

from harness.experiments.cost.records import SaveRecord
from harness.run.reading import InvalidLine, parse, read, record_types
from harness.wire.records import SCHEMA, Record, to_line

EACH = {record.kind: record for record in records.one_of_each()}


def changed(record: Record, **changes: Any) -> str:
    """Return the record's line with changes to its fields. None removes a field."""
    fields = json.loads(to_line(record)) | changes
    return json.dumps({name: value for name, value in fields.items() if value is not None})


@pytest.mark.parametrize("kind", EACH)
def test_a_record_comes_back_from_its_line(kind: str) -> None:
    line = to_line(EACH[kind])
    assert line.index("\n") == len(line) - 1, "a record is one line"
    assert parse(line) == EACH[kind]


def test_every_type_of_record_is_tested() -> None:
    assert {type(record) for record in EACH.values()} == set(record_types())


def test_a_text_of_several_lines_stays_in_one() -> None:
    record = records.failure(reason="first\nsecond\r\x0c\u2028third \N{SNOWMAN} \\n")
    line = to_line(record)
    assert len(line.splitlines()) == 1
    assert parse(line) == record


def test_fields_of_a_later_version_are_ignored() -> None:
    fields = json.loads(to_line(SAVE))
    fields["usage"] |= {"energy_j": 12.5}
    assert parse(json.dumps(fields | {"node_temperature_c": [40, 41]})) == SAVE


def test_a_field_that_an_older_record_lacks_has_its_default() -> None:
    assert parse(changed(records.save(memory_copy_ns=5), memory_copy_ns=None)) == records.save()


@pytest.mark.parametrize("quiet", [True, False, None])
def test_what_may_be_unknown_comes_back_unknown(quiet: bool | None) -> None:
    record = records.save(quiet=quiet)
    assert parse(to_line(record)) == record


SAVE = records.save()
WHOLE = to_line(SAVE).rstrip("\n")
POINT = {"operation": "write", "block_bytes": 1, "depth": 2}
DAMAGED = {
    "nothing at all": ("", r"^not JSON"),
    "not JSON": ("Traceback (most recent call last):", r"^not JSON \(Expecting value"),
    "half a line": (WHOLE[: len(WHOLE) // 2], r"^not JSON"),
    "all but the last character": (WHOLE[:-1], r"^not JSON"),
    "two lines in one": (WHOLE + WHOLE, r"^not JSON \(Extra data"),
    "half a line and a whole one": (WHOLE[:100] + WHOLE, r"^not JSON"),
    "a list": ("[1, 2]", r"^not a JSON object$"),
    "a text": ('"save"', r"^not a JSON object$"),
    "nothing in JSON": ("null", r"^not a JSON object$"),
    "a newer schema": (
        changed(SAVE, schema=SCHEMA + 1),
        rf"^schema {SCHEMA + 1} is not one that .* reads \(1 to {SCHEMA}\)$",
    ),
    "a schema before the first": (changed(SAVE, schema=0), r"^schema 0 is not one"),
    "no schema": (changed(SAVE, schema=None), r"^schema None is not one"),
    "a schema that is text": (changed(SAVE, schema="1"), r"^schema '1' is not one"),
    "a schema that is a truth value": (changed(SAVE, schema=True), r"^schema True is not one"),
    "an unknown kind": (changed(SAVE, kind="saved"), r"^kind 'saved' is not one .*'failure'"),
    "no kind": (changed(SAVE, kind=None), r"^record: it has no kind$"),
    "no duration": (changed(SAVE, save_ns=None), r"^save\.save_ns: .*required"),
    "text for a duration": (changed(SAVE, save_ns="12"), r"^save\.save_ns: .*valid integer"),
    "a fraction for a duration": (changed(SAVE, save_ns=0.5), r"^save\.save_ns: .*valid integer"),
    "a whole float for a duration": (
        changed(SAVE, save_ns=12.0),
        r"^save\.save_ns: .*valid integer",
    ),
    "a truth value for a duration": (
        changed(SAVE, save_ns=True),
        r"^save\.save_ns: .*valid integer",
    ),
    "a number for a truth value": (changed(SAVE, warmup=1), r"^save\.warmup: .*valid boolean"),
    "text for a fraction": (
        changed(EACH["load"], resident_fraction="0.5"),
        r"^load\.resident_fraction: .*valid number",
    ),
    "an unknown word": (changed(EACH["load"], cache="hot"), r"^load\.cache: .*'cold'"),
    "a wrong number deep inside": (
        changed(SAVE, ceilings={"bytes": 1, "before_ns": 1, "after_ns": "2", "direct": True}),
        r"^save\.ceilings\.after_ns: ",
    ),
    "a wrong number in a list": (
        changed(EACH["overhead"], empty_save_ns=[1, "2"]),
        r"^overhead\.empty_save_ns\.1: ",
    ),
    "a rate of nothing": (
        changed(EACH["calibration"], points=[POINT | {"bytes_per_s": 0.0}]),
        r"a raw transfer has a rate above 0",
    ),
    "an update without its pair": (
        changed(EACH["updates"], beside_raw_ns=[1] * 6),
        r"updates come in pairs",
    ),
    "the fields of another kind": (changed(SAVE, kind="load"), r"^load\.load_ns: .*required"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_line_that_is_no_record_says_what_is_wrong(damage: str) -> None:
    line, reason = DAMAGED[damage]
    with pytest.raises(InvalidLine) as caught:
        parse(line)
    assert re.search(reason, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_line_is_named_and_keeps_the_rest(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    first, last = records.save(index=1), records.failure()
    file.write_text(f"{to_line(first)}{DAMAGED[damage][0]}\n{to_line(last)}")
    kept, damages = read(file)
    assert kept == [first, last]
    assert [(found.file, found.line) for found in damages] == [(file, 2)]
    assert str(damages[0]).startswith(f"{file}:2: ")
    assert re.search(DAMAGED[damage][1], damages[0].reason)


def test_every_damaged_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(f"rubbish\n{to_line(SAVE)}[]\n" + 2 * to_line(SAVE) + WHOLE[:50])
    kept, damages = read(file)
    assert kept == [SAVE] * 3
    assert [found.line for found in damages] == [1, 3, 6]


def test_a_last_line_without_its_end_is_a_record_if_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(to_line(SAVE) + WHOLE)
    assert read(file) == ([SAVE, SAVE], [])


@pytest.mark.parametrize(
    "rubbish",
    [b"\xff\xfe\x00\x80", b"a\x0cb\x1cc\xe2\x80\xa8d\x85e"],
    ids=["no text", "separators"],
)
def test_bytes_that_are_no_text_are_one_damaged_line(tmp_path: Path, rubbish: bytes) -> None:
    file = tmp_path / "records.jsonl"
    file.write_bytes(
        to_line(SAVE).encode() + rubbish + b"\n" + to_line(SAVE).encode() + b"rubbish\n"
    )
    kept, damages = read(file)
    assert kept == [SAVE, SAVE]
    assert [found.line for found in damages] == [2, 4], "lines are counted as an editor counts them"


def test_an_empty_file_has_nothing(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.touch()
    assert read(file) == ([], [])


def test_the_ceilings_know_how_far_apart_they_are() -> None:
    record = parse(to_line(records.save(ceilings=records.ceilings(0.09, 0.11))))
    assert isinstance(record, SaveRecord)
    assert record.ceilings.spread == pytest.approx(0.2)
