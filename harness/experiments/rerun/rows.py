"""The rows of experiment `rerun`, which are those of `resume` without a method."""

from harness.experiments.resume.rows import ResumeRow, rows

__all__ = ["ResumeRow", "rows"]
