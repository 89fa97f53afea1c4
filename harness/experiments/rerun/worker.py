"""Training twice from the beginning, without any checkpoint."""

from __future__ import annotations

from harness.experiments.resume.worker import run_again, run_straight

STAGES = {"straight": run_straight, "again": run_again}
