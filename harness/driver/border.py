"""The process border to the worker of another checkout: the fields that both sides know.

A worker of another version can be driven as long as one side only added fields with defaults. The
driver leaves such a field out of job.json where the worker does not know it. A field that was
renamed or removed, and another schema of the records, are refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from harness.driver.launch import ROOT
from harness.run.errors import IncomparableError

UnknownFields = Mapping[str, frozenset[str]]
"""Fields that a worker does not know, by class."""

_PROBE_TIMEOUT_S = 60
# It runs in both checkouts. In one that is older than `harness.wire`, the modules lie in `harness`.
_PROBE = """
import dataclasses, json
try:
    from harness.wire import case, records
except ImportError:
    from harness import case, record as records

def has_default(field):
    nothing = dataclasses.MISSING
    return field.default is not nothing or field.default_factory is not nothing

fields = {
    kind.__name__: {field.name: has_default(field) for field in dataclasses.fields(kind)}
    for kind in (case.Case, case.Task, case.Storage, case.Job)
}
print(json.dumps({"schema": records.SCHEMA, "fields": fields}))
"""


@dataclass(frozen=True)
class _Language:
    """The schema of the records that a worker writes, and the fields of the values that it reads.

    `fields` says by class and field whether the field has a default.
    """

    schema: int
    fields: dict[str, dict[str, bool]]


def unknown_fields(checkout: Path) -> UnknownFields:
    """Return the fields that the worker of a checkout does not know.

    Raise IncomparableError where that worker cannot be driven from here.
    """
    here = _language(ROOT)
    there = _language(checkout)
    reason = next(_obstacles(here, there), None)
    if reason is not None:
        raise IncomparableError(f"the worker of {checkout} cannot be driven from here: {reason}")
    return {
        kind: frozenset(fields_here.keys() - there.fields[kind].keys())
        for kind, fields_here in here.fields.items()
    }


def require_unset(unknown: UnknownFields, values: Iterable[Any], checkout: Path) -> None:
    """Raise IncomparableError where a value sets a field that the worker of a checkout lacks."""
    for value in values:
        kind = type(value).__name__
        for declared in fields(value):
            setting = getattr(value, declared.name)
            is_known = declared.name not in unknown.get(kind, ())
            if is_known or setting == _default(declared) or declared.metadata.get("ignorable"):
                continue
            raise IncomparableError(
                f"the worker of {checkout} cannot be driven from here: "
                f"it knows no {kind}.{declared.name}, which this run sets to {setting!r}"
            )


def _obstacles(here: _Language, there: _Language) -> Iterator[str]:
    """Yield each difference that keeps this driver from driving that worker."""
    if here.schema != there.schema:
        yield f"its records have schema {there.schema}, and those of this checkout {here.schema}"
    for kind, fields_here in here.fields.items():
        fields_there = there.fields.get(kind, {})
        only_here = fields_here.keys() - fields_there.keys()
        only_there = fields_there.keys() - fields_here.keys()
        defaults = {**fields_here, **fields_there}
        without_default = [name for name in only_here | only_there if not defaults[name]]
        # A renamed field looks as if each side had added one.
        if without_default or (only_here and only_there):
            differing = ", ".join(sorted(only_here | only_there))
            yield f"its {kind} differs from that of this checkout in {differing}"


def _language(checkout: Path) -> _Language:
    """Ask a checkout what its worker reads and writes. Raise IncomparableError if it cannot say."""
    variables = os.environ | {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    # Without -S, an editable installation of this checkout would stand in for missing modules.
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-c", _PROBE],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PROBE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise IncomparableError(
            f"the worker of {checkout} did not say within {_PROBE_TIMEOUT_S:.0f} s which records "
            "it writes; try again, or copy the checkout to a faster disk"
        ) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise IncomparableError(
            f"the worker of {checkout} does not say which records it writes: {lines[-1]}"
        )
    return _Language(**json.loads(done.stdout))


def _default(declared: Any) -> Any:
    """Return the default of a dataclass's field, or MISSING."""
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return declared.default
