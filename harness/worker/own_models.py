"""Models of the user's own: importing the function that makes one, and naming what it got wrong."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import random
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from adapters.base import Framework, UnusableModel

MODULE = "ckptbench_own_model"
"""The name under which the user's text is imported, so that it hides no other module."""


DIGEST_DIGITS = 8
LONGEST = 400
"""The longest message of an error that is shown whole, in characters."""


def digest_of(file: Path) -> str:
    """Return the first digits of the SHA-256 of a text."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:DIGEST_DIGITS]


def load(file: Path, function: str, digest: str | None = None) -> Callable[[], Any]:
    """Import the user's text, and return the function that makes the model.

    The text is run as a script is, with its own folder first on Python's path, but it is not
    called "__main__". Raise UnusableModel where it has no such function, or one that needs
    arguments, or where its digest is another one. Errors of the text itself pass through.
    """
    if digest is not None and digest_of(file) != digest:
        raise UnusableModel(f"{file.name} has changed since the run began; start a new run")
    found = getattr(_imported(file), function, None)
    if found is None:
        raise UnusableModel(f"{file.name} has no function {function!r}{_nearest(function)}")
    if not callable(found):
        raise UnusableModel(
            f"{file.name}: {function} is no function, but of type {type(found).__name__}"
        )
    needed = _needed_arguments(found)
    if needed:
        raise UnusableModel(
            f"{file.name}: {function} is called without arguments, and it needs {needed}"
        )
    made: Callable[[], Any] = found
    return made


def adopted(framework: Framework[Any], make: Callable[[], Any], seed: int) -> Any:
    """Return a framework's state of what `make` returns.

    Python's and numpy's random generators are seeded, so that every rank makes the same values. A
    framework seeds its own.
    """
    random.seed(seed)
    np.random.seed(seed)
    return framework.adopt(make, seed)


def sentence(error: BaseException, file: Path, function: str) -> str:
    """Return an error in one sentence that names the line of the user's text, where one is.

    Long messages are cut, such as one that shows a whole tensor.
    """
    text = _brief(str(error))
    if isinstance(error, UnusableModel):
        return text if text.startswith(file.name) else f"{file.name}:{_line_of(function)} {text}"
    described = f"{type(error).__name__}: {text}".removesuffix(": ")
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{file.name}:{error.lineno}: SyntaxError: {error.msg}"
    if isinstance(error, SystemExit):
        described = (
            "it ends the program while it is imported or called; put what only a script does "
            "below if __name__ == '__main__', and keep sys.exit and argparse out of the function"
        )
    if isinstance(error, ModuleNotFoundError):
        described += (
            f"; {sys.executable} lacks it, so install it there if that is your own, or name "
            "another interpreter with --python FRAMEWORK=PATH"
        )
    lines = lines_of(error, file)
    if lines:
        return f"{file.name}:{lines[-1]}: {described}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{file.name}:{function}: {described}{_where(frames)}"


def lines_of(error: BaseException, file: Path) -> list[int | None]:
    """Return the lines of the user's text through which an error came, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.lineno for frame in frames if frame.filename == str(file)]


def _brief(text: str) -> str:
    """Return a text in one line, without its end where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST].rstrip()} …"


def _line_of(function: str) -> str:
    """Return the line of a function of the imported text, and its name."""
    found = getattr(sys.modules.get(MODULE), function, None)
    code = getattr(found, "__code__", None)
    return f"{code.co_firstlineno}: {function}:" if code else f"{function}:"


def _imported(file: Path) -> ModuleType:
    """Return the module of a text, which is imported once in a process."""
    present = sys.modules.get(MODULE)
    if present is not None and present.__file__ == str(file):
        return present
    # As for a script, the folder of the text comes first. Names of this project are taken, though.
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(MODULE, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[MODULE]
        raise
    return module


def _nearest(function: str) -> str:
    """Return which function of the text may be meant; empty where none is near."""
    close = get_close_matches(function, vars(sys.modules[MODULE]), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _needed_arguments(function: Callable[..., Any]) -> str:
    """Return the names of the arguments without which a function cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # Functions of extensions need not have a signature.
        return ""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        repr(parameter.name)
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variable
    ]
    return " and ".join(needed)


def _where(frames: traceback.StackSummary) -> str:
    """Return the place of an error that no line of the user's text is part of."""
    if not frames:
        return ""
    last = frames[-1]
    return f" (in {Path(last.filename).name}:{last.lineno}, {last.name})"
