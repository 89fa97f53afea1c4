"""Records back from their lines, validated before they are believed.

For the driver and the analysis; no worker needs it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from harness.wire.records import SCHEMA, Record

_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])
_SCHEMA = re.compile(r'\{"schema":([1-9][0-9]{0,8}),')  # as `to_line` begins every line


class InvalidLine(ValueError):
    """A line that is no record of a schema known here."""


@dataclass(frozen=True)
class Damage:
    """A line that could not be believed; the lines around it were."""

    file: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


def parse(line: str) -> Record:
    """Return the record of one line. Raises InvalidLine with the first thing that is wrong."""
    schema = _SCHEMA.match(line)
    if schema and int(schema[1]) <= SCHEMA:
        try:
            return _RECORD.validate_json(line, strict=True)
        except ValidationError:
            pass  # what is wrong is for the parts to say, one after the other
    return _parse_in_parts(line)


def _parse_in_parts(line: str) -> Record:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise InvalidLine(f"not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise InvalidLine("not a JSON object")
    schema = fields.pop("schema", None)
    if type(schema) is not int or not 1 <= schema <= SCHEMA:  # true is an int to isinstance
        raise InvalidLine(f"schema {schema!r} is not one that this version reads (1 to {SCHEMA})")
    try:
        return _RECORD.validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidLine(f"{where or 'record'}: {first['msg']}") from error


def read(file: Path) -> tuple[list[Record], list[Damage]]:
    """Return a file's records in order, and its damaged lines."""
    records: list[Record] = []
    damages: list[Damage] = []
    # by newlines alone: splitlines() ends lines at form feeds and the like too
    with file.open(errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                records.append(parse(line.rstrip("\n")))
            except InvalidLine as error:
                damages.append(Damage(file, number, str(error)))
    return records, damages
