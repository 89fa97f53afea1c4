"""Samples: the records of a case and stage as one data frame row for each sample of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from harness.analysis.columns import Column, OverRanks, any_rank, columns_of
from harness.wire.records import SampleRecord

KEY = ["case", "process", "index"]


@dataclass(frozen=True)
class Value:
    """A number or word of every sample that no column shows by itself, but others derive from."""

    sample: Callable[[Any], Any]
    over_ranks: OverRanks


@dataclass(frozen=True)
class SampleTable:
    """The samples that one kind of record reports.

    Columns derive from `values`. `across` takes the ranks' values before they are combined. It
    returns what their differences say, with the columns of `KEY`, and is merged into the samples.
    `choose` also takes them before they are combined, and returns one row a sample. It is for
    samples whose parts must be of one rank. Without it, each value is combined by itself.
    `derived` holds further values, computed in order from the combined ones.
    """

    record: type[SampleRecord]
    values: Mapping[str, Value] = field(default_factory=dict)
    derived: Mapping[str, Callable[[pd.DataFrame], Any]] = field(default_factory=dict)
    across: Callable[[pd.DataFrame], pd.DataFrame] | None = None
    choose: Callable[[pd.DataFrame], pd.DataFrame] | None = None

    def __hash__(self) -> int:
        """Return the identity, because a table is declared once."""
        return id(self)


def sample_frame(
    table: SampleTable,
    row_class: type[Any],
    records: Sequence[SampleRecord],
    worlds: Mapping[str, int],
) -> pd.DataFrame:
    """Return one row for each sample of a whole world.

    `worlds` gives each case's number of ranks. A sample that a rank has not reported is left out.
    """
    own = {name: each for name, each in columns_of(row_class).items() if each.of is table}
    values = _values(table, own)
    names = [*KEY, "rank", "ranks", "warmup", "disturbed", *values]
    lines = [_line(record, values) for record in records]
    ranks = pd.DataFrame(lines, columns=names)
    if ranks.empty:
        return ranks
    ranks = _complete(ranks, worlds)
    combined = table.choose(ranks) if table.choose else _combined(ranks, values)
    if table.across is not None:
        combined = combined.merge(table.across(ranks), on=KEY)
    for name, derive in table.derived.items():
        combined[name] = derive(combined)
    for name, declared in own.items():
        if declared.derived is not None:
            combined[name] = declared.derived(combined)
    return combined


def usable(samples: pd.DataFrame, wanted: int) -> pd.DataFrame:
    """Return the samples that statistics are made of.

    They are the undisturbed ones, or all where those are fewer than half of the samples wanted. Of
    a process without any undisturbed one, all count, because the spread between processes is a part
    of the interval.
    """
    warm = samples[~samples["warmup"]]
    undisturbed = warm[~warm["disturbed"]]
    if 2 * len(undisturbed) < wanted:
        return warm
    has_none = ~warm["process"].isin(undisturbed["process"])
    return warm[~warm["disturbed"] | has_none]


def summed_up(row: Any, table: SampleTable, used: pd.DataFrame) -> None:
    """Fill in every column of a row that sums up samples of this table."""
    for name, declared in columns_of(type(row)).items():
        if declared.of is table:
            setattr(row, name, declared.summary(used, name))


def _values(table: SampleTable, own: Mapping[str, Column]) -> dict[str, Value]:
    """Return what is taken from every record: the table's values, and those of its columns."""
    values = dict(table.values)
    for name, declared in own.items():
        if declared.derived is None and declared.over_ranks is not None:
            values[name] = Value(declared.sample or _attribute(name), declared.over_ranks)
    return values


def _attribute(name: str) -> Callable[[Any], Any]:
    return lambda record: getattr(record, name)


def _line(record: SampleRecord, values: Mapping[str, Value]) -> list[Any]:
    ranks = len(record.reporting_ranks)
    head = [record.case, record.process, record.index, record.rank, ranks]
    flags = [record.warmup, record.disturbed]
    return [*head, *flags, *(value.sample(record) for value in values.values())]


def _complete(ranks: pd.DataFrame, worlds: Mapping[str, int]) -> pd.DataFrame:
    """Leave out samples that a rank has not reported; one record may speak for several ranks."""
    ranks = ranks.drop_duplicates([*KEY, "rank"])
    reported = ranks.groupby(KEY)["ranks"].transform("sum")
    return ranks[reported == ranks["case"].map(worlds)]


def _combined(ranks: pd.DataFrame, values: Mapping[str, Value]) -> pd.DataFrame:
    """Combine the ranks of each sample, every value in its own way."""
    ways = {"warmup": any_rank, "disturbed": any_rank}
    ways |= {name: value.over_ranks for name, value in values.items()}
    places = {}
    for name, way in ways.items():
        if way.worst_last:
            order = {word: place for place, word in enumerate(way.worst_last)}
            places[name] = ranks[name].map(order)
    grouped = ranks.assign(**places).groupby(KEY, as_index=False)
    combined = grouped.agg({name: way.aggregate for name, way in ways.items()})
    for name in places:
        words = ways[name].worst_last
        combined[name] = [words[place] for place in combined[name]]
    return combined
