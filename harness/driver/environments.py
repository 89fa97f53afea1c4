"""The virtual environments of the frameworks, whose pinned versions exclude each other."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

from harness.driver import pins
from harness.driver.declarations import IN, REQUIREMENTS, FrameworkEntry
from harness.driver.paths import program
from harness.run.errors import UsageError, nearest

STAMP = "ckptbench.json"
OLDEST_PYTHON = (3, 11)
_SHOWN_LINES = 5  # of pip's output in an error
_PROBE_TIMEOUT_S = 60  # an interpreter on a cold network file system takes its time

OnLine = Callable[[str], None]
State = Literal["ready", "outdated", "missing", "external"]


@dataclass(frozen=True)
class Environment:
    """The present state of an environment, which has the name of its framework.

    One for methods with packages of their own is called FRAMEWORK+NAME. An outdated one was made
    for other pins or another Python, or was not finished.
    """

    name: str
    interpreter: Path
    state: State


def parse_overrides(pairs: Iterable[str]) -> dict[str, Path]:
    """Return interpreters such as `["pytorch=/path/to/python"]` as a dictionary.

    A bare name that is no file here is looked for on the path, as a shell does. Links stay
    unresolved, because the folder of a link decides the environment.
    """
    overrides: dict[str, Path] = {}
    for pair in pairs:
        framework, separator, path = pair.partition("=")
        if not (framework and separator and path):
            raise UsageError(
                "--python must be FRAMEWORK=PATH, such as pytorch=/opt/torch/bin/python, "
                f"not {pair!r}"
            )
        if framework in overrides:
            raise UsageError(f"--python names an interpreter for {framework!r} twice")
        overrides[framework] = program(path)
    return overrides


class Environments:
    """The managed environments, and the interpreters that the user named instead.

    The managed ones lie under `root`, and adapters/FRAMEWORK/requirements.txt is what they hold.
    Where these requirements are not the usual ones, the environment is called FRAMEWORK-HASH, so
    that both stay. Methods with packages of their own run in an environment FRAMEWORK+NAME, which
    holds the framework's requirements and those packages.
    """

    def __init__(
        self,
        root: Path,
        adapters: Path,
        overrides: Mapping[str, Path],
        pinned: Mapping[str, str] | None = None,
        usual: Path | None = None,
        known: Iterable[FrameworkEntry] = (),
    ) -> None:
        """Take the folders, interpreters by framework, and pins that replace those of adapters.

        `pinned` holds requirements by package, such as `{"torch": "torch==2.12.*"}`. `usual` is the
        folder of adapters whose requirements are the usual ones, if it is not `adapters`. `known`
        are the declarations, which may add frameworks from outside, and environments of methods.
        Raise UsageError for an unknown framework.
        """
        self.root = root.absolute()
        self.adapters = adapters.absolute()
        self.overrides = dict(overrides)
        self.pinned = dict(pinned or {})
        self.usual = (usual or adapters).absolute()
        self._outside: dict[str, Path] = {}
        self._added: dict[str, tuple[str, ...]] = {}
        for entry in known:
            if entry.origin:
                self._outside[entry.name] = entry.folder
            for name, table in entry.environments.items():
                self._added[f"{entry.name}{IN}{name}"] = table.requirements
        for framework in self.overrides:
            self._require(framework)

    def named(self) -> list[str]:
        """Return the interpreters that the user named, as `parse_overrides` takes them.

        Their paths are whole, because a later shell may find another one under the same name.
        """
        return [f"{framework}={path}" for framework, path in self.overrides.items()]

    def interpreter(self, framework: str, on_line: OnLine = lambda line: None) -> Path:
        """Return the interpreter of a framework, or of an environment FRAMEWORK+NAME.

        A managed environment is made first where it is missing or outdated.
        """
        self._require(framework)
        own = self._override(framework)
        if own is not None:
            check_interpreter(framework, own)
            return own
        self.create(framework, on_line)
        return self._python(framework)

    def create(self, framework: str, on_line: OnLine) -> None:
        """Make the managed environment where it is not ready, and pass pip's lines to `on_line`.

        Raise UsageError with pip's last lines where that fails. The whole log lies beside the
        environment.
        """
        self._require(framework)
        if self._ready(framework):
            return
        self.root.mkdir(parents=True, exist_ok=True)
        with _locked(self._beside(framework, "lock")) as lock:
            # Another process may have made it while this one waited.
            if not self._ready(framework):
                self._make(framework, on_line, lock)

    def listing(self) -> list[Environment]:
        """Return every framework's environment, without making any."""
        return [self._described(framework) for framework in self._frameworks()]

    def _frameworks(self) -> list[str]:
        here = [path.parent.name for path in self.adapters.glob(f"*/{REQUIREMENTS}")]
        return sorted([*here, *self._outside, *self._added])

    def _override(self, name: str) -> Path | None:
        """Return the user's own interpreter for an environment.

        One for a framework holds for all of its methods, because the user's build of the framework
        is what is to be measured.
        """
        framework = name.partition(IN)[0]
        return self.overrides.get(name) or self.overrides.get(framework)

    def _require(self, framework: str) -> None:
        if framework not in self._frameworks():
            raise nearest("framework", framework, self._frameworks())

    def _described(self, framework: str) -> Environment:
        own = self._override(framework)
        if own is not None:
            return Environment(framework, own, "external")
        return Environment(framework, self._python(framework), self._state(framework))

    def _state(self, framework: str) -> State:
        if self._ready(framework):
            return "ready"
        return "outdated" if self._folder(framework).exists() else "missing"

    def _folder(self, framework: str) -> Path:
        content = self.requirements(framework)
        if content == self._usual_requirements(framework):
            return self.root / framework
        return self.root / f"{framework}-{_digest(content)[:12]}"

    def _beside(self, framework: str, suffix: str) -> Path:
        return self.root / f"{self._folder(framework).name}.{suffix}"

    def _requirements_file(self, framework: str) -> Path:
        """Return the file that pip reads. With other or more pins, it is written first."""
        if not self.pinned and framework not in self._added:
            return self._file_of(framework, self.adapters)
        file = self._beside(framework, "txt")
        file.write_text(self.requirements(framework), encoding="utf-8")
        return file

    def requirements(self, framework: str) -> str:
        """Return the requirements of a managed environment."""
        text = self._with_added(framework, self._file_of(framework, self.adapters))
        return pins.replaced(text, self.pinned) if self.pinned else text

    def _usual_requirements(self, name: str) -> str | None:
        """Return what the environment usually holds; None for a framework that is not usual."""
        file = self._file_of(name, self.usual)
        return self._with_added(name, file) if file.is_file() else None

    def _file_of(self, name: str, adapters: Path) -> Path:
        """Return the requirements of an environment's framework."""
        framework = name.partition(IN)[0]
        return self._outside.get(framework, adapters / framework) / REQUIREMENTS

    def _with_added(self, name: str, file: Path) -> str:
        """Return the requirements in a file, and those that an environment adds."""
        text = file.read_text(encoding="utf-8")
        if name not in self._added:
            return text
        lines = [text.rstrip("\n"), f"# of the methods of {name}", *self._added[name]]
        return "".join(f"{line}\n" for line in lines)

    def _python(self, framework: str) -> Path:
        return self._folder(framework) / "bin" / "python"

    def _ready(self, framework: str) -> bool:
        try:
            stamp = (self._folder(framework) / STAMP).read_text(encoding="utf-8")
        except OSError:
            return False
        return stamp == self._expected_stamp(framework) and self._python(framework).exists()

    def _expected_stamp(self, framework: str) -> str:
        requirements = _digest(self.requirements(framework))
        return json.dumps({"requirements": requirements, "python": platform.python_version()})

    def _make(self, framework: str, on_line: OnLine, lock: int) -> None:
        """Make the environment from nothing.

        The stamp is written last, so that the next call starts again after any interruption.
        """
        # It is computed before pip reads the pins, because an edit meanwhile makes them outdated.
        stamp = self._expected_stamp(framework)
        folder = self._folder(framework)
        requirements = self._requirements_file(framework)
        if folder.exists():
            shutil.rmtree(folder)
        pip = [
            str(self._python(framework)),
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-input",
        ]
        install = [*pip, "--requirement", str(requirements)]
        # The pins hold for the packages that pip builds with, too, because an old source package
        # may not build with the newest setuptools.
        constraints = self._beside(framework, "constraints.txt")
        pinned_here = pins.without_extras(requirements.read_text(encoding="utf-8"))
        constraints.write_text(pinned_here, encoding="utf-8")
        pinned = os.environ | {
            "PIP_CONSTRAINT": str(constraints),
            "PIP_BUILD_CONSTRAINT": str(constraints),
        }
        venv = [sys.executable, "-m", "venv", str(folder)]
        with self._beside(framework, "log").open("w", encoding="utf-8") as log:
            _run(framework, venv, log, on_line, lock, os.environ)
            _run(framework, install, log, on_line, lock, pinned)
        _write_atomically(folder / STAMP, stamp)


def _run(
    framework: str,
    argv: list[str],
    log: TextIO,
    on_line: OnLine,
    lock: int,
    variables: Mapping[str, str],
) -> None:
    """Run one command and pass each of its lines on.

    Raise UsageError with the last lines where it fails. The command holds the lock too, because pip
    can go on for a while after this process was killed, and nobody else may begin before.
    """
    last: deque[str] = deque(maxlen=_SHOWN_LINES)
    with subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=(lock,),
        env=variables,
    ) as process:
        for line in process.stdout or ():
            log.write(line)
            last.append(line.rstrip())
            on_line(line.rstrip())
    if process.returncode != 0:
        shown = "\n".join(last)
        raise UsageError(
            f"could not make the environment of {framework} (the whole log is {log.name}):\n{shown}"
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write_atomically(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold an exclusive lock on a file and yield its descriptor.

    It lasts until the last process that inherited it ends.
    """
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


@functools.cache
def check_interpreter(framework: str, path: Path) -> None:
    """Raise UsageError unless `path` runs and is a Python that the worker supports.

    One that is good is not asked again, because a run asks before every job.
    """
    subject = f"the interpreter for {framework}, {path},"
    if not path.exists():
        raise UsageError(f"{subject} does not exist")
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise UsageError(f"{subject} is not an executable file")
    version = _python_version(path)
    if version is None:
        raise UsageError(f"{subject} is not a working Python")
    if version < OLDEST_PYTHON:
        raise UsageError(
            f"{subject} is Python {_dotted(version)}, and {_dotted(OLDEST_PYTHON)} is needed"
        )


def _python_version(path: Path) -> tuple[int, int] | None:
    argv = [str(path), "-c", "import sys; print(sys.version_info[0], sys.version_info[1])"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True
        )
        major, minor = done.stdout.split()
        return int(major), int(minor)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(str(part) for part in version)
