"""A driver that is struck while it fills a run's folder loses no finished sample."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass

import pytest

from harness.cli import application


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
