"""Columns: each is declared once, at the field of the row that holds its value.

A declaration says what the column is called, what it means, its unit, how a table shows it, which
samples it sums up, how the ranks of a sample combine, and whether `compare` tests it. The tables,
CSV, JSON, the HTML page, the comparison and the docs derive from it. The order of the fields is the
order of the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.analysis import statistics, text
from harness.analysis.statistics import Estimate, Samples

if TYPE_CHECKING:
    from harness.analysis.compared import Compared
    from harness.analysis.samples import SampleTable

_NUMBERS = frozenset({"Estimate | None", "int", "int | None", "float", "float | None"})


@dataclass(frozen=True)
class OverRanks:
    """The way in which one sample's values of all ranks become one value.

    `aggregate` is pandas' name of it. `worst_last` holds the words that a value can be, where it is
    a word; then the worst word of any rank counts.
    """

    words: str
    aggregate: str
    worst_last: tuple[str, ...] = ()


slowest = OverRanks("the slowest rank's", "max")
largest = OverRanks("the largest of the ranks", "max")
middle = OverRanks("the median over the ranks", "median")
any_rank = OverRanks("true where it is true of any rank", "max")
every_rank = OverRanks("true where it is true of every rank", "min")


def worst(*words: str) -> OverRanks:
    """Return the way that takes the worst word of any rank; `words` has the worst one last."""
    return OverRanks(f"the worst of the ranks: {', '.join(words)}", "max", words)


Summary = Callable[[pd.DataFrame, str], Any]
"""Sums up a column of the samples of one case: the samples that count, and the column's name."""


def samples_of(samples: pd.DataFrame, name: str) -> Samples:
    """Return a column's values with the process that each was measured in."""
    values = samples[name].to_numpy(dtype=float)
    processes = samples["process"].to_numpy(dtype=int)
    return Samples(values, processes)


def median(samples: pd.DataFrame, name: str) -> Estimate | None:
    """Return the median with its interval; None where a value is missing."""
    if samples[name].isna().any():
        return None
    return statistics.median(samples_of(samples, name))


def location(samples: pd.DataFrame, name: str) -> Estimate | None:
    """Return the median of values around zero with its interval; None where one is missing."""
    if samples[name].isna().any():
        return None
    return statistics.location(samples_of(samples, name))


def middle_number(samples: pd.DataFrame, name: str) -> float | None:
    """Return the median without an interval; None where there is no number at all."""
    column = samples[name]
    return None if column.isna().all() else float(column.median())


def middle_count(samples: pd.DataFrame, name: str) -> int | None:
    """Return the median as a whole number; None for zero."""
    return int(samples[name].median()) or None


def most(samples: pd.DataFrame, name: str) -> int:
    """Return the largest value of any sample as a whole number."""
    return int(samples[name].max())


def most_or_none(samples: pd.DataFrame, name: str) -> int | None:
    """Return the largest value of the samples that have one; None where none has."""
    known = samples[name].dropna()
    return None if known.empty else int(known.max())


def always_true(samples: pd.DataFrame, name: str) -> bool:
    """Return whether a column is true in all samples."""
    return bool(samples[name].all())


@dataclass(frozen=True)
class Column:
    """The declaration of one column.

    A column without a heading is in CSV and JSON only. `per` names the field that a table divides
    the value by, and `text` shows a row's value where the unit's own way does not do. `of` is the
    table of samples that the value sums up; `sample` gives one rank's value of a record, where the
    record has no attribute of the column's name; `derived` computes the value from the combined
    columns of the samples instead. `shown` says for which rows a table has the column. `aside` is
    the title of a second table that a terminal has for the column, because one line has no room for
    all. A value that is too long for a spreadsheet is not `in_csv`.
    """

    meaning: str
    heading: str = ""
    unit: str = ""
    per: str = ""
    text: Callable[[Any], str] | None = None
    sort_by: Callable[[Any], float | None] | None = None
    shown: Callable[[Sequence[Any]], bool] | None = None
    aside: str = ""
    left_aligned: bool = False
    in_csv: bool = True
    of: SampleTable | None = None
    sample: Callable[[Any], Any] | None = None
    derived: Callable[[pd.DataFrame], Any] | None = None
    over_ranks: OverRanks | None = None
    summary: Summary = median
    compared: Compared | None = None

    def is_shown(self, rows: Sequence[Any]) -> bool:
        """Return whether a table of these rows has the column."""
        return bool(self.heading) and (self.shown is None or self.shown(rows))


def column(meaning: str, *, default: Any = None, **declared: Any) -> Any:
    """Declare a column as a field of a row; see `Column` for what can be declared."""
    return field(default=default, metadata={"column": Column(meaning, **declared)})


def identity_column(meaning: str, **declared: Any) -> Any:
    """Declare how a table shows a field by which a row is known, and which has no default."""
    return field(metadata={"column": Column(meaning, **declared)})


def column_of_list(meaning: str, **declared: Any) -> Any:
    """Declare a column whose value is a list, empty where nothing is known."""
    return field(default_factory=list, metadata={"column": Column(meaning, **declared)})


_columns: dict[Any, dict[str, Column]] = {}
_types: dict[Any, dict[str, str]] = {}


def columns_of(row_class: type[Any]) -> Mapping[str, Column]:
    """Return the columns of a row class by field, in order."""
    if row_class not in _columns:
        declared = {each.name: each.metadata.get("column") for each in fields(row_class)}
        _columns[row_class] = {name: column for name, column in declared.items() if column}
    return _columns[row_class]


def _type_of(row_class: type[Any], name: str) -> str:
    """Return the annotation of a field."""
    if row_class not in _types:
        _types[row_class] = {each.name: str(each.type) for each in fields(row_class)}
    return _types[row_class][name]


def is_number(row_class: type[Any], name: str) -> bool:
    """Return whether a column is sorted by numbers, and not by its text."""
    declared = columns_of(row_class)[name]
    return declared.sort_by is not None or _type_of(row_class, name) in _NUMBERS


def sort_value(row: Any, name: str) -> float | None:
    """Return the number that a column sorts a row by; None where it has none."""
    declared = columns_of(type(row))[name]
    if declared.sort_by is not None:
        return declared.sort_by(row)
    if _type_of(type(row), name) not in _NUMBERS:
        return None
    value = _number(getattr(row, name))
    if value is None or not declared.per:
        return value
    whole = _number(getattr(row, declared.per))
    return value / whole if whole else None


def cell(row: Any, name: str) -> str:
    """Return the text that a table shows for a row's column."""
    declared = columns_of(type(row))[name]
    if declared.text is not None:
        return declared.text(row)
    value = getattr(row, name)
    if declared.per:
        return text.fraction(sort_value(row, name))
    if value is None:
        return text.NOTHING
    if isinstance(value, Estimate):
        return text.duration(value) if declared.unit == "s" else text.share(value)
    if declared.unit == "bytes":
        return text.size(value)
    return str(value)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    return value.value if isinstance(value, Estimate) else float(value)
