"""Models of the user's own: importing the function that makes one, and naming what it got wrong."""

from __future__ import annotations

import importlib.util
import inspect
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from adapters.base import Framework, Replicated, UnusableModel
from harness.wire.case import OwnModel
from harness.wire.own_text import digest_of
from harness.worker.verify import listed, sha256
from harness.worker.world import World

MODULE = "ckptbench_own_model"
"""The name under which the user's text is imported, so that it hides no other module."""

LONGEST = 400
"""The longest message of an error that is shown whole, in characters."""
_NOT_THE_USERS = frozenset({"__main__", "adapters", "harness", "workloads"})
"""The program and the packages of this project, whose folder may be that of the user's text."""


def require_recorded(model: OwnModel) -> None:
    """Raise UnusableModel where a model's text or modules are not those that the run recorded.

    A module that was imported later than in the first look is in no digest.
    """
    file = Path(model.file)
    unknown = [name for name in modules_of(file) if name not in model.modules]
    if unknown:
        raise UnusableModel(
            f"{file.name} has imported {' and '.join(unknown)} only now, so the digest of the run "
            f"lacks it; import it at the top of {file.name}"
        )
    if digest_of(file, model.modules) != model.digest:
        imported = f" or a module that it imports ({', '.join(model.modules)})"
        raise UnusableModel(
            f"{file.name}{imported if model.modules else ''} has changed since the run began; "
            "start a new run"
        )


def modules_of(file: Path) -> tuple[str, ...]:
    """Return the files that this process has imported below the folder of a user's text, in order.

    Neither the text itself is among them, nor what belongs to an interpreter that lies there, nor
    what a library has compiled into a temporary folder there.
    """
    folder = file.parent
    roots = map(Path, (sys.prefix, sys.base_prefix, tempfile.gettempdir()))
    left_out = [root for root in roots if folder in root.parents]
    names = set()
    for path in _imported_files():
        is_others = any(path.is_relative_to(root) for root in left_out)
        if path != file and path.is_relative_to(folder) and not is_others:
            names.add(path.relative_to(folder).as_posix())
    return tuple(sorted(names))


def load(file: Path, function: str) -> Callable[[], Any]:
    """Import the user's text, and return the function that makes the model.

    The text is run as a script is, with its own folder first on Python's path, but it is not
    called "__main__". Raise UnusableModel where it has no such function, or one that needs
    arguments. Errors of the text itself pass through.
    """
    found = getattr(_imported(file), function, None)
    if found is None:
        raise UnusableModel(f"{file.name} has no function {function!r}{_nearest(function)}")
    if isinstance(found, type):
        raise UnusableModel(
            f"{file.name}: {function} is a class; name a function that makes the model and returns "
            "it with its optimizer"
        )
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


def require_alike(framework: Framework[Any], state: Any, world: World) -> None:
    """Raise UnusableModel where ranks that should have the same values after a step do not.

    A checkpoint would hold the training of one rank alone. Every rank of the world calls this.
    """
    hashes = {
        leaf.name: sha256(leaf.data)
        for leaf in framework.leaves(state)
        if isinstance(leaf.placement, Replicated)
    }
    by_rank = world.all_gathered(hashes)
    differing = [name for name in hashes if len({each.get(name) for each in by_rank}) > 1]
    if differing:
        raise UnusableModel(
            f"after a step the {world.size} ranks have different values of {listed(differing)}, "
            "which every rank should have alike; let the step average over the ranks, and make all "
            "ranks begin with the same values"
        )


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


def _imported_files() -> Iterator[Path]:
    """Yield the files of this process's modules, but for those of this project."""
    for name, module in list(sys.modules.items()):
        # A lazy module may import others when it is asked for an attribute.
        spec = getattr(module, "__dict__", {}).get("__spec__")
        if spec is None or not spec.has_location:
            continue
        # multiprocessing gives the program another name, which its specification does not have.
        packages = {name.partition(".")[0], spec.name.partition(".")[0]}
        if packages.isdisjoint(_NOT_THE_USERS):
            yield Path(spec.origin)


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
    """Return which function of the text may be meant, or which ones it has."""
    names = vars(sys.modules[MODULE])
    close = get_close_matches(function, names, 1)
    if close:
        return f"; did you mean {close[0]!r}?"
    own = [
        name
        for name, value in names.items()
        if inspect.isfunction(value) and value.__module__ == MODULE
    ]
    return f"; it has {listed(own)}" if own else ""


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
