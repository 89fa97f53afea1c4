"""Adapters from outside this project: folders that the user names, and installed packages.

Such a folder is a Python package with its declaration beside the code. A file `adapter.toml`
declares a framework, which has the name of the folder, and a file `methods.toml` adds methods to a
known framework. An installed package names its folder by an entry point of the group
`ckptbench.adapters`, whose value is the name of the package. Nothing of a folder is imported here.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from harness.driver.paths import expanded
from harness.run.errors import UsageError

GROUP = "ckptbench.adapters"
_DIGEST_DIGITS = 12
_OF_THIS_PROJECT = frozenset({"adapters", "harness", "workloads"})


@dataclass(frozen=True)
class Outside:
    """One folder of outside code, and the version of the package that brought it, if one did."""

    folder: Path
    version: str = ""

    @property
    def name(self) -> str:
        """The name under which the folder is imported."""
        return self.folder.name

    @functools.cached_property
    def label(self) -> str:
        """The name, version and digest of the code, such as "my_engine 1.0 (0123456789ab)"."""
        words = [self.name, self.version, f"({_digest(self.folder)})"]
        return " ".join(word for word in words if word)

    def require_class(self, class_path: str, where: str) -> None:
        """Raise UsageError where the folder does not define a class such as "my_engine.file:Name".

        `where` names the declaration.
        """
        module, _, name = class_path.partition(":")
        package, *parts = module.split(".")
        if package != self.name:
            raise UsageError(
                f"{where}: class: {class_path!r} is not in the folder, so it must begin with "
                f"{self.name}."
            )
        file = self._file(parts)
        if file is None:
            raise UsageError(f"{where}: class: {self.folder} has no module {module}")
        if name not in _names_in(file):
            raise UsageError(f"{where}: class: {file} has no class {name}")

    def _file(self, parts: Iterable[str]) -> Path | None:
        """Return the file of a module in the folder, or None where there is none."""
        place = self.folder.joinpath(*parts)
        files = (place.with_name(f"{place.name}.py"), place / "__init__.py")
        return next((file for file in files if file.is_file()), None)


_named: list[Outside] = []


def choose(folders: Iterable[Path]) -> None:
    """Use these folders, and no others that were named before.

    Raise UsageError for a folder that cannot be imported.
    """
    _named[:] = [Outside(_checked(folder)) for folder in dict.fromkeys(folders)]


def named() -> tuple[str, ...]:
    """Return the absolute paths of the folders that the user has named."""
    return tuple(str(each.folder) for each in _named)


def found() -> list[Outside]:
    """Return the folders that the user has named, and those of installed packages.

    Raise UsageError for an entry point that names no package, and for a name that is there twice.
    """
    everything = [*_named, *_installed()]
    by_name: dict[str, Outside] = {}
    for each in everything:
        other = by_name.setdefault(each.name, each)
        if other.folder != each.folder:
            raise UsageError(
                f"two adapters from outside are called {each.name}: {other.folder} and "
                f"{each.folder}; rename one of them"
            )
    return list(by_name.values())


def link_into(folder: Path) -> Path:
    """Fill a folder with links to all outside code, and return it for Python's path.

    The parent of a folder is not put there, because a worker must not import what lies beside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for each in found():
        link = folder / each.name
        # The job of another thread may make it too.
        with contextlib.suppress(FileExistsError):
            link.symlink_to(each.folder)
    return folder


def _checked(folder: Path) -> Path:
    path = expanded(folder)
    if not path.is_dir():
        raise UsageError(f"--adapter: there is no folder {path}")
    name = path.name
    if not name.isidentifier():
        raise UsageError(
            f"--adapter: {path} must be importable, so call the folder by letters, digits and _"
        )
    if name in _OF_THIS_PROJECT or name in sys.stdlib_module_names:
        raise UsageError(f"--adapter: {path} hides the module {name!r}, so rename the folder")
    return path


@functools.cache
def _installed() -> tuple[Outside, ...]:
    return tuple(map(_of_entry_point, metadata.entry_points(group=GROUP)))


def _of_entry_point(point: metadata.EntryPoint) -> Outside:
    owner = point.dist.name if point.dist else "a package"
    version = point.dist.version if point.dist else ""
    where = f"the entry point {point.name!r} of {owner}"
    try:
        spec = importlib.util.find_spec(point.value) if "." not in point.value else None
    except ValueError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            f"{where} names {point.value!r}, which is no importable package; "
            f"repair or uninstall {owner}"
        )
    return Outside(Path(spec.submodule_search_locations[0]), version)


def _digest(folder: Path) -> str:
    """Return the first digits of the SHA-256 of all names and contents in a folder."""
    digest = hashlib.sha256()
    for file in _files(folder):
        name = file.relative_to(folder).as_posix()
        content = file.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:_DIGEST_DIGITS]


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder in order, without those that Python or an editor makes."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _names_in(file: Path) -> set[str]:
    """Return the names that a module defines or imports at its top level.

    Raise UsageError where it is no Python.
    """
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UsageError(f"{file}{line}: this is not valid Python ({error.args[0]})") from error
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names
