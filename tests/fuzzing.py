"""Strategies for wrong inputs: words of a command line, damaged runs, and suites."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
from stubs import HERE

import workloads
from harness.docs.commands import all_commands
from harness.driver import catalog, suite
from harness.run.plan import PlannedCase

RUN = "20260101-000000-bench-raw"
GOOD = "20250101-000000-bench-raw"

# A process cannot be given the others.
WORDS = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0/"), min_size=1, max_size=12
)
NUMBERS = st.sampled_from(
    ["0", "-5", "1", "2", "4", "65536", "65537", "999999999", "nan", "inf", "-inf", "1e400", "0.05"]
    + ["1,2", ",", "1,", "9" * 5000, "٣", "²", "1_0", " 1", "10m", "0s", "9" * 400 + "h", "true"]
)
PATHS = st.sampled_from(
    ["here", "nowhere/at/all", "a-file", "a-file/below", "/proc/none", "/dev/null", "x" * 300]
    + ["[/red]", "[bold", "ä–\u2028☃", "-", "--", "with space", "results", "=", "a=b"]
)


@dataclass(frozen=True)
class Line:
    """The words of one command line."""

    words: tuple[str, ...]


def _names() -> dict[str, list[str]]:
    """Return words that parameters of a name take. A new parameter gets the other words alone."""
    methods = [name for entry in catalog.frameworks().values() for name in entry.methods]
    runs = [RUN, GOOD, "latest", f"results/{RUN}", "results"]
    frameworks = [*catalog.frameworks(), "all", "raw,jax"]
    return {
        "suite_name": suite.names(),
        "framework": ["raw", *frameworks],
        "frameworks": frameworks,
        "workload": list(workloads.names()),
        "method": ["buffered", *methods],
        "option": ["fault=none", "slowdown=2", "slowdown=nan", "fault=[[", "crc=false", "a="],
        "strategy": ["all", "default", "sharded", "ddp"],
        "device": ["cpu", "cuda"],
        "launcher": ["local", "mpirun", "slurm"],
        "python": ["raw=a-file", "raw=here", "raw=", "jax=/usr/bin/env"],
        "resume": runs,
        "name": runs,
        "names": runs,
        "base": runs,
        "head": runs,
        "form": ["table", "markdown", "csv", "json", "junit"],
        "what": ["frameworks", "methods", "strategies", "workloads", "suites"],
        "a": [".", "numpy==2.*", "numpy", "slowdown=2", "here", "a-file"],
        "b": [".", "torch==2.13.0", "slowdown=3", "numpy==1"],
        "site": ["a-file", "site.toml"],
        "world": ["1", "2", "1,2", "4"],
        "nodes": ["1", "2"],
        "precision": ["0.05"],
        "budget": ["10m", "0s", "1.5h"],
        "timeout": ["60", "0.5"],
        "summary_above": ["1", "8"],
    }


@st.composite
def command_lines(draw: st.DrawFn) -> Line:
    """Return a command with arguments and options, most of them known."""
    commands = all_commands()
    # A figure takes as long as thirty tables.
    quick = sorted(commands.keys() - {"figures", "report"})
    name = draw(st.sampled_from([*quick * 8, *sorted(commands), *["run"] * 16]))
    words = name.split()
    known = _names()
    parameters = commands[name].params
    chosen = draw(st.lists(st.sampled_from(range(len(parameters) or 1)), max_size=4, unique=True))
    for number, parameter in enumerate(parameters):
        if not parameter.required and number not in chosen:
            continue
        likely = st.sampled_from(known.get(parameter.name, ["here"]))
        odd = st.one_of(NUMBERS, PATHS, WORDS)
        value = draw(likely if draw(st.integers(0, 3)) else odd)
        if parameter.param_type_name == "argument":
            words.append(value)
        elif parameter.is_flag:
            words.append(parameter.opts[0])
        elif draw(st.integers(0, 9)):
            words += [parameter.opts[0], value]
        else:
            words.append(f"{parameter.opts[0]}={value}")
    if not draw(st.integers(0, 7)):
        place = draw(st.integers(0, len(words)))
        words.insert(place, draw(st.one_of(WORDS, NUMBERS, st.sampled_from(["--help", ""]))))
    begin = len(name.split())
    return Line((*words[:begin], *_into_here(name), *words[begin:]))


def _into_here(name: str) -> Iterator[str]:
    """Yield options that keep a command out of this repository. Later ones take precedence."""
    options = {each.opts[0] for each in all_commands()[name].params}
    for option, value in (("--results", "results"), ("--out", "out"), ("--dir", "here")):
        if option in options:
            yield from (option, value)


# Damaged runs

WIDTHS = st.sampled_from([1, 20, 40, 80, 140])  # columns of the terminal

HUGE = st.sampled_from([2**31, 2**53 - 1, 2**53, 2**63, 2**64, 10**30, 10**400, -1, -(2**63)])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    HUGE,
    st.sampled_from([0.0, 1e-300, 1e300, -0.5, math.nan, math.inf, -math.inf]),
    st.sampled_from(
        ["", "raw", "cost", "train", "ä–\u2028☃", "\ud800", "\0", "[/red]", "../..", "("]
    ),
    st.text(max_size=5),
)
SAME_TYPE: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(0, 3) | st.integers(0, 2**53) | HUGE,
    float: st.sampled_from([0.0, 1e-300, 1e300, -0.5, 1e18, math.nan, math.inf, -math.inf]),
    str: st.sampled_from(["", "raw", "cost", "load", "mpirun", "failed", "never", "4", "[/red]"]),
    list: st.just([]),
    dict: st.just({}),
}
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value within a JSON value."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, part in inner:
        yield (*place, key)
        yield from _places(part, (*place, key))


@st.composite
def damaged_json(draw: st.DrawFn, text: str) -> str:
    """Return JSON in which a few values are other ones, missing or new."""
    value = json.loads(text)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        if not places:
            break
        *way, key = draw(st.sampled_from(places))
        owner = value
        for step in way:
            owner = owner[step]
        what = draw(st.sampled_from(["drop", "add", "swap", *["same type"] * 4]))
        if what == "drop":
            del owner[key]
        elif what == "add" and isinstance(owner, dict):
            owner[draw(st.text(max_size=5))] = draw(VALUES)
        elif what == "same type" and type(owner[key]) in SAME_TYPE:
            owner[key] = draw(SAME_TYPE[type(owner[key])])
        else:
            owner[key] = draw(VALUES)
    return json.dumps(value)


@st.composite
def damaged_bytes(draw: st.DrawFn, text: str) -> bytes:
    """Return a text that was cut, or has other bytes in it."""
    data = text.encode(errors="surrogatepass")
    at = draw(st.integers(0, len(data)))
    until = draw(st.integers(at, min(len(data), at + 40)))
    added = st.sampled_from(
        [
            b"",
            b"\0",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"a":' * 5000,
            b"9" * 5000,
            b"\n",
            b"\xed\xa0\x80",
        ]
    )
    tail = data[until:] if draw(st.booleans()) else b""
    return data[:at] + draw(st.one_of(added, st.binary(max_size=8))) + tail


@st.composite
def damaged_lines(draw: st.DrawFn, text: str) -> bytes:
    """Return records of which a few are other ones, missing or doubled."""
    lines = text.splitlines()
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(lines) - 1))
        what = draw(st.sampled_from(["json", "json", "json", "json", "bytes", "double", "drop"]))
        if what == "json" and lines[at].startswith("{") and lines[at].endswith("}"):
            try:
                lines[at] = draw(damaged_json(lines[at]))
            except (ValueError, RecursionError):
                # An earlier damage has left a line that is no JSON, or brackets too deep to read.
                continue
        elif what == "bytes":
            lines[at] = draw(damaged_bytes(lines[at])).decode(errors="surrogateescape")
        elif what == "double":
            lines.insert(at, lines[at])
        elif len(lines) > 1:
            del lines[at]
    return ("\n".join(lines) + "\n").encode(errors="surrogatepass")


def damages(name: str, text: str) -> st.SearchStrategy[bytes | str]:
    """Return contents of a damaged file, or the words "missing" or "folder"."""
    by_value = damaged_lines(text) if name == "records.jsonl" else damaged_json(text).map(_encoded)
    elsewhere = st.sampled_from(["missing", "folder"])
    whole = damaged_bytes(text)
    return st.one_of(by_value, by_value, by_value, by_value, by_value, whole, elsewhere)


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


FILES = ("plan.json", "manifest.json", "records.jsonl")


def small_run() -> dict[str, str]:
    """Return the files of a stored run, with one of its cases alone."""
    texts = {name: (HERE / name).read_text(encoding="utf-8") for name in FILES}
    plan = json.loads(texts["plan.json"])
    plan["cases"] = plan["cases"][:1]
    case = PlannedCase.from_json(plan["cases"][0]).case.id
    lines = texts["records.jsonl"].splitlines(keepends=True)
    kept = [line for line in lines if f'"case":"{case}"' in line or '"case":' not in line]
    return texts | {"plan.json": json.dumps(plan), "records.jsonl": "".join(kept)}


@dataclass(frozen=True)
class DamagedRun:
    """The files that differ from those of a good run, and the command that reads it."""

    files: dict[str, bytes | str]
    line: Line

    def write(self, folder: Path) -> None:
        """Damage the run in a folder."""
        for name, content in self.files.items():
            (folder / name).unlink()
            if content == "folder":
                (folder / name).mkdir()
            elif isinstance(content, bytes):
                (folder / name).write_bytes(content)


@st.composite
def damaged_runs(draw: st.DrawFn, readers: list[tuple[str, ...]]) -> DamagedRun:
    """Return a damaged run, and one of the commands that read it."""
    names = draw(st.lists(st.sampled_from(FILES), min_size=1, max_size=2, unique=True))
    files = {name: draw(damages(name, TEXTS[name])) for name in names}
    words = draw(st.sampled_from(readers))
    return DamagedRun(files, Line((*words, "--results", "results")))


TEXTS = small_run()


def prepare(place: Path) -> Path:
    """Empty a folder, and put there all that the words of a command line may name.

    A good run is stored twice. Return the one that is to be damaged.
    """
    for old in place.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    (place / "here").mkdir()
    (place / "a-file").write_text("text\n")
    (place / "site.toml").write_text('account = "me"\n')
    for run in (GOOD, RUN):
        folder = place / "results" / run
        folder.mkdir(parents=True)
        for name, text in TEXTS.items():
            (folder / name).write_text(text, encoding="utf-8")
    return place / "results" / RUN


# Suites

KEYS = sorted(suite.Sweep.model_fields) + ["every", "load_world", "ablated", "no_such_key"]
SWEEP: dict[str, Any] = {
    "workload": "resnet50",
    "preset": "small",
    "precision": "float32",
    "method": ["buffered"],
    "samples": 2,
}
LIKELY = st.sampled_from(
    [1, 2, 0, True, 0.5, "all", "default", "train", "resume", "reshard", "parity", "sizes", "small"]
    + ["llm-slice", "candle-mlp", "float32", "bf16-mixed", [], [1, 2], ["raw"], 65536, 10**6]
)


@st.composite
def suites(draw: st.DrawFn) -> bytes:
    """Return the content of a suite's file."""
    lines = [] if not draw(st.integers(0, 9)) else ['description = "a suite"']
    for _ in range(draw(st.integers(0, 2))):
        sweep = dict(SWEEP)
        for _ in range(draw(st.integers(0, 3))):
            key = draw(st.sampled_from(KEYS))
            if draw(st.booleans()):
                sweep.pop(key, None)
            else:
                sweep[key] = draw(st.one_of(LIKELY, LIKELY, VALUES))
        lines += ["[[sweep]]", *(f"{key} = {_toml(value)}" for key, value in sweep.items())]
    text = "\n".join(lines) + "\n"
    if draw(st.integers(0, 5)):
        return _encoded(text)
    return draw(damaged_bytes(text.encode(errors="replace").decode()))


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)} = {_toml(part)}" for key, part in value.items()]
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value)


@contextlib.contextmanager
def suites_in(folder: Path) -> Iterator[None]:
    """Let the commands find their suites in a folder, within the block."""
    with contextlib.ExitStack() as stack:
        for function in (suite.names, suite.load, suite.load_all):
            stack.enter_context(mock.patch.object(function, "__defaults__", (folder,)))
        yield
