"""The costs of a checkpoint and of a failure to a training, in seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields

from harness.intervals.values import require_cost


@dataclass(frozen=True)
class Costs:
    """The costs of one checkpoint method in one training.

    `training_s` is what one checkpoint adds to the training: the stall, the slowdown of the steps
    meanwhile, and the wait for the checkpoint before. `lag_s` is how long after that the checkpoint
    becomes durable: a failure until then falls back to the one before. `detect_s`, `restart_s` and
    `restore_s` follow one another after a failure.
    """

    training_s: float
    lag_s: float = 0.0
    restore_s: float = 0.0
    restart_s: float = 0.0
    detect_s: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            require_cost(field.name, getattr(self, field.name))

    @property
    def recovery_s(self) -> float:
        """The time from a failure until the training goes on."""
        return self.detect_s + self.restart_s + self.restore_s
