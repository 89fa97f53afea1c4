"""Validation of the files of a run against the classes that wrote them.

A file may come from a later version or another program, or a broken disk may have changed it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from harness.wire.case import MOST_PROCESSES, MOST_RANKS, MOST_SAMPLES

_LARGEST = 2**53  # a float holds it exactly: 104 days in nanoseconds, or 9 PB
_RANK_FIELDS = ("rank", "ranks", "world", "nodes", "scale", "slowest_rank")
_SAMPLE_FIELDS = ("samples", "warmups", "repeats")
_MOST = (
    dict.fromkeys(_RANK_FIELDS, MOST_RANKS)
    | dict.fromkeys(_SAMPLE_FIELDS, MOST_SAMPLES)
    | {"processes": MOST_PROCESSES}
)

T = TypeVar("T")


class Bounded:
    """Bounds every whole number of the type that it annotates.

    No count, size or duration is negative. Without an upper bound, a damaged number of ranks would
    fill the memory. With `finite`, a number is neither infinite nor NaN.
    """

    def __init__(self, finite: bool = False) -> None:
        self._finite = finite

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return pydantic's description of the type, with the bounds in it."""
        schema = handler(source)
        self._bound(schema, handler, "", set())
        return schema

    def _bound(self, schema: Any, handler: Any, field: str, seen: set[str]) -> None:
        """Bound the numbers of a description, and of all that it refers to."""
        if isinstance(schema, list | tuple):
            for part in schema:
                self._bound(part, handler, field, seen)
        if not isinstance(schema, dict):
            return
        kind = schema.get("type")
        if kind == "int":
            schema.update(ge=0, le=_MOST.get(field, _LARGEST))
        elif kind == "float" and self._finite:
            schema.update(allow_inf_nan=False)
        elif kind == "definition-ref" and schema["schema_ref"] not in seen:
            seen.add(schema["schema_ref"])
            self._bound(handler.resolve_ref_schema(schema), handler, field, seen)
        elif kind == "dataclass-field":
            field = schema["name"]
        for part in list(schema.values()):
            self._bound(part, handler, field, seen)


def validated(kind: type[T], text: str) -> T:
    """Return the JSON object in a text as an instance of the dataclass `kind`.

    Fields that `kind` lacks are left out. Raise ValueError with the first thing that is wrong.
    """
    try:
        validator = _validator(kind)  # type: ignore[arg-type]
        return cast(T, validator.validate_json(text, strict=True))
    except ValidationError as error:
        raise ValueError(first_reason(error)) from error


def first_reason(error: ValidationError) -> str:
    """Return the first thing that is wrong, with the place of it."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    text = f"{place}: {first['msg']}" if place else first["msg"]
    # A key of a damaged file may hold newlines and terminal codes.
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def require_known(kind: str, given: str, known: Iterable[str]) -> None:
    """Raise ValueError for a name that this version does not know."""
    names = list(known)
    if given not in names:
        listed = ", ".join(names)
        raise ValueError(f"{kind} {given!r} is not one that this version knows ({listed})")


@functools.cache
def _validator(kind: type[Any]) -> TypeAdapter[Any]:
    """Return the validator of a class. It is built late, because that takes time."""
    bounded: Any = Annotated[kind, Bounded(finite=True)]
    return TypeAdapter(bounded)
