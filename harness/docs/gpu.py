"""Tables of the reference runs on a GPU.

These runs were cut short, because such a machine was there for half an hour. So a table shows what
was measured to the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from harness.analysis import text
from harness.analysis.row import Wanted
from harness.analysis.runs import ReadRun
from harness.docs.markdown import table
from harness.docs.reference import gpu_runs, newest_full_run
from harness.docs.row_tables import (
    Choice,
    by_framework,
    framework_of,
    has_result,
    packages_and_sources,
    rows_where,
    text_table,
)
from harness.experiments.parity import rows as parity_rows
from harness.experiments.parity.records import TrajectoryRecord
from harness.experiments.parity.rows import ParityRow

_PARITY = "parity"
# The LLM slice has the text of Python's library, which differs between the two machines.
_WITH_SAME_DATA = ("resnet50", "candle-mlp")
_ORDER = ("pytorch", "jax", "raw")
_VERDICTS = {True: "yes", False: "no", None: "not measured"}
_COST_COLUMNS = (
    *("method", "stall", "in transfers", "durable", "share of ceiling", "n", "cold load"),
    *("GPU memory", "verified"),
)
_TRAINING_COLUMNS = (
    *("method", "step", "overhead", "stall", "in transfers", "slowdown", "back-pressure", "n"),
)

_PARITY_COLUMNS = (
    *("framework", "workload", "precision", "forward", "one step", "ten losses", "same state"),
)


def gpu_cost() -> str:
    """Return what checkpoints of the full ResNet-50 cost on a GPU, by framework."""
    runs = _runs_with(_is_large_cost)
    lines = []
    for run in runs:
        rows = rows_where(run, _is_large_cost)
        # JAX does not count the GPU's memory, so its table has no such column.
        shown = text_table(rows).reindex(columns=list(_COST_COLUMNS), fill_value=text.NOTHING)
        for row, cells in zip(rows, shown.to_numpy().tolist(), strict=True):
            lines.append([framework_of(run), *cells, text.share(row.read_efficiency)])
    headings = ("framework", *_COST_COLUMNS, "load, share of the disk's ceiling")
    return f"{table(headings, lines)}\n\n{packages_and_sources(runs)}"


def gpu_training() -> str:
    """Return what a checkpoint every few steps adds to the training, for each run on a GPU."""
    runs = _runs_with(_is_training)
    chosen: dict[str, list[Any]] = {}
    for run in runs:
        chosen.setdefault(_framework_and_gpu(run), []).extend(rows_where(run, _is_training))
    return f"{by_framework(chosen, _TRAINING_COLUMNS)}\n\n{packages_and_sources(runs)}"


def gpu_methods() -> str:
    """Return which methods gave every byte back on a GPU, and after which training went on alike.

    A method may be tried on several workloads. It counts where it held on all of them.
    """
    runs = _runs_with(_is_tried)
    saved: dict[tuple[str, str], bool] = {}
    resumed: dict[tuple[str, str], bool] = {}
    for run in runs:
        for row in rows_where(run, _is_tried):
            held = saved if row.experiment == "cost" else resumed
            holds = row.verified if row.experiment == "cost" else bool(row.bitwise)
            method = (row.framework, row.method)
            held[method] = held.get(method, True) and holds
    tried = saved | resumed
    lines = []
    for framework, name in sorted(tried, key=lambda method: _ORDER.index(method[0])):
        method = (framework, name)
        verdicts = [_VERDICTS[held.get(method)] for held in (saved, resumed)]
        lines.append([framework, f"`{name}`", *verdicts])
    headings = ("framework", "method", "verified", "goes on bit by bit after a kill")
    return f"{table(headings, lines)}\n\n{packages_and_sources(runs)}"


def gpu_parity() -> str:
    """Return how far training on a GPU is from the same framework's training on the CPU."""
    on_cpu = newest_full_run(_PARITY)
    runs = _runs_with(lambda row: row.experiment == _PARITY)
    cpu_trajectories = dict(_trajectories(on_cpu))
    compared = []
    for run in runs:
        rows = {_identity(row): row for row in run.rows if isinstance(row, ParityRow)}
        for identity, trajectory in _trajectories(run):
            if rows[identity].workload not in _WITH_SAME_DATA:
                continue
            row = dataclasses.replace(rows[identity])
            parity_rows.compare(row, trajectory, {"cpu": cpu_trajectories[identity]})
            compared.append(row)
    shown = text_table(compared)
    shown.insert(1, "precision", [row.precision for row in compared])
    shown.insert(1, "workload", [row.workload for row in compared])
    lines = shown[list(_PARITY_COLUMNS)].to_numpy().tolist()
    of_gpu = packages_and_sources(runs)
    return f"{table(_PARITY_COLUMNS, lines)}\n\n{of_gpu} The CPU's steps: `{on_cpu.name}`."


def _trajectories(run: ReadRun) -> Iterator[tuple[tuple[str, ...], TrajectoryRecord]]:
    for item in run.stored.plan:
        trajectory = parity_rows.trajectory(Wanted.of(item), run.records)
        if trajectory is not None:
            yield _identity(item.case), trajectory


def _identity(of: Any) -> tuple[str, ...]:
    return (of.framework, of.workload, of.precision)


def _runs_with(is_chosen: Choice) -> list[ReadRun]:
    return [run for run in gpu_runs() if any(is_chosen(row) for row in run.rows)]


def _is_large_cost(row: Any) -> bool:
    is_large = row.workload == "resnet50" and row.preset == "full"
    return is_large and row.experiment == "cost" and has_result(row)


def _is_training(row: Any) -> bool:
    return row.experiment == "train" and has_result(row)


def _is_tried(row: Any) -> bool:
    was_measured = row.status in ("ok", "failed") and not getattr(row, "ablated", "")
    return was_measured and row.experiment in ("cost", "resume") and row.preset == "small"


def _framework_and_gpu(run: ReadRun) -> str:
    return f"{framework_of(run)}, {run.stored.manifest.gpus[0].removeprefix('NVIDIA ')}"
