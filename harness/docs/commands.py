"""The commands of `ckptbench` with their arguments and options, as the application has them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import typer.main

from harness.cli.app import app
from harness.docs.markdown import table
from harness.docs.pages import ROOT
from harness.driver import slurm

SITE_FILE = "~/.config/ckptbench/site.toml"

# Typer carries its own copy of click, whose classes have no public name.
_Command = Any
_Parameter = Any


def commands() -> str:
    """Return a section for every command: what it does, its arguments and its options."""
    sections = [_section(name, command) for name, command in all_commands().items()]
    return "\n\n".join(sections)


@functools.cache
def all_commands() -> dict[str, _Command]:
    """Return every command by its words, such as "env create"."""
    # The commands join the application when they are imported.
    importlib.import_module("harness.cli.application")
    return dict(_below(typer.main.get_command(app), ""))


def options_of(command: _Command) -> set[str]:
    """Return the names of a command's options, each with its dashes."""
    names = {name for parameter in command.params for name in parameter.opts}
    return {name for name in names if name.startswith("--")} | {"--help"}


def _below(group: _Command, prefix: str) -> Iterator[tuple[str, _Command]]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _below(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _section(name: str, command: _Command) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    usage = " ".join(["ckptbench", name, *map(_argument, arguments)])
    parts = [f"### {name}", f"`{usage}`", _plain(command.help or "")]
    if options:
        lines = [
            [f"`{_option(each)}`", _plain(each.help or ""), _default(each)] for each in options
        ]
        parts.append(table(("option", "meaning", "default"), lines))
    return "\n\n".join(parts)


def _argument(parameter: _Parameter) -> str:
    word: str = parameter.metavar or parameter.name.upper()
    word = word.strip("[]…")
    if parameter.nargs == -1:
        word += "…"
    return word if parameter.required else f"[{word}]"


def _option(parameter: _Parameter) -> str:
    name: str = parameter.opts[0]
    if parameter.is_flag:
        return name
    value = name.removeprefix("--").replace("-", "_").upper()
    return f"{name} {parameter.metavar or value}"


def _default(parameter: _Parameter) -> str:
    if parameter.required:
        return "must be given"
    if parameter.is_flag or parameter.default in (None, ""):
        return ""
    return f"`{_plain(str(parameter.default))}`"


def _plain(text: str) -> str:
    """Return a text without what differs between machines: the user's home and this checkout."""
    text = text.replace(str(slurm.own_site_file()), SITE_FILE)
    text = text.replace(f"{ROOT}/", "")
    return " ".join(text.split())
