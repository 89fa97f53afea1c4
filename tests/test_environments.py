"""Managed environments are made once, made again when they must be, and never half."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

import pytest

from harness.driver import environments, pins
from harness.driver.environments import STAMP, Environment, Environments, parse_overrides
from harness.run.errors import UsageError


def _ignore(line: str) -> None:
    """Take a line of pip's."""


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    """Return an adapters folder with one framework that needs nothing."""
    folder = tmp_path / "adapters"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "requirements.txt").write_text("# nothing\n")
    return folder


@pytest.fixture
def managed(tmp_path: Path, adapters: Path) -> Environments:
    """Return environments that do not exist yet."""
    return Environments(tmp_path / "venvs", adapters, {})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the environments that a test makes. They stay empty, to save time."""
    calls: list[str] = []

    def run(
        framework: str,
        argv: list[str],
        log: TextIO,
        on_line: Callable[[str], None],
        lock: int,
        variables: Mapping[str, str],
    ) -> None:
        if "venv" in argv:
            calls.append(framework)
            python = Path(argv[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.symlink_to(sys.executable)
        on_line(f"ran for {framework}")

    monkeypatch.setattr(environments, "_run", run)
    return calls


@pytest.mark.slow
def test_an_environment_is_really_made(managed: Environments) -> None:
    assert [environment.state for environment in managed.listing()] == ["missing"]
    python = managed.interpreter("toy")
    prefix = subprocess.run(
        [python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Path(prefix) == managed.root / "toy"
    assert managed.listing() == [Environment("toy", python, "ready")]


def test_a_failing_pip_shows_its_last_lines_and_leaves_nothing_ready(
    managed: Environments, adapters: Path
) -> None:
    (adapters / "toy" / "requirements.txt").write_text("./no-such-folder\n")
    lines: list[str] = []
    with pytest.raises(
        UsageError,
        match=r"could not make the environment of toy \(the whole log is (?s:.*)no-such-folder",
    ) as caught:
        managed.create("toy", lines.append)
    assert lines[-1] in str(caught.value)
    assert "no-such-folder" in (managed.root / "toy.log").read_text()
    assert [environment.state for environment in managed.listing()] == ["outdated"]


def test_a_ready_environment_is_left_alone(managed: Environments, made: list[str]) -> None:
    lines: list[str] = []
    managed.create("toy", lines.append)
    managed.create("toy", lines.append)
    assert managed.interpreter("toy") == managed.root / "toy" / "bin" / "python"
    assert made == ["toy"]
    assert lines == ["ran for toy", "ran for toy"]  # venv and pip


def test_an_environment_is_made_again_after_its_pins_changed(
    managed: Environments, adapters: Path, made: list[str]
) -> None:
    managed.create("toy", _ignore)
    leftover = managed.root / "toy" / "leftover"
    leftover.touch()
    (adapters / "toy" / "requirements.txt").write_text("# other\n")
    assert [environment.state for environment in managed.listing()] == ["outdated"]
    managed.interpreter("toy")
    assert made == ["toy", "toy"]
    assert not leftover.exists()


def test_an_environment_is_made_again_for_another_python(
    managed: Environments, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    managed.create("toy", _ignore)
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    managed.create("toy", _ignore)
    assert made == ["toy", "toy"]


@pytest.mark.parametrize("interrupted", [KeyboardInterrupt, OSError])
def test_an_interrupted_creation_is_begun_again(
    managed: Environments,
    made: list[str],
    monkeypatch: pytest.MonkeyPatch,
    interrupted: type[BaseException],
) -> None:
    def interrupt(path: Path, text: str) -> None:
        raise interrupted

    with monkeypatch.context() as patch:
        patch.setattr(environments, "_write_atomically", interrupt)
        with pytest.raises(interrupted):
            managed.create("toy", _ignore)
    assert [environment.state for environment in managed.listing()] == ["outdated"]
    managed.create("toy", _ignore)
    assert made == ["toy", "toy"]
    assert [environment.state for environment in managed.listing()] == ["ready"]


def test_a_truncated_stamp_or_a_dangling_interpreter_is_not_ready(
    managed: Environments, made: list[str]
) -> None:
    managed.create("toy", _ignore)
    stamp, python = managed.root / "toy" / STAMP, managed.root / "toy" / "bin" / "python"
    whole = stamp.read_text()
    stamp.write_text(whole[:10])
    assert managed.listing()[0].state == "outdated"
    stamp.write_text(whole)
    python.unlink()
    python.symlink_to("/nowhere/python")
    assert managed.listing()[0].state == "outdated"


def _create(managed: Environments) -> None:
    managed.create("toy", _ignore)


@pytest.mark.usefixtures("made")
def test_the_pins_hold_for_build_requirements_too(
    managed: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str | None]] = []
    monkeypatch.setattr(
        environments,
        "_run",
        lambda *found: seen.append((found[1][2], found[-1].get("PIP_CONSTRAINT"))),
    )
    monkeypatch.setattr(environments, "_write_atomically", lambda path, text: None)
    managed.create("toy", _ignore)
    constraints = managed.root / "toy.constraints.txt"
    assert seen == [("venv", None), ("pip", str(constraints))]
    requirements = managed.adapters / "toy" / "requirements.txt"
    assert constraints.read_text() == requirements.read_text()


def test_constraints_have_no_extras() -> None:
    """Pip refuses them there."""
    text = "# pinned\njax[cuda12]==0.6.2\nnumpy==2.3.1  # the newest\n--no-binary chainer\n"
    expected = "# pinned\njax==0.6.2\nnumpy==2.3.1  # the newest\n--no-binary chainer\n"
    assert pins.without_extras(text) == expected


@pytest.mark.slow
def test_several_processes_make_it_once(
    managed: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "made"
    run = environments._run

    def traced(
        framework: str,
        argv: list[str],
        log: TextIO,
        on_line: Callable[[str], None],
        lock: int,
        variables: Mapping[str, str],
    ) -> None:
        with trace.open("a") as file:
            file.write(argv[2] + "\n")
        run(framework, argv, log, on_line, lock, variables)
        time.sleep(0.05)  # meanwhile the other processes arrive

    monkeypatch.setattr(environments, "_run", traced)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_create, args=(managed,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert trace.read_text().split() == ["venv", "pip"]


def test_an_unknown_framework_is_named(managed: Environments) -> None:
    for ask in (managed.interpreter, lambda name: managed.create(name, _ignore)):
        with pytest.raises(UsageError, match=r"unknown framework 'toi'; did you mean 'toy'\?"):
            ask("toi")


def test_an_interpreter_of_the_users_wins(tmp_path: Path, adapters: Path) -> None:
    own = Environments(tmp_path / "venvs", adapters, {"toy": Path(sys.executable)})
    assert own.interpreter("toy") == Path(sys.executable)
    assert own.listing() == [Environment("toy", Path(sys.executable), "external")]
    assert not own.root.exists()


def test_an_override_for_an_unknown_framework_is_refused(tmp_path: Path, adapters: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown framework 'toys'; did you mean 'toy'\?"):
        Environments(tmp_path / "venvs", adapters, {"toys": Path(sys.executable)})


def _script(path: Path, body: str, mode: int = 0o755) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("body", "mode", "expected"),
    [
        (None, 0, "does not exist"),
        ("true", 0o644, "is not an executable file"),
        ("true", 0o755, "is not a working Python"),
        ("exit 3", 0o755, "is not a working Python"),
        ("echo 3 10", 0o755, "is Python 3.10, and 3.11 is needed"),
        ("echo 2 7", 0o755, "is Python 2.7, and 3.11 is needed"),
    ],
)
def test_a_useless_interpreter_is_refused(
    tmp_path: Path, adapters: Path, body: str | None, mode: int, expected: str
) -> None:
    path = tmp_path / "python"
    if body is not None:
        _script(path, body, mode)
    with pytest.raises(UsageError, match=f"the interpreter for toy, {path}, {expected}"):
        Environments(tmp_path / "venvs", adapters, {"toy": path}).interpreter("toy")


def test_a_folder_is_no_interpreter(tmp_path: Path, adapters: Path) -> None:
    with pytest.raises(UsageError, match="is not an executable file"):
        Environments(tmp_path / "venvs", adapters, {"toy": tmp_path}).interpreter("toy")


def test_overrides_are_parsed_without_following_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_overrides([f"a={link}", "b=python", "c=~/bin/python"]) == {
        "a": link,
        "b": link,
        "c": Path("/home/someone/bin/python"),
    }


def test_a_bare_command_is_looked_for_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "bin" / "some-python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(link.parent))
    assert parse_overrides(["a=some-python", "b=nowhere"]) == {
        "a": link,
        "b": tmp_path / "nowhere",
    }


@pytest.mark.parametrize("pair", ["pytorch", "pytorch=", "=/usr/bin/python3", ""])
def test_a_malformed_override_is_refused(pair: str) -> None:
    with pytest.raises(UsageError, match="--python must be FRAMEWORK=PATH"):
        parse_overrides([pair])


def test_an_override_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="names an interpreter for 'a' twice"):
        parse_overrides(["a=/bin/x", "a=/bin/y"])
