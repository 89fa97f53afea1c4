"""Reading adapter.toml: what is declared comes out, and what is broken is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.driver import catalog
from harness.run.errors import UsageError

GOOD = """
[framework]
class = "adapters.toy.framework:Toy"
devices = ["cpu", "cuda"]
packages = ["toy"]
[methods.plain]
class = "adapters.toy.plain:Plain"
covers = "full"
format = "zip"
default = true
fast = true
description = "one file"
[methods.plain.options]
crc = true
level = 3
[methods.broken]
class = "adapters.toy.broken:Broken"
covers = "weights+optimizer"
format = "folder"
asynchronous = true
description = "raises"
[[methods.broken.expected_failures]]
reason = "ValueError.*trackable"
precision = "bf16-mixed"
race = true
"""


def _write(folder: Path, text: str, name: str = "toy") -> Path:
    path = folder / name / "adapter.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_declaration_is_read(tmp_path: Path) -> None:
    toy = catalog.read(_write(tmp_path, GOOD))
    assert (toy.name, toy.class_path, toy.devices, toy.packages) == (
        "toy",
        "adapters.toy.framework:Toy",
        ("cpu", "cuda"),
        ("toy",),
    )
    plain, broken = toy.methods["plain"], toy.methods["broken"]
    assert (plain.name, plain.options, plain.expected_failures) == (
        "plain",
        {"crc": True, "level": 3},
        (),
    )
    assert (
        plain.default,
        plain.fast,
        plain.asynchronous,
        plain.own_process,
        plain.test_double,
    ) == (
        True,
        True,
        False,
        False,
        False,
    )
    assert (broken.name, broken.covers, broken.asynchronous) == (
        "broken",
        "weights+optimizer",
        True,
    )
    [expected] = broken.expected_failures
    assert (expected.reason, expected.experiment, expected.precision, expected.race) == (
        "ValueError.*trackable",
        None,
        "bf16-mixed",
        True,
    )


def test_an_expected_failure_concerns_the_rows_it_names(tmp_path: Path) -> None:
    [expected] = catalog.read(_write(tmp_path, GOOD)).methods["broken"].expected_failures
    assert expected.concerns("cost", "bf16-mixed")
    assert not expected.concerns("cost", "float32")
    only_cost = expected.model_copy(update={"precision": None, "experiment": "cost"})
    assert only_cost.concerns("cost", "float32")
    assert not only_cost.concerns("sizes", "float32")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'format = "zip"',
            'formt = "zip"',
            r"methods\.plain: unknown key 'formt'; did you mean 'format'\?",
        ),
        (
            'packages = ["toy"]',
            'package = ["toy"]',
            r"framework: unknown key 'package'; did you mean 'packages'\?",
        ),
        ("[framework]", "[frameworks]", r"unknown key 'frameworks'; did you mean 'framework'\?"),
        ('format = "zip"', 'name = "other"', r"methods\.plain: unknown key 'name'"),
        (
            'covers = "full"',
            'covers = "ful"',
            r"methods\.plain\.covers: .*'weights', 'weights\+optimizer' or 'full', not 'ful'",
        ),
        ('"cuda"]', '"gpu"]', r"framework\.devices\.1: .*'cpu' or 'cuda', not 'gpu'"),
        ('["cpu", "cuda"]', "[]", r"framework\.devices: "),
        ("fast = true", 'fast = "yes"', r"methods\.plain\.fast: .*not 'yes'"),
        ("fast = true", "fast = 1", r"methods\.plain\.fast: .*not 1"),
        ('description = "one file"', "", r"methods\.plain\.description: field required"),
        ('"adapters.toy.plain:Plain"', '"adapters/toy/plain.py"', r"methods\.plain\.class: "),
        (
            '"ValueError.*trackable"',
            '"(unclosed"',
            r"methods\.broken\.expected_failures\.0\.reason: not a regular expression",
        ),
        (
            "default = true",
            "",
            r"exactly one method must have `default = true`, and 0 have it \(none\)",
        ),
        (
            "asynchronous = true",
            "default = true",
            r"exactly one method .*, and 2 have it \(broken, plain\)",
        ),
        ("[framework]", "[framework", "not valid TOML"),
    ],
)
def test_a_broken_declaration_names_file_and_key(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    path = _write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(UsageError, match=expected) as caught:
        catalog.read(path)
    assert str(path) in str(caught.value)


def test_frameworks_are_the_folders_with_a_declaration(tmp_path: Path) -> None:
    _write(tmp_path, GOOD, "zebra")
    _write(tmp_path, GOOD, "ant")
    (tmp_path / "__pycache__").mkdir()
    assert list(catalog.frameworks(tmp_path)) == ["ant", "zebra"]


def test_a_selection_keeps_the_order_given_and_means_all_when_empty(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        _write(tmp_path, GOOD, name)
    known = catalog.frameworks(tmp_path)
    assert [entry.name for entry in catalog.select(known, ["c", "a", "c"])] == ["c", "a"]
    assert [entry.name for entry in catalog.select(known, [])] == ["a", "b", "c"]


def test_an_unknown_framework_is_named(tmp_path: Path) -> None:
    _write(tmp_path, GOOD, "pytorch")
    with pytest.raises(UsageError, match="unknown framework 'pytorsh'; did you mean 'pytorch'?"):
        catalog.select(catalog.frameworks(tmp_path), ["pytorsh"])


def test_the_declarations_of_this_repository_are_sound() -> None:
    known = catalog.frameworks()
    assert "raw" in known
    for framework in known.values():
        for class_path in (
            framework.class_path,
            *(method.class_path for method in framework.methods.values()),
        ):
            assert class_path.startswith(f"adapters.{framework.name}."), class_path
