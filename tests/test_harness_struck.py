"""A driver that is struck while it fills a run's folder loses no finished sample."""

from __future__ import annotations

import contextlib
import io
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from struck_harness import Recording, distinct_states, lines_of, record

from harness.cli import application
from harness.durability import trees
from harness.durability.crashes import CrashState


@dataclass(frozen=True)
class Answer:
    """The end of a command: its exit status, and all that it printed."""

    status: int
    text: str


def answer(*words: str) -> Answer:
    """Run a command in this process."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        patch.setattr(sys, "argv", ["ckptbench", *words])
        patch.setattr(application.signal, "signal", lambda *_: None)
        status = application.run()
    printed.seek(0)
    return Answer(status, printed.read())
