"""Models of the user's own: finding one, and building it once before anything is measured."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.driver import descendants, launch, outside
from harness.driver.declarations import REQUIREMENTS, FrameworkEntry
from harness.driver.paths import expanded
from harness.run.errors import UsageError
from harness.wire.case import OwnModel
from harness.wire.own_text import digest_of

_LOOK_TIMEOUT_S = 1800.0
_SHOWN_LINES = 3
_LONG_IMPORT_S = 20.0  # TensorFlow alone takes longer than 5 s


NOT_BUILT = OwnModel(file="", function="", digest="", state_bytes=0)
"""Stands for a model in a plan that is made only to find mistakes."""


@dataclass(frozen=True)
class Named:
    """A model as the command line names it: a file, and the function in it that makes the model."""

    file: Path
    function: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.function}"


def named(text: str) -> Named:
    """Read "FILE.py:FUNCTION". Raise UsageError where it is something else, or no file."""
    path, separator, function = text.rpartition(":")
    if not (separator and function.isidentifier() and path.endswith(".py")):
        raise UsageError(
            "--model must be FILE.py:FUNCTION, such as train.py:make, where the function returns "
            f"your model as docs/own-models.md says, not {text!r}"
        )
    file = expanded(path)
    if not file.is_file():
        raise UsageError(f"--model: there is no file {file}")
    return Named(file, function)


def looked_at(
    model: Named,
    framework: FrameworkEntry,
    interpreter: Path,
    device: str,
    methods: Mapping[str, str] | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> OwnModel:
    """Build a model once in its framework's interpreter, and return what a plan needs of it.

    The model takes one step there. `methods` has the class paths of those that will be measured.
    `warn` is told what the interpreter lacks for some of them, and of a long import. Raise
    UsageError with one sentence where the model cannot be built, or where the framework cannot
    measure it.
    """
    with tempfile.TemporaryDirectory(prefix="ckptbench-") as folder:
        request = Path(folder) / "request.json"
        answer = Path(folder) / "answer.json"
        asked = {
            "file": str(model.file),
            "function": model.function,
            "framework": framework.class_path,
            "device": device,
            "folder": folder,
            "methods": dict(methods or {}),
        }
        request.write_text(json.dumps(asked), encoding="utf-8")
        argv = [str(interpreter), "-m", "harness.worker.first_look", str(request), str(answer)]
        last_lines = _run(argv, Path(folder), model)
        if not answer.exists():
            raise UsageError(f"{model} could not be built: {last_lines}")
        found = json.loads(answer.read_text(encoding="utf-8"))
    if "missing" in found:
        raise UsageError(
            f"{interpreter} lacks the module {found['missing']!r}, which ckptbench needs there to "
            f"measure {framework.name}; install it, and what else "
            f"{framework.folder / REQUIREMENTS} lists"
        )
    if "error" in found:
        raise UsageError(found["error"])
    if found["import_s"] > _LONG_IMPORT_S:
        warn(
            f"importing {model.file.name} took {found['import_s']:.0f} s, and every process of the "
            'run imports it; if it trains there, put that below `if __name__ == "__main__":`'
        )
    for module, names in _by_module(found["lacking"]).items():
        verb = "needs" if len(names) == 1 else "need"
        warn(f"{interpreter} lacks the module {module!r}, which {' and '.join(names)} {verb}")
    # Only the process that built the model knows what it imported, so the digest comes last. Where
    # a text was edited in between, the workers measure what the digest names.
    modules = tuple(found["modules"])
    return OwnModel(
        file=str(model.file),
        function=model.function,
        digest=digest_of(model.file, modules),
        state_bytes=found["state_bytes"],
        modules=modules,
    )


def require_unchanged(model: OwnModel) -> None:
    """Raise UsageError where the text of a run's model is another than when the run began."""
    file = Path(model.file)
    for needed in (file, *(file.parent / name for name in model.modules)):
        if not needed.is_file():
            raise UsageError(
                f"the run measures {model.workload}, and {needed} is no longer there; put it back, "
                "or start a new run"
            )
    if digest_of(file, model.modules) != model.digest:
        imported = f" or a module that it imports ({', '.join(model.modules)})"
        raise UsageError(
            f"{file}{imported if model.modules else ''} has changed since the run began, and its "
            "samples would be mixed with others; start a new run"
        )


def _by_module(lacking: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the methods that need each module."""
    methods_of: dict[str, list[str]] = {}
    for method, module in lacking.items():
        methods_of.setdefault(module, []).append(method)
    return methods_of


def _run(argv: list[str], folder: Path, model: Named) -> str:
    """Run a command to its end, and return why it may have failed."""
    log = folder / "log"
    try:
        # It is a file, because a process that the text leaves behind would keep a pipe open.
        with descendants.adopted() as others, log.open("w", encoding="utf-8") as stream:
            try:
                done = subprocess.run(
                    [*launch.tied_to_parent("local"), *argv],
                    env=launch.environment(folder, added=outside.link_into(folder / "outside")),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    timeout=_LOOK_TIMEOUT_S,
                    check=False,
                    start_new_session=True,
                )
            finally:
                # What the text leaves behind would run beside everything that is measured.
                descendants.end_strays(others)
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"{model} was not built within {_LOOK_TIMEOUT_S / 60:.0f} minutes; leave training and "
            "downloads out of the function"
        ) from error
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = text.strip().splitlines()[-_SHOWN_LINES:]
    ended = f"exit status {done.returncode}"
    if done.returncode < 0:
        ended = f"signal {signal.Signals(-done.returncode).name}"
    if done.returncode == -signal.SIGKILL:
        ended += ", perhaps because memory ran out"
    shown = " | ".join(line.strip() for line in lines) or "it printed nothing"
    return f"its process ended with {ended} ({shown})"
