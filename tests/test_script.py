"""`ckptbench list methods --how METHOD` prints the lines of a training script."""

from __future__ import annotations

import ast

import pytest
from stubs import command

from harness.driver import catalog, script
from harness.driver.declarations import Listed
from harness.driver.launch import ROOT


def test_a_method_that_several_frameworks_have_is_printed_for_each() -> None:
    done = command("list", "methods", "--how", "safetensors")
    assert done.status == 0
    titles = [line for line in done.output.splitlines() if line.startswith("# safetensors in")]
    assert titles == [
        "# safetensors in jax: save",
        "# safetensors in jax: load",
        "# safetensors in pytorch: save",
        "# safetensors in pytorch: load",
    ]
    assert "save_file(tensors, path)" in done.output


def test_all_methods_of_all_frameworks_declare_lines() -> None:
    text = command("list", "methods", "--how", "all").output
    ast.parse(text)
    for framework in catalog.frameworks().values():
        for method in framework.methods.values():
            title = f"# {method.name} in {framework.name}: "
            is_measured_alone = framework.floor or method.listed is Listed.TEST_DOUBLE
            assert (f"{title}save\n" in text) is not is_measured_alone
            assert (f"{title}load\n" in text) is not is_measured_alone


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["methods", "--how", "torch-sav"], "unknown method 'torch-sav'; did you mean"),
        (["methods", "--how", "buffered"], "method buffered of raw declares no lines"),
        (["suites", "--how", "dcp"], "--how is about a method, so list methods"),
    ],
)
def test_a_wrong_method_gets_one_sentence(arguments: list[str], sentence: str) -> None:
    done = command("list", *arguments)
    assert done.status == 2
    assert sentence in done.errors
    assert not done.output


def test_the_lines_of_an_engine_stand_between_those_of_the_framework() -> None:
    text = script.how({"jax": catalog.frameworks()["jax"]}, "deepfreeze-sync")
    places = [text.index(part) for part in ("arrays = {", "freezer = ", ": load", "unflatten")]
    assert places == sorted(places)


def test_the_lines_of_pytorch_say_that_they_are_for_one_optimizer() -> None:
    text = command("list", "methods", "--how", "torch-save").output
    assert "# These lines are for one optimizer. Where there are several, " in text


def test_the_lines_begin_with_the_names_that_they_take_from_the_script() -> None:
    text = command("list", "methods", "--how", "deepfreeze-memory").output
    above = text[: text.index("# deepfreeze-memory in ")]
    names = [line[4:].split(":")[0] for line in above.splitlines() if line.startswith("# - ")]
    assert names == ["model", "optimizer", "path", "step", "memory"]
    assert f"export PYTHONPATH={ROOT}" in above


def test_imports_stand_above_the_lines_each_once() -> None:
    text = command("list", "methods", "--how", "deepfreeze").output
    load = text[text.index("# deepfreeze in pytorch: load") : text.index("# deepfreeze in tensorf")]
    top, body = load.split("# where it is needed")
    assert top.count("import torch\n") == 1
    assert "import " not in body


def test_lines_that_need_nothing_of_this_project_do_not_ask_for_it() -> None:
    assert "PYTHONPATH" not in command("list", "methods", "--how", "torch-save").output
