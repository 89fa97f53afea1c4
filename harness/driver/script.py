"""The lines that a user writes in a training script to save and load with a method."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from harness.driver.declarations import FrameworkEntry, MethodEntry
from harness.driver.launch import ROOT
from harness.run.errors import UsageError, nearest

ALL = "all"
_IMPORT = re.compile(r"(import|from) ")

# The names that lines of a training script have from the script, as the declarations explain them.
_NAMES = {
    "model": "your model; in JAX a pytree",
    "optimizer": "your optimizer; in JAX a pytree",
    "path": "a pathlib.Path of the checkpoint, or of a store's folder; the folder above it exists",
    "step": "the number of steps taken",
    "rank": "the number of this process among all",
    "memory": "a folder of your own under /dev/shm",
    "trainer": "your chainer.training.Trainer",
    "inputs": "the inputs that model.fit trains on",
    "targets": "the targets that model.fit trains on",
}
_NOT_SAVED = """\
# Random generators and the position in the data are not among them."""
_OWN_PACKAGE = "from adapters."
_OWN_PACKAGE_NOTE = f"""\
# `adapters` is ckptbench's, and needs the packages numpy and xxhash. Let Python find it:
#     export PYTHONPATH={ROOT}"""


def how(known: Mapping[str, FrameworkEntry], method: str) -> str:
    """Return the lines of a method in every framework that has it, or of all methods.

    Raise UsageError for an unknown method, and for one that declares no lines.
    """
    having = [(framework, entry) for framework, entry in _methods(known) if _fits(entry, method)]
    if not having:
        names = {entry.name for _, entry in _methods(known)}
        raise nearest("method", method, [*names, ALL])
    texts = [
        _lines(known[framework], entry) for framework, entry in having if entry.save and entry.load
    ]
    if not texts:
        frameworks = ", ".join(framework for framework, _ in having)
        raise UsageError(f"method {method} of {frameworks} declares no lines for a training script")
    lines = "\n".join(texts)
    return f"{_explained(lines)}\n{lines}"


def _explained(lines: str) -> str:
    """Return a comment with what a script must have for these lines."""
    words = set(re.findall(r"\w+", lines))
    names = [name for name in _NAMES if name in words]
    comment = ["# The lines take these names from your script:"]
    comment += [f"# - {name}: {_NAMES[name]}" for name in names]
    if "model" in names:
        comment.append(_NOT_SAVED)
    if _OWN_PACKAGE in lines:
        comment.append(_OWN_PACKAGE_NOTE)
    return "\n".join(comment) + "\n"


def _methods(known: Mapping[str, FrameworkEntry]) -> Iterator[tuple[str, MethodEntry]]:
    for name, framework in known.items():
        for method in framework.methods.values():
            yield name, method


def _fits(entry: MethodEntry, method: str) -> bool:
    return method in (ALL, entry.name)


def _lines(framework: FrameworkEntry, entry: MethodEntry) -> str:
    title = f"{entry.name} in {framework.name}"
    note = framework.script.note.strip() if framework.script else ""
    above = f"{note}\n" if note else ""
    save, load = _imports_first(entry.save), _imports_first(entry.load)
    return f"# {title}: save\n{above}{save}\n\n# {title}: load\n{load}\n"


def _imports_first(lines: str) -> str:
    """Return lines with their imports above them, each once.

    An import in the middle of a function would make its name one of the function alone.
    """
    kept: list[str] = []
    imports: list[str] = []
    for line in lines.strip().splitlines():
        (imports if _IMPORT.match(line) else kept).append(line)
    if not imports:
        return "\n".join(kept)
    body = re.sub(r"\n{3,}", "\n\n", "\n".join(kept).strip())
    top = "\n".join(dict.fromkeys(imports))
    return f"# at the top of the file\n{top}\n\n# where it is needed\n{body}"
