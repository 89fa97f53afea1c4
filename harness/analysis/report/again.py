"""The command line that measures one row again."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness import experiments
from harness.run.plan import AB
from harness.wire.case import SUMMARY_ABOVE, Case

_LABEL = re.compile(r"(?P<method>[^\[]*)(?:\[(?P<options>.*)\])?", re.DOTALL)


def command(case: Case, header: Mapping[str, Any], cases: Sequence[Case]) -> str:
    """Return what to type for the row of `case`, one of the `cases` of a run with that plan file.

    A suite that has the case in several shapes (steps between checkpoints, parts left out) measures
    those too.
    """
    arms: Mapping[str, Mapping[str, Any]] = header.get("arms") or {}
    words = ["ckptbench"]
    if arms:
        words += ["ab", header["suite"].removeprefix(AB), *_sides(arms)]
    else:
        words += ["run", header["suite"]]
    words += [*_frameworks(case, cases), *_state(case)]
    words += [*_method(case), *_world(case, cases), *_suite_options(case)]
    if not arms:
        words += _launch(case)
    if case.device != "cpu":
        words += ["--device", case.device]
    words += _places(header)
    if case.world > 1:
        words += _settings(header.get("settings") or {}, summarises=not arms)
    words += _limits(header.get("settings") or {}, takes_site=not arms)
    words += _goal(header.get("goal") or {})
    return shlex.join(words)


def _frameworks(case: Case, cases: Sequence[Case]) -> list[str]:
    """Return the words for the case's framework, and for all that its row is compared with."""
    if experiments.experiment(case.experiment).compares_frameworks:
        return _repeated("--framework", dict.fromkeys(other.framework for other in cases))
    return ["--framework", case.framework]


def _state(case: Case) -> list[str]:
    """Return the words for the workload, or for the user's own model."""
    if case.model is None:
        return ["--workload", case.workload]
    return ["--model", f"{case.model.file}:{case.model.function}"]


def _places(header: Mapping[str, Any]) -> list[str]:
    """Return the words for the directory, interpreters and adapters that the run was given."""
    words = ["--dir", header["directory"]] if header.get("directory") else []
    words += _repeated("--python", header.get("python") or ())
    settings = header.get("settings") or {}
    return words + _repeated("--adapter", settings.get("adapters") or ())


def _repeated(option: str, values: Iterable[str]) -> list[str]:
    """Return the words of an option that is given once for each value."""
    words: list[str] = []
    for value in values:
        words += [option, value]
    return words


def _sides(arms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the words of both sides. Their paths are absolute, so any folder will do."""
    words: list[str] = []
    for name, arm in arms.items():
        words += _repeated(f"--{name}", _asked(arm))
    return words


def _asked(arm: Mapping[str, Any]) -> list[str]:
    pins = list((arm.get("pins") or {}).values())
    options = [f"{key}={json.dumps(value)}" for key, value in (arm.get("options") or {}).items()]
    places = [place for place in (arm.get("python"), arm.get("checkout")) if place]
    return [*pins, *options, *places] or ["."]


def _suite_options(case: Case) -> list[str]:
    """Return the words for values of suite keys that are not the defaults, and have an option."""
    declared = experiments.experiment(case.experiment)
    words = []
    for key, value in declared.settings(case).items():
        suite_key = declared.suite_keys.get(key)
        if suite_key is not None and suite_key.option and value != suite_key.default:
            words += [suite_key.option, str(value)]
    return words


def _settings(settings: Mapping[str, Any], summarises: bool) -> list[str]:
    """Return the words for mpirun and for the summary of ranks, where they are not the defaults."""
    words = ["--mpirun", settings["mpirun"]] if settings.get("mpirun") else []
    above = settings.get("summary_above", SUMMARY_ABOVE)
    return words + (
        ["--summary-above", str(above)] if summarises and above != SUMMARY_ABOVE else []
    )


def _limits(settings: Mapping[str, Any], takes_site: bool) -> list[str]:
    """Return the words for the time limit and for Slurm's site file, where they were given."""
    words = ["--timeout", f"{settings['timeout_s']:g}"] if settings.get("timeout_s") else []
    site = settings.get("site")
    return words + (["--site", site] if takes_site and site else [])


def _goal(goal: Mapping[str, float]) -> list[str]:
    return (
        ["--precision", f"{goal['precision']:g}", "--budget", f"{goal['budget_s']:g}s"]
        if goal
        else []
    )


def _method(case: Case) -> list[str]:
    """Return the words for the method, and for the options that its label has from the user."""
    found = _LABEL.fullmatch(case.method)
    if not case.method or found is None:
        return []
    options = found["options"].split(",") if found["options"] else []
    return ["--method", found["method"], *_repeated("--option", options)]


def _world(case: Case, cases: Sequence[Case]) -> list[str]:
    return ["--world", str(case.world)] if any(other.world != 1 for other in cases) else []


def _launch(case: Case) -> list[str]:
    words = ["--strategy", case.strategy] if case.strategy else []
    words += (
        ["--launcher", case.launcher]
        if case.launcher != ("local" if case.world == 1 else "mpirun")
        else []
    )
    return words + (["--nodes", str(case.nodes)] if case.nodes else [])
