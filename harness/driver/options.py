"""The options of methods, as the command line gives them."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from harness.driver.declarations import MethodEntry
from harness.run.errors import UsageError


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """Return `["crc=false"]` as `{"crc": False}`: values as TOML writes them, or bare words."""
    options = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not (key and separator):
            raise UsageError(
                f"a method's option must be KEY=VALUE, such as crc=false, not {pair!r}"
            )
        options[key] = _toml_value(value)
    return options


def overrides(method: MethodEntry, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that the method has, in order."""
    return {
        key: _checked(method, key, options[key]) for key in sorted(options) if key in method.options
    }


def labelled(name: str, overrides: Mapping[str, Any]) -> str:
    """Return a method's name with the options that the user has set."""
    if not overrides:
        return name
    options = ",".join(f"{key}={_shown(value)}" for key, value in overrides.items())
    return f"{name}[{options}]"


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _checked(method: MethodEntry, key: str, value: Any) -> Any:
    """Return the value where it has the declared type, so that `crc=off` is not a true value."""
    declared = method.options[key]
    if isinstance(declared, float):
        if type(value) in (int, float) and abs(value) <= sys.float_info.max:
            return float(value)
    elif type(value) is type(declared):
        return value
    kind = type(declared).__name__
    raise UsageError(
        f"option {key!r} of method {method.name!r} takes a {kind} such as {_shown(declared)}, "
        f"not {value!r}"
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
