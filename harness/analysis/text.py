"""Numbers as people read them in tables, sentences and figures."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.statistics import Estimate

NO_INTERVAL = "[–]"  # of a single sample
NOTHING = "–"
DISTURBED = "~"  # behind the number of those among the samples that count
OVERSUBSCRIBED = " +"  # more ranks than processors
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def duration(estimate: Estimate | None) -> str:
    """Return a duration to three digits, in seconds or milliseconds."""
    if estimate is None:
        return NOTHING
    scale, unit = _unit_of(estimate.value)
    return f"{_three_digits(scale * estimate.value)} {unit}"


def duration_with_interval(estimate: Estimate | None) -> str:
    """Return a duration and its interval, to three digits, all in seconds or milliseconds."""
    if estimate is None or estimate.single:
        return duration(estimate)
    scale, _ = _unit_of(estimate.value)
    low, high = _three_digits(scale * estimate.low), _three_digits(scale * estimate.high)
    return f"{duration(estimate)} [{low}–{high}]"


def _unit_of(seconds: float) -> tuple[float, str]:
    """Return the unit in which a table shows a duration, and how many of it a second has."""
    return (1.0, "s") if abs(seconds) >= 0.9995 else (1e3, "ms")


def _three_digits(value: float) -> str:
    # From 100 on, "g" would turn to powers of ten.
    return f"{value:#.3g}" if abs(value) < 99.95 else f"{value:.0f}"


def spread_duration(estimate: Estimate | None) -> str:
    """Return a duration around zero with its interval, in milliseconds."""
    if estimate is None:
        return NOTHING
    if estimate.single:
        return f"{1e3 * estimate.value:.0f} ms {NO_INTERVAL}"
    return f"{1e3 * estimate.value:.0f} ms [{1e3 * estimate.low:.0f}–{1e3 * estimate.high:.0f}]"


def share(estimate: Estimate | None) -> str:
    """Return a share of a ceiling, or another ratio, with its interval."""
    if estimate is None:
        return NOTHING
    if estimate.single:
        return f"{estimate.value:.2f} {NO_INTERVAL}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}–{estimate.high:.2f}]"


def percent(estimate: Estimate | None) -> str:
    """Return a share around zero in percent, with its sign and interval."""
    if estimate is None:
        return NOTHING
    if estimate.single:
        return f"{100 * estimate.value:+.1f} % {NO_INTERVAL}"
    interval = f"[{100 * estimate.low:+.1f} to {100 * estimate.high:+.1f}]"
    return f"{100 * estimate.value:+.1f} % {interval}"


def size(count: float) -> str:
    """Return a number of bytes in decimal units."""
    for unit, name in _UNITS:
        if count >= 0.9995 * unit:
            value = count / unit
            return f"{value:.3g} {name}" if count < 999.5 * unit else f"{value:.0f} {name}"
    return f"{count:.0f} B"


def fraction(value: float | None) -> str:
    """Return a ratio to three digits after the point."""
    return NOTHING if value is None else f"{value:.3f}"


def listed(names: Sequence[str]) -> str:
    """Return each name once, as a sentence lists them."""
    unique = list(dict.fromkeys(names))
    return unique[0] if len(unique) == 1 else ", ".join(unique[:-1]) + " and " + unique[-1]


def ranks_in_words(worlds: Sequence[int]) -> str:
    """Return numbers of ranks as a title has them."""
    numbers = listed([str(world) for world in worlds])
    return f"{numbers} rank" if list(worlds) == [1] else f"{numbers} ranks"
