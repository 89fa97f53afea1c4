"""The generated regions by name."""

from __future__ import annotations

from collections.abc import Callable

from harness.docs import (
    cells,
    commands,
    declared,
    gpu,
    layers,
    measured,
    published,
    recovered,
    reference,
    source,
    stopped,
    worth,
)

REGIONS: dict[str, Callable[..., str]] = {
    "columns": declared.columns,
    "commands": commands.commands,
    "cost": measured.cost,
    "deepfreeze-against-ceilings": measured.deepfreeze_against_ceilings,
    "deepfreeze-against-stock": measured.deepfreeze_against_stock,
    "every-way-back": recovered.every_way_back,
    "experiments": declared.experiments,
    "file": source.file,
    "frameworks": declared.frameworks,
    "goodput-cells": cells.goodput_cells,
    "gpu-cost": gpu.gpu_cost,
    "gpu-methods": gpu.gpu_methods,
    "gpu-parity": gpu.gpu_parity,
    "gpu-training": gpu.gpu_training,
    "import-rules": layers.import_rules,
    "method-declaration": declared.method_declaration,
    "methods": declared.methods,
    "not-bitwise": measured.not_bitwise,
    "parity": measured.parity,
    "published": published.compatible,
    "readme-table": measured.readme_table,
    "reference-runs": reference.reference_runs,
    "reshard": measured.reshard,
    "restores": recovered.restores,
    "scaling": measured.scaling,
    "sizes": measured.sizes,
    "source": source.source,
    "strategies": declared.strategies,
    "suite-keys": declared.suite_keys,
    "suites": declared.suites,
    "stopped": stopped.table_of_stopped_jobs,
    "struck": measured.struck,
    "struck-disks": measured.struck_disks,
    "struck-ranks": measured.struck_ranks,
    "ways-back": recovered.ways_back,
    "ways-back-in-short": recovered.ways_back_in_short,
    "drills": recovered.drills,
    "training": measured.training,
    "training-ranks": measured.training_ranks,
    "workloads": declared.workload_sizes,
    "worth": worth.worths,
}


def written(words: list[str]) -> str:
    """Return the Markdown of a region. Raises KeyError where no region has that name."""
    name, *arguments = words
    return REGIONS[name](*arguments)
