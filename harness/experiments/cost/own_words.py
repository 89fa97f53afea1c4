"""Experiment `cost` in the words of somebody who brought a model: which method to take, and why."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.row import Naming
from harness.analysis.text import duration, listed, ranks_in_words, size
from harness.experiments.cost.rows import CostRow
from harness.experiments.cost.samples import DURABILITY


def answer(good: Sequence[CostRow], naming: Naming, has_worlds: bool) -> str:
    """Return what a checkpoint of the user's own model costs, and what survives a crash.

    `good` are the verified rows without a mark. The default is named with each strategy. So are
    the method that is on the disk first, the one that stops training least, and the fastest of
    those that are certain after a crash. Where the table has several worlds, the answer is about
    the largest that has such a row, and says so.
    """
    world = max(row.world for row in good)
    good = [row for row in good if row.world == world]
    chosen = _chosen(good)
    where = f"On {ranks_in_words([world])}, your" if has_worlds else "Your"
    told = "; ".join(_told(row, naming) for row in chosen)
    said = [
        f"{where} checkpoint is {size(chosen[0].file_bytes or 0)}.",
        f"{told}.",
        _after_a_crash(good, naming),
        _to_write(_advised(good)),
    ]
    return " ".join(sentence for sentence in said if sentence)


def _chosen(good: Sequence[CostRow]) -> list[CostRow]:
    """Return the rows that are named, each once."""
    timed = [row for row in good if row.durable_s and row.stall_s]
    full = [row for row in timed if row.covers == "full"] or timed
    rows = [row for row in timed if row.default]
    rows += [min(full, key=_durable_s), min(full, key=_stall_s), _advised(good)]
    return list({id(row): row for row in rows}.values())


def _advised(good: Sequence[CostRow]) -> CostRow:
    """Return the fastest row that is certain after a crash, or else the one of the least stall."""
    timed = [row for row in good if row.durable_s and row.stall_s]
    full = [row for row in timed if row.covers == "full"] or timed
    certain = [row for row in full if row.durability in DURABILITY and row.durability != "never"]
    return min(certain, key=_durable_s) if certain else min(full, key=_stall_s)


def _told(row: CostRow, naming: Naming) -> str:
    name = f"{naming.name(row)} (the default)" if row.default else naming.name(row)
    part = "" if row.covers == "full" else f", which covers {row.covers} only,"
    return (
        f"{name}{part} stops training for {duration(row.stall_s)}, "
        f"and is on the disk after {duration(row.durable_s)}"
    )


def _after_a_crash(good: Sequence[CostRow], naming: Naming) -> str:
    """Return whose checkpoint a crash of the machine leaves; empty where nobody knows."""
    known = [row for row in good if row.durability in DURABILITY]
    if not known:
        return ""
    certain = [naming.name(row) for row in known if row.durability != "never"]
    if not certain:
        return (
            "After a crash of the machine none of these checkpoints is certain, unless your script "
            "flushes the files and their folder (os.fsync) itself."
        )
    if len(certain) == len(good):
        return "After a crash of the machine each of these checkpoints is certain."
    unsafe = [naming.name(row) for row in known if row.durability == "never"]
    unknown = [naming.name(row) for row in good if row not in known]
    said = f"After a crash of the machine only what {listed(certain)} wrote is certain"
    if unsafe:
        whose = "the others" if not unknown else listed(unsafe)
        said += f"; the files of {whose} have to be flushed by your script, and so has their"
        said += " folder (os.fsync)"
    if unknown:
        said += f"; of {listed(unknown)} it is not known"
    return f"{said}."


def _to_write(row: CostRow) -> str:
    if not row.has_lines:
        return ""
    method = row.method.partition("[")[0]
    command = f"ckptbench list methods --framework {row.framework} --how {method}"
    return f"{command} prints what to write in your script."


def _durable_s(row: CostRow) -> float:
    assert row.durable_s is not None
    return row.durable_s.value


def _stall_s(row: CostRow) -> float:
    assert row.stall_s is not None
    return row.stall_s.value
