"""Times, shares and sizes as people write them in options."""

from __future__ import annotations

import re

from harness.run.errors import UsageError

_NUMBER = r"(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)"
_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(rf"{_NUMBER}\s*(s|min|m|h|d)")
_SHORTEST_S = 1e-3
_LONGEST_DAYS = 100_000
_SHARE = re.compile(rf"{_NUMBER}\s*%")
_LEAST_PERCENT = 1e-6
_PREFIXES = ("", "k", "m", "g", "t", "p")
_SIZE = re.compile(rf"{_NUMBER}\s*(?:([kmgtp]?)(i?)b)?", re.IGNORECASE)
_LARGEST_PETABYTES = 1000


def seconds(option: str, text: str, from_zero: bool = False) -> float:
    """Return a duration such as 8h in seconds. It may be 0 where that makes sense."""
    match = _DURATION.fullmatch(text.strip())
    value = float(match[1]) * _UNITS_S[match[2]] if match else -1.0
    if 0 < value < _SHORTEST_S:
        raise UsageError(f"{option} is {text!r}, which is too short; give at least {_SHORTEST_S}s")
    if value < 0 or (value == 0 and not from_zero):
        least = "" if from_zero else " above 0"
        raise UsageError(
            f"{option} is {text!r}, and must be a time{least} with its unit: 30s, 10min, 8h or 250d"
        )
    if value > _LONGEST_DAYS * _UNITS_S["d"]:
        raise UsageError(f"{option} is longer than {_LONGEST_DAYS} days; give a shorter time")
    return value


def share(option: str, text: str) -> float:
    """Return a percentage such as 3.5% as a share between 0 and 1."""
    match = _SHARE.fullmatch(text.strip())
    if match is not None and 0 < float(match[1]) < _LEAST_PERCENT:
        raise UsageError(f"{option} is {text!r}, which is too small; give at least 0.000001%")
    if match is None or not 0 < float(match[1]) < 100:
        raise UsageError(
            f"{option} is {text!r}, and must be a percentage above 0% and below 100%, such as 3.5%"
        )
    return float(match[1]) / 100


def size_bytes(option: str, text: str) -> float:
    """Return a number of bytes such as 1e12, 1TB or 105GiB."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{option} is {text!r}, and must be a size such as 1e12, 1TB or 105GiB")
    base = 1024.0 if match[3] else 1000.0
    value = float(match[1]) * base ** _PREFIXES.index((match[2] or "").lower())
    if value > _LARGEST_PETABYTES * 1e15:
        raise UsageError(f"{option} is more than {_LARGEST_PETABYTES} PB; give fewer bytes")
    return value
