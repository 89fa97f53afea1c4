"""Excerpts of the source code, so that an example in a page is code that runs."""

from __future__ import annotations

import ast
import textwrap

from harness.docs.pages import ROOT

_Named = ast.ClassDef | ast.FunctionDef | ast.Assign | ast.AnnAssign


def source(path: str, name: str, *methods: str) -> str:
    """Return the definition of a name in a file as a block of code.

    `name` is that of a class, a function or a value, or CLASS.FIELD. With `methods`, a class is
    shown with its docstring and these methods alone. Raises LookupError where the name is absent.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    body: list[ast.stmt] = ast.parse(text).body
    *outer, last = name.split(".")
    for each in outer:
        body = _class(body, each).body
    if methods:
        excerpt = _class_with(text, _class(body, last), methods)
    else:
        excerpt = _lines(text, _definition(body, last))
    return f"```python\n{textwrap.dedent(excerpt)}\n```"


def file(path: str) -> str:
    """Return a whole file as a block of code."""
    text = (ROOT / path).read_text(encoding="utf-8")
    language = {".py": "python", ".toml": "toml"}[(ROOT / path).suffix]
    return f"```{language}\n{text.strip()}\n```"


def _class_with(text: str, definition: ast.ClassDef, methods: tuple[str, ...]) -> str:
    first_line = text.splitlines()[definition.lineno - 1]
    docstring = _lines(text, definition.body[0])
    parts = [f"{first_line}\n{docstring}"]
    for name in methods:
        parts.append(_lines(text, _definition(definition.body, name)))
    return "\n\n".join(parts)


def _class(body: list[ast.stmt], name: str) -> ast.ClassDef:
    definition = _definition(body, name)
    if not isinstance(definition, ast.ClassDef):
        raise LookupError(f"{name} is no class")
    return definition


def _definition(body: list[ast.stmt], name: str) -> _Named:
    for statement in body:
        if isinstance(statement, _Named) and name in _names(statement):
            return statement
    raise LookupError(f"nothing is called {name}")


def _names(statement: _Named) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _lines(text: str, node: ast.stmt) -> str:
    """Return the whole lines of a statement, so that its indentation can be taken away."""
    return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
