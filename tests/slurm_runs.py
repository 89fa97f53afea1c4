"""The command lines and files of runs that Slurm measures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT, planned

from harness.driver import slurm

SMOKE = (
    "smoke",
    "--framework",
    "raw",
    "--method",
    "buffered",
    "--workload",
    "resnet50",
    "--launcher",
    "slurm",
)


# Some sites let jobs begin with an empty environment. Here srun hands on the one variable by which
# its commands find the cluster.
NO_EXPORT = {"SLURM_EXPORT_ENV": "SLURM_CONF"}


def site_file(folder: Path, text: str) -> Path:
    path = folder / "site.toml"
    path.write_text(text)
    return path


def on_nodes(nodes: int, *worlds: int, device: str = "cpu") -> list:
    return slurm.spread(
        [planned(world=world, launcher="slurm", device=device) for world in worlds], nodes
    )


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness.cli", *arguments]


def ckptbench(
    *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    variables = os.environ | (environment or {})
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
