"""Stored runs become one page, which needs no other file, no network and no JavaScript."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.analysis.answer import answer
from harness.analysis.report.section import Failure, RunFacts, Table, failures, run_facts, tables
from harness.analysis.runs import ReadRun
from harness.run.manifest import Manifest

_FOLDER = Path(__file__).parent
_DAMAGES_SHOWN = 100  # of each run
_POINTS = re.compile(rb'<svg\b[^>]*? width="([\d.]+)pt" height="([\d.]+)pt"')
# a picture that wide has three quarters of its size across A4, and its small print 5 points
_UPRIGHT_POINTS = 730.0


@dataclass(frozen=True)
class Picture:
    """A figure: an SVG file's content, what it shows, and which of its cells have no data."""

    title: str
    caption: str
    missing: tuple[str, ...]
    svg: bytes

    @property
    def address(self) -> str:
        """The picture within the page.

        As an image of its own, its identifiers meet no other's and nothing in it runs.
        """
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"

    @property
    def is_wide(self) -> bool:
        """Return whether paper that lies on its side shows it larger."""
        found = _POINTS.search(self.svg)
        width, height = (float(found[1]), float(found[2])) if found else (0.0, 0.0)
        return width > max(height, _UPRIGHT_POINTS)


@dataclass(frozen=True)
class Machine:
    """Runs that may stand beside each other, oldest first, and their figures."""

    runs: Sequence[ReadRun]
    pictures: Sequence[Picture] = ()


def page(machines: Sequence[Machine]) -> str:
    """Return the page as HTML.

    Whatever came from a record is escaped, and the page's own policy forbids any other script.
    """
    style, script = (
        (_FOLDER / name).read_text(encoding="utf-8") for name in ("report.css", "report.js")
    )
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; "
        f"script-src {_hash(script)}; form-action 'none'"
    )
    described = [
        _described(machine, f"m{number}-", len(machines) > 1)
        for number, machine in enumerate(machines, start=1)
    ]
    return environment.get_template("report.html").render(
        machines=described, style=style, script=script, policy=policy
    )


@dataclass(frozen=True)
class _Described:
    anchor: str
    heading: str
    answer: list[str]
    manifest: list[tuple[str, str]]
    runs: list[RunFacts]
    tables: list[Table]
    pictures: Sequence[Picture]
    failures: list[Failure]
    damages: list[str]


def _described(machine: Machine, anchor: str, several: bool) -> _Described:
    manifest = machine.runs[-1].stored.manifest
    made = tables(machine.runs, anchor)
    return _Described(
        anchor=anchor,
        heading=f"Machine {manifest.machine}" if several else "",
        answer=answer([run.rows for run in machine.runs]),
        manifest=_facts(manifest),
        runs=[
            run_facts(run, f"{anchor}run-{number}")
            for number, run in enumerate(machine.runs, start=1)
        ],
        tables=made,
        pictures=machine.pictures,
        failures=failures(made),
        damages=[text for run in machine.runs for text in _damages(run)],
    )


def _damages(run: ReadRun) -> list[str]:
    found = run.stored.damages
    said = [
        f"{run.name}/{damage.file.name}, line {damage.line}: {damage.reason}"
        for damage in found[:_DAMAGES_SHOWN]
    ]
    return said + (
        [f"{run.name}: {len(found) - len(said)} more damaged lines"]
        if len(found) > len(said)
        else []
    )


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
    return [
        ("processor", f"{manifest.cpu_model}, {manifest.logical_cores} logical cores"),
        ("memory", f"{manifest.memory_bytes / 2**30:.1f} GiB"),
        ("accelerators", ", ".join(manifest.gpus) or "none"),
        ("virtual", _yes_or_no(manifest.hypervisor)),
        ("disk", f"{manifest.filesystem} on {_known(manifest.device)} ({manifest.mount_options})"),
        ("scheduler", _known(manifest.device_scheduler)),
        ("kernel", manifest.kernel),
        ("frequency governor", _known(manifest.cpu_governor)),
        ("huge pages", _known(manifest.transparent_hugepages)),
        ("identifier", manifest.machine),
    ]


def _yes_or_no(value: bool | None) -> str:
    return "not known" if value is None else "yes" if value else "no"


def _known(value: Any) -> str:
    return "not known" if value is None else str(value)


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
