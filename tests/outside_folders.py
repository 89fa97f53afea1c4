"""Folders with adapters from outside, which tests write and change."""

from __future__ import annotations

from pathlib import Path

METHODS = """
framework = "raw"

[methods.one-pickle]
class = "pickled.one_file:OnePickle"
covers = "full"
format = "pickle"
description = "one pickled dictionary"
"""

CODE = """
import pickle
from pathlib import Path

from adapters.base import Method, Pending
from adapters.raw.framework import State


class OnePickle(Method[State]):
    def save(self, state: State, path: Path) -> Pending:
        path.write_bytes(pickle.dumps(state.leaves))
        return Pending()

    def load(self, state: State, path: Path) -> None:
        for name, leaf in pickle.loads(path.read_bytes()).items():
            state.leaves[name][...] = leaf
"""


def pickled(parent: Path, methods: str = METHODS, code: str = CODE, name: str = "pickled") -> Path:
    """Write a folder with a method of `raw`, and return it."""
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / "methods.toml").write_text(methods)
    (folder / "one_file.py").write_text(code)
    return folder
