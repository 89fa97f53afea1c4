"""Adapters from outside join the catalog, and a wrong one is refused in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from outside_folders import CODE, METHODS, pickled
from stubs import Ended, command

from harness.driver import catalog, outside, planning, suite, units
from harness.driver.environments import Environments
from harness.run.errors import UsageError

PACKAGES = """
[environments.own]
requirements = ["xxhash==4.1.0"]
"""
IN_OWN = METHODS.replace('format = "pickle"', 'format = "pickle"\nenvironment = "own"') + PACKAGES
FRAMEWORK = """
[framework]
class = "toy.framework:Toy"
devices = ["cpu"]
packages = ["numpy"]

[methods.plain]
class = "toy.framework:Plain"
covers = "full"
format = "bytes"
listed = "default"
description = "one file"
"""


@pytest.fixture(autouse=True)
def _nothing_named() -> Iterator[None]:
    outside.choose([])
    yield
    outside.choose([])
    outside._installed.cache_clear()


def toy(parent: Path, declared: str = FRAMEWORK) -> Path:
    """Write a folder with a framework, and return it."""
    folder = parent / "toy"
    folder.mkdir()
    (folder / "adapter.toml").write_text(declared)
    (folder / "framework.py").write_text("class Toy: ...\nclass Plain: ...\n")
    (folder / "requirements.txt").write_text("numpy==2.4.6\n")
    return folder


def listed(folder: Path, *others: str) -> Ended:
    return command("list", "methods", "--adapter", str(folder), *others)


def test_a_folder_adds_a_method(tmp_path: Path) -> None:
    folder = pickled(tmp_path)
    assert "one-pickle" in listed(folder).output
    assert "one-pickle" not in command("list", "methods").output


def test_a_folder_adds_a_framework_and_another_one_its_methods(tmp_path: Path) -> None:
    methods = METHODS.replace('"raw"', '"toy"')
    outside.choose([pickled(tmp_path, methods), toy(tmp_path)])
    entry = catalog.frameworks()["toy"]
    assert list(entry.methods) == ["plain", "one-pickle"]
    assert entry.origin.startswith("toy (")
    assert entry.methods["one-pickle"].origin.startswith("pickled (")
    assert entry.origin_of(entry.methods["one-pickle"]) == ", ".join(
        (entry.origin, entry.methods["one-pickle"].origin)
    )


def test_an_installed_package_adds_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled(tmp_path)
    (tmp_path / "pickled" / "__init__.py").touch()
    install(tmp_path, "pickled")
    monkeypatch.syspath_prepend(tmp_path)
    outside._installed.cache_clear()
    method = catalog.frameworks()["raw"].methods["one-pickle"]
    assert re.fullmatch(r"pickled 1\.5 \([0-9a-f]{12}\)", method.origin)


def install(folder: Path, value: str) -> None:
    """Write what pip writes for a package with an entry point."""
    about = folder / "pickled-1.5.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pickled\nVersion: 1.5\n")
    (about / "entry_points.txt").write_text(f"[{outside.GROUP}]\npickled = {value}\n")


@pytest.mark.parametrize("value", ["not_there", "pickled.one_file", "pickled:OnePickle"])
def test_a_broken_entry_point_is_named(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, value)
    monkeypatch.syspath_prepend(tmp_path)
    outside._installed.cache_clear()
    done = command("list", "methods")
    assert done.status == 2
    assert f"the entry point 'pickled' of pickled names {value!r}, which is no" in done.errors


def wrong(tmp_path: Path, what: str) -> Path:
    """Return a folder with one mistake."""
    changes = {
        "class": (METHODS.replace(":OnePickle", ":TwoPickles"), CODE),
        "module": (METHODS.replace("one_file", "two_files"), CODE),
        "elsewhere": (METHODS.replace("pickled.one_file", "adapters.raw.npz"), CODE),
        "taken": (METHODS.replace("[methods.one-pickle]", "[methods.npz]"), CODE),
        "framework": (METHODS.replace('"raw"', '"rew"'), CODE),
        "key": (METHODS.replace("covers", "cover"), CODE),
        "default": (METHODS + 'listed = "default"\n', CODE),
        "environment": (METHODS + 'environment = "own"\n', CODE),
        "pin": (IN_OWN.replace("==", ">="), CODE),
        "loose pin": (IN_OWN.replace("4.1.0", "4.*"), CODE),
        "syntax": (METHODS, "class OnePickle(\n"),
    }
    if what == "nothing":
        (tmp_path / "empty").mkdir()
        return tmp_path / "empty"
    if what == "name":
        return pickled(tmp_path, name="one-pickle")
    if what == "hides":
        return pickled(tmp_path, name="json")
    return pickled(tmp_path, *changes[what])


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("nothing", "declares nothing: it needs adapter.toml for a framework, or methods.toml"),
        ("class", "methods.one-pickle: class: .*one_file.py has no class TwoPickles"),
        ("module", "class: .*pickled has no module pickled.two_files"),
        ("elsewhere", "class: 'adapters.raw.npz:OnePickle' is not in the folder"),
        ("taken", "methods.toml: raw has a method npz already, so rename this one"),
        ("framework", "unknown framework 'rew' in .*methods.toml; did you mean 'raw'?"),
        ("key", "unknown key 'cover'; did you mean 'covers'?"),
        ("default", "method one-pickle cannot be the framework's default"),
        ("environment", "unknown environment 'own'"),
        ("pin", "a pin must be NAME==VERSION"),
        ("loose pin", "a pin must be exact, not 'xxhash==4.*'"),
        ("syntax", "one_file.py, line 1: this is not valid Python"),
        ("name", "must be importable, so call the folder by letters, digits and _"),
        ("hides", "hides the module 'json', so rename the folder"),
    ],
)
def test_a_wrong_folder_gets_one_sentence(what: str, sentence: str, tmp_path: Path) -> None:
    done = listed(wrong(tmp_path, what))
    assert done.status == 2
    assert re.search(sentence.replace("?", r"\?"), done.errors)
    assert done.errors.count("\n") == 1
    assert not done.escaped


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = listed(tmp_path / "no")
    assert f"--adapter: there is no folder {tmp_path / 'no'}" in done.errors


def test_a_framework_without_requirements_is_refused(tmp_path: Path) -> None:
    folder = toy(tmp_path)
    (folder / "requirements.txt").unlink()
    assert "and so it needs requirements.txt" in listed(folder).errors


def test_two_folders_of_one_name_are_refused(tmp_path: Path) -> None:
    first, second = pickled(tmp_path / "a"), pickled(tmp_path / "b")
    assert (
        "two adapters from outside are called pickled"
        in listed(first, "--adapter", str(second)).errors
    )


def test_other_code_makes_another_case(tmp_path: Path) -> None:
    folder = pickled(tmp_path)
    first = plan_of(folder)
    assert first.case.adapter == catalog.frameworks()["raw"].methods["one-pickle"].origin
    assert plan_of(folder).case.id == first.case.id
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "one_file.pyc").touch()
    assert plan_of(folder).case.id == first.case.id
    (folder / "one_file.py").write_text(f"{CODE}\n# a change\n")
    assert plan_of(folder).case.id != first.case.id
    with pytest.raises(UsageError, match=r"was pickled \(.* when the run began, and is pickled"):
        catalog.require_same_adapters(catalog.frameworks(), [first])


def plan_of(folder: Path, *others: str) -> planning.PlannedCase:
    """Return the first case of the folder's method."""
    outside.choose([folder])
    raw = catalog.frameworks()["raw"]
    methods = ["one-pickle", *others]
    return planning.plan(suite.load("smoke"), [raw], methods=methods)[-1 if others else 0]


def test_a_method_with_packages_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    outside.choose([pickled(tmp_path, IN_OWN)])
    raw = catalog.frameworks()["raw"]
    planned = planning.plan(suite.load("smoke"), [raw], methods=["one-pickle", "npz"])
    environments = {item.case.method: item.case.environment for item in planned}
    assert environments == {"one-pickle": "raw+own", "npz": "raw"}
    for unit in units.group(planned):
        assert len({item.case.environment for item in unit.items}) == 1
    assert raw.packages_of() == {"raw": ("numpy",), "raw+own": ("numpy", "xxhash")}


def test_an_environment_of_its_own_leaves_that_of_the_framework_as_it_is(tmp_path: Path) -> None:
    declared = catalog.frameworks().values()
    usual = Environments(tmp_path / "venvs", catalog.ADAPTERS, {}, known=declared)
    outside.choose([pickled(tmp_path, IN_OWN)])
    known = catalog.frameworks().values()
    added = Environments(tmp_path / "venvs", catalog.ADAPTERS, {}, known=known)
    for framework in usual.listing():
        assert framework in added.listing()
        assert added.requirements(framework.name) == usual.requirements(framework.name)
    [own] = [each for each in added.listing() if each not in usual.listing()]
    assert own.name == "raw+own"
    assert own.interpreter == tmp_path / "venvs" / "raw+own" / "bin" / "python"
    pins = added.requirements("raw+own").splitlines()
    assert pins[: pins.index("# of the methods of raw+own")] == (
        usual.requirements("raw").splitlines()
    )
    assert pins[-1] == "xxhash==4.1.0"


def test_an_interpreter_for_a_framework_holds_for_its_methods(tmp_path: Path) -> None:
    outside.choose([pickled(tmp_path, IN_OWN)])
    known = catalog.frameworks().values()
    named = {"raw": tmp_path / "python"}
    environments = Environments(tmp_path, catalog.ADAPTERS, named, known=known)
    states = {each.name: each.state for each in environments.listing()}
    assert states["raw"] == states["raw+own"] == "external"


def test_env_list_shows_the_environment(tmp_path: Path) -> None:
    folder = str(pickled(tmp_path, IN_OWN))
    assert "raw+own" in command("env", "list", "--adapter", folder).output
