"""The stage of experiment `drill`, which is that of `recovery` with another script."""

from harness.experiments.recovery.worker import STAGES

__all__ = ["STAGES"]
