"""Read records back from their lines, and validate them before anyone believes them.

A record of a later version may have fields that this version does not know. They are ignored, and a
field that an older record lacks has its default, so an added field needs no new schema number. Only
a renamed or reinterpreted field does.
"""

from __future__ import annotations

import functools
import gzip
import json
import operator
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from harness import experiments
from harness.run.validation import Bounded, first_reason
from harness.wire.records import RECORDS, SCHEMA, Record

# `to_line` begins every line like this.
_SCHEMA = re.compile(r'\{"schema":([1-9][0-9]{0,8}),')


class InvalidLine(ValueError):
    """A line that does not hold a record of a schema that this version reads."""


@dataclass(frozen=True)
class Damage:
    """A damaged line. The lines around it are still read."""

    file: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


@functools.cache
def record_types() -> tuple[type[Record], ...]:
    """Return the classes of all records: the shared ones, then those of each experiment."""
    types: list[type[Record]] = list(RECORDS)
    for name in experiments.names():
        if experiments.has_part(name, "records"):
            types.extend(experiments.part(name, "records").RECORDS)
    return tuple(types)


@functools.cache
def _validator() -> TypeAdapter[Record]:
    """Return the validator for all records. It is built late, because that takes 0.1 s."""
    any_record: Any = functools.reduce(operator.or_, record_types())
    return TypeAdapter(Annotated[any_record, Field(discriminator="kind"), Bounded()])


def parse(line: str) -> Record:
    """Return the record of one line. Raise InvalidLine with the first thing that is wrong."""
    schema = _SCHEMA.match(line)
    if schema and int(schema[1]) <= SCHEMA:
        try:
            return _validator().validate_json(line, strict=True)
        except ValidationError:
            # The slow way below finds the reason, because it checks one thing after the other.
            pass
    return _parse_in_parts(line)


def _parse_in_parts(line: str) -> Record:
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise InvalidLine("not a record (it is nested too deeply)") from error
    except ValueError as error:
        raise InvalidLine(f"not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise InvalidLine("not a JSON object")
    schema = fields.pop("schema", None)
    # isinstance would take true for a number.
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise InvalidLine(f"schema {schema!r} is not one that this version reads (1 to {SCHEMA})")
    try:
        return _validator().validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        raise InvalidLine(_reason_of_line(error)) from error


def _reason_of_line(error: ValidationError) -> str:
    """Return the first thing that is wrong with a record, in one sentence."""
    first = error.errors()[0]
    if first["type"] == "union_tag_not_found":
        return "record: it has no kind"
    if first["type"] == "union_tag_invalid":
        kind = first["ctx"]["tag"]
        known = first["ctx"]["expected_tags"]
        return f"kind {kind!r} is not one that this version reads ({known})"
    if not first["loc"]:
        return f"record: {first['msg']}"
    return first_reason(error)


def read(file: Path) -> tuple[list[Record], list[Damage]]:
    """Return the records of a file in order, and its damaged lines.

    A file whose name ends in ".gz" is packed. Raises EOFError or zlib.error if it is damaged.
    """
    records: list[Record] = []
    damages: list[Damage] = []
    # A file is split at newlines alone, because splitlines() also splits at form feeds.
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                records.append(parse(line.rstrip("\n")))
            except InvalidLine as error:
                damages.append(Damage(file, number, str(error)))
    return records, damages
