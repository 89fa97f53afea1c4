"""The error with which the gate ends."""

from __future__ import annotations

# As `env` and `timeout` end.
GATE_FAILED = 125
CANNOT_START = 126
NOT_FOUND = 127


class GateError(Exception):
    """The gate cannot run the command, or cannot go on. The message says why."""

    def __init__(self, reason: str, status: int = GATE_FAILED) -> None:
        super().__init__(reason)
        # the exit status of the gate
        self.status = status
