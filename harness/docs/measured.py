"""Tables of results, from the rows of reference runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis import summary, tables, text
from harness.analysis.row import Row
from harness.analysis.runs import ReadRun
from harness.docs.markdown import folded, table
from harness.docs.reference import (
    NOT_STORED,
    frameworks,
    full_run,
    full_runs,
    machine_in_words,
    most_sampled,
    newest_full_run,
    packages,
)
from harness.docs.row_tables import (
    Choice,
    by_framework,
    cell,
    has_result,
    markdown_table,
    reasons,
    rows_where,
    sources,
    text_table,
    title,
)
from harness.driver import catalog
from harness.experiments.cost.rows import CostRow
from harness.experiments.faults.records import ON_DISK
from harness.experiments.faults.rows import FaultsRow

# An editor chooses what a page shows of a run: the columns that a first reader asks for, and in a
# short table one method of each kind. No trait of a method says which these are.
README_METHODS = ("torch-save", "safetensors", "dcp", "dcp-async", "deepfreeze", "deepfreeze-sync")
README_COLUMNS = (
    "method",
    "stall",
    "durable",
    "share of ceiling",
    "cold load",
    "bytes",
    "power-safe",
    "verified",
)
TRAINED_METHODS = {
    "pytorch": ("torch-save", "safetensors", "dcp", "dcp-async"),
    "jax": ("orbax", "orbax-async", "flax-msgpack", "safetensors"),
    "tensorflow": ("tf-checkpoint", "tf-checkpoint-async", "keras", "weights-h5"),
    "chainer": ("npz", "npz-raw", "snapshot-thread-copy", "multi-node-snapshot"),
}
SIZED_METHODS = {
    "pytorch": ("torch-save", "safetensors", "dcp", "deepfreeze"),
    "jax": ("orbax", "orbax-ocdbt-raw", "orbax-plain", "flax-msgpack"),
    "tensorflow": ("tf-checkpoint", "keras", "weights-h5", "saved-model"),
    "chainer": ("npz", "npz-raw", "hdf5", "hdf5-raw"),
}
DEEPFREEZE = ("deepfreeze", "deepfreeze-sync")
EVERY = 4  # steps between two checkpoints, in the tables of training


def readme_table() -> str:
    """Return a few methods and columns of the newest full run of PyTorch."""
    run = full_run("bench", "pytorch")
    chosen = rows_where(run, lambda row: _is_large_resnet(row) and row.method in README_METHODS)
    version = packages(run, "pytorch")["torch"]
    command = " ".join(run.stored.header["command"])
    source = f"PyTorch {version} on {machine_in_words(run)}; `{command}`, run `{run.name}`."
    return "\n\n".join([f"**{title(chosen)}**", markdown_table(chosen, README_COLUMNS), source])


def cost(framework: str) -> str:
    """Return everything on ResNet-50 of a framework's newest full run, and what it means."""
    run = full_run("bench", framework)
    chosen = rows_where(run, _is_large_resnet)
    version = packages(run, framework)
    parts = [
        f"### {framework}",
        f"**{title(chosen)}**",
        markdown_table(chosen),
        f"> {summary.meaning(chosen)}",
        *(f"> {note}" for note in reasons(chosen)),
        *summary.notes(run.rows, run.records),
        f"{_in_words(version)} on {machine_in_words(run)}; run `{run.name}`.",
    ]
    return "\n\n".join(parts)


def training() -> str:
    """Return what a checkpoint every few steps adds to the training, by framework."""
    columns = (
        "method",
        "overhead",
        "of training",
        "stall",
        "slowdown",
        "back-pressure",
        "unflushed",
        "n",
    )
    runs = {framework: full_run("train", framework) for framework in TRAINED_METHODS}
    chosen = {}
    for framework, run in runs.items():
        methods = (*TRAINED_METHODS[framework], *DEEPFREEZE)
        chosen[framework] = rows_where(run, _is_training(methods))
    return f"{by_framework(chosen, columns)}\n\n{sources(runs.values())}"


def training_ranks() -> str:
    """Return the overhead of a checkpoint on one rank and on two, by framework."""
    runs = {framework: full_run("train-ranks", framework) for framework in TRAINED_METHODS}
    lines = []
    for framework, run in runs.items():
        for method in (*TRAINED_METHODS[framework], *DEEPFREEZE):
            trained = rows_where(run, _is_training((method,)))
            overheads = {row.world: cell(row, "overhead") for row in trained}
            if overheads:
                one, two = (overheads.get(world, "–") for world in (1, 2))
                lines.append([framework, method, one, two])
    shown = table(("framework", "method", "one rank", "two ranks"), lines)
    return f"{shown}\n\n{sources(runs.values())}"


def scaling(framework: str) -> str:
    """Return the same state on one, two and four ranks of a framework."""
    columns = (
        "method",
        "ranks",
        "durable",
        "to one rank's",
        "share of ceiling",
        "n",
        "writers",
        "bytes",
    )
    run = full_run("scaling", framework)
    chosen = rows_where(run, lambda row: row.experiment == "cost" and not row.scale)
    return f"{markdown_table(chosen, columns)}\n\n{sources([run])}"


def sizes() -> str:
    """Return what the files hold of ResNet-50, by framework."""
    runs = {framework: full_run("sizes", framework) for framework in SIZED_METHODS}
    chosen = {}
    for framework, run in runs.items():
        methods = SIZED_METHODS[framework]
        chosen[framework] = rows_where(run, _is_of("resnet50", methods))
    return f"{by_framework(chosen)}\n\n{sources(runs.values())}"


def parity() -> str:
    """Return the tables of the newest run of the suite parity."""
    run = newest_full_run("parity")
    parts = []
    for heading, rows in tables.by_workload(run.rows).items():
        parts += [f"**{heading}**", markdown_table(rows)]
    return "\n\n".join([*parts, sources([run])])


def reshard() -> str:
    """Return which checkpoints of two ranks other numbers of ranks can load, by method."""
    run = newest_full_run("reshard")
    known = catalog.frameworks()
    cells: dict[tuple[str, str], dict[tuple[bool, int], str]] = {}
    for row in run.rows:
        divided = known[row.framework].strategies[row.strategy].sharded
        verdicts = cells.setdefault((row.framework, row.method), {})
        verdicts[divided, row.load_world] = cell(row, "whole")
    worlds = ((False, 1), (False, 4), (True, 1), (True, 4))
    lines = []
    for (framework, method), verdicts in cells.items():
        lines.append([framework, method, *(verdicts.get(world, "–") for world in worlds)])
    headings = ("framework", "method", "to 1 rank", "to 4", "divided, to 1 rank", "divided, to 4")
    shown = folded("Every method", table(headings, lines))
    return f"{shown}\n\n{sources([run])}"


def struck() -> str:
    """Return the worst verdict of each kind of strike, of every method and store."""
    runs = full_runs("faults")
    columns = (
        *("method", "steps", "kill", "power loss", "error", "damage", "SIGTERM", "predicted"),
        *("next save fails", "left behind"),
    )
    chosen = {run.rows[0].framework: rows_where(run, has_result) for run in runs}
    return (
        f"{_tried(chosen)}\n\n{by_framework(chosen, columns)}\n\n{_not_struck(runs)}{sources(runs)}"
    )


def _tried(chosen: Mapping[str, Sequence[FaultsRow]]) -> str:
    """Return how many struck states have a verdict, and how many saves were really killed."""
    rows = [row for rows in chosen.values() for row in rows]
    states = sum(len(row.struck) for row in rows)
    directories = sum(row.states or 0 for row in rows)
    kills = sum(row.real_kills or 0 for row in rows)
    predicted = sum(row.as_predicted or 0 for row in rows)
    return (
        f"{states:,} struck states of {len(rows)} methods and stores have a verdict. Many leave "
        f"equal files: {directories:,} directories were loaded. {predicted} of {kills} real kills "
        "left what was predicted."
    )


def _not_struck(runs: Sequence[ReadRun]) -> str:
    """Return why methods have no row in a table, as quotations; empty where all have one."""
    lines = []
    for run in runs:
        lines += reasons(rows_where(run, lambda row: not has_result(row)))
    return "".join(f"> {line}\n\n" for line in lines)


def struck_ranks() -> str:
    """Return what is left when one of two ranks is killed in a save, of every method and store."""
    runs = full_runs("faults-ranks")
    if not runs:
        return NOT_STORED
    columns = (
        *("method", "kills", "changes", "what is left", "the other rank", "raised after"),
        "hung for at least",
    )
    chosen = {run.rows[0].framework: rows_where(run, has_result) for run in runs}
    return f"{by_framework(chosen, columns)}\n\n{_not_struck(runs)}{sources(runs)}"


def struck_disks() -> str:
    """Return what power losses leave by the promises of POSIX, and on each real file system."""
    runs = full_runs("faults-disks")
    if not runs:
        return NOT_STORED
    columns = ("method", "power loss", *(f"on {name}" for name in ON_DISK))
    chosen = {run.rows[0].framework: rows_where(run, has_result) for run in runs}
    rows = [row for rows in chosen.values() for row in rows]
    losses = sum(sum((row.losses_on_disks or {}).values()) for row in rows)
    left = sum(strike["strike"] in ON_DISK.values() for row in rows for strike in row.struck)
    tried = (
        f"{losses:,} power losses were built of the block writes of {len(rows)} methods. Many "
        f"leave equal files: {left:,} directories have a verdict."
    )
    ranges = _writes_and_losses(rows)
    verdicts = by_framework(chosen, columns)
    return f"{tried}\n\n{ranges}\n\n{verdicts}\n\n{_not_struck(runs)}{sources(runs)}"


def _writes_and_losses(rows: Sequence[FaultsRow]) -> str:
    """Return what each file system wrote during a save, and how many power losses were built."""
    writes = [row.block_writes or {} for row in rows]
    losses = [row.losses_on_disks or {} for row in rows]
    lines = [[kind, _range(kind, writes), _range(kind, losses)] for kind in ON_DISK]
    return table(("file system", "block writes of a save", "power losses tried"), lines)


def _range(kind: str, counts: Sequence[Mapping[str, int]]) -> str:
    """Return the least and the most that any row has of a file system."""
    numbers = [count[kind] for count in counts if kind in count]
    return f"{min(numbers)} to {max(numbers)}" if numbers else text.NOTHING


def not_bitwise() -> str:
    """Return every killed or repeated training that did not go on bit by bit."""
    runs = full_runs("resume")
    lines = []
    for run in runs:
        for row in rows_where(run, lambda row: row.bitwise is False):
            cells = text_table([row]).iloc[0]
            differs = [cells["resumed"], cells["first"], cells["at the end"]]
            lines.append([row.framework, row.workload, cells["method"], str(row.world), *differs])
    headings = ("framework", "workload", "method", "ranks", "resumed", "first", "at the end")
    shown = folded(f"{len(lines)} cases", table(headings, lines))
    return f"{shown}\n\n{sources(runs)}"


def deepfreeze_against_stock() -> str:
    """Return DeepFreeze's durable time beside the fastest other method's, and on more ranks."""
    lines = []
    runs = []
    for framework in frameworks("scaling"):
        bench, ranks = full_run("bench", framework), full_run("scaling", framework)
        costs = {row.method: row for row in rows_where(bench, _is_large_resnet)}
        fastest = min(filter(_is_whole_stock, costs.values()), key=_durable_s)
        ours = costs[DEEPFREEZE[1]]
        slowdowns = _slowdowns(ranks, DEEPFREEZE[1])
        durable = [text.spread_duration(row.durable_s) for row in (fastest, ours)]
        lines.append([framework, fastest.method, *durable, *slowdowns])
        runs += [bench, ranks]
    headings = (
        "framework",
        "fastest stock method",
        "durable",
        DEEPFREEZE[1],
        "two ranks to one",
        "four ranks to one",
    )
    return f"{table(headings, lines)}\n\n{sources(runs)}"


def deepfreeze_against_ceilings() -> str:
    """Return DeepFreeze's saves, loads and stalls in ceilings, from its longest runs."""
    lines = []
    runs = []
    for framework in frameworks("bench"):
        run = most_sampled("bench", framework, DEEPFREEZE[1])
        costs = {row.method: row for row in rows_where(run, _is_large_resnet)}
        background, blocking = (costs[method] for method in DEEPFREEZE)
        stall = f"{text.share(background.stall_copies)} copies"
        lines.append(
            [
                framework,
                text.share(blocking.write_efficiency),
                cell(blocking, "n"),
                text.share(blocking.read_efficiency),
                f"{stall}, {text.duration(background.stall_s)}",
                cell(background, "n"),
                text.duration(background.open_s),
            ]
        )
        runs.append(run)
    headings = ("framework", "durable", "n", "load", "stall", "n", "open")
    return f"{table(headings, lines)}\n\n{sources(runs)}"


def _is_large_resnet(row: Row) -> bool:
    return row.experiment == "cost" and row.workload == "resnet50" and row.preset == "full"


def _is_training(methods: Sequence[str]) -> Choice:
    def is_chosen(row: Row) -> bool:
        return row.experiment == "train" and row.every == EVERY and row.method in methods

    return is_chosen


def _is_of(workload: str, methods: Sequence[str]) -> Choice:
    return lambda row: row.workload == workload and row.method in methods


def _is_whole_stock(row: CostRow) -> bool:
    """Return whether a row is a checkpoint of the whole state by a framework's method.

    It is verified, and nothing is known against its numbers.
    """
    return row.is_clean and row.verified and row.covers == "full" and row.method not in DEEPFREEZE


def _durable_s(row: CostRow) -> float:
    assert row.durable_s is not None
    return row.durable_s.value


def _slowdowns(run: ReadRun, method: str) -> list[str]:
    """Return a method's durable time on two and on four ranks, over that on one."""
    scaled = rows_where(run, lambda row: row.method == method and not row.scale)
    shown = text_table(scaled)
    return [str(cell) for cell in shown["to one rank's"][1:]]


def _in_words(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
