"""Experiment `rerun` in words, which are those of `resume`."""

from harness.experiments.resume.sentences import meaning

__all__ = ["meaning"]
