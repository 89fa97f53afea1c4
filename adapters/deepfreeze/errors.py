"""The errors that are DeepFreeze's own. All others come from the operating system or the device."""

from __future__ import annotations


class CommitFailed(OSError):
    """Another rank could not write its share, so that no rank has a checkpoint."""


class Damaged(Exception):
    """A checkpoint does not hold the bytes that were saved.

    The message names the file, and the tensor if the damage lies in one.
    """


class Unfitting(Exception):
    """A checkpoint holds the tensors of another state. The message names the tensor."""
