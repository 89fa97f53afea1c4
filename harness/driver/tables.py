"""Reading of TOML files as validated values.

A mistake in a file becomes one sentence with the file, the key and the nearest valid name.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from harness.run.errors import UsageError, nearest

_OWN_ERROR = "Value error, "  # pydantic writes this before the message of a validator's ValueError


class Table(BaseModel):
    """A TOML table that refuses unknown keys.

    Validation is strict, because TOML has types: `"true"` in quotes is a mistake and no boolean.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, table: object) -> object:
        """Raise UsageError with the nearest valid key, which pydantic's own refusal lacks."""
        valid = [field.alias or name for name, field in cls.model_fields.items()]
        keys = table if isinstance(table, dict) else ()
        for key in keys:
            if key not in valid:
                raise nearest("key", key, valid)
        return table


TableT = TypeVar("TableT", bound=Table)


def read(path: Path, model: type[TableT]) -> TableT:
    """Return the content of a TOML file as `model`.

    Raises UsageError if the file is missing, is no TOML, or does not fit `model`.
    """
    try:
        return model.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise UsageError(f"{path}: {_first_mistake(error)}") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise UsageError(f"{path} is not valid TOML: {error}") from error


def _first_mistake(error: ValidationError) -> str:
    """Return the key of the first mistake and the reason why its value is refused."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    reason = _reason(first["msg"], first["input"])
    return f"{key}: {reason}" if key else reason


def _reason(message: str, value: object) -> str:
    """Return why a value is refused, in the words of our validator or of pydantic."""
    if message.startswith(_OWN_ERROR):
        return message.removeprefix(_OWN_ERROR)
    in_lower_case = f"{message[0].lower()}{message[1:]}"
    is_short = isinstance(value, str | int | float)
    return f"{in_lower_case}, not {value!r}" if is_short else in_lower_case
