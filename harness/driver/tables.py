"""TOML files as validated values: a mistake in one becomes one sentence that names the file, the key and the nearest name."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from harness.run.errors import UsageError, nearest


class Table(BaseModel):
    """A TOML table with known keys only.

    Strict: TOML has types, so `true` in quotes is a mistake and not a boolean.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, table: object) -> object:
        """Refuse an unknown key here, because pydantic's own refusal does not say which key was meant."""
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in table if isinstance(table, dict) else ():
            if key not in known:
                raise nearest("key", key, known)
        return table


TableT = TypeVar("TableT", bound=Table)


def read(path: Path, model: type[TableT]) -> TableT:
    """Return the file's content as `model`.

    Raises UsageError where it is missing, not TOML, or not what `model` describes.
    """
    try:
        return model.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise UsageError(f"{path}: {_first_fault(error)}") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise UsageError(f"{path} is not valid TOML: {error}") from error


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"])
    return (
        f"{key}: {_reason(fault['msg'], fault['input'])}"
        if key
        else _reason(fault["msg"], fault["input"])
    )


def _reason(message: str, given: object) -> str:
    own = message.removeprefix("Value error, ")
    if own != message:
        return own
    lowered = f"{message[0].lower()}{message[1:]}"
    return f"{lowered}, not {given!r}" if isinstance(given, str | int | float) else lowered
