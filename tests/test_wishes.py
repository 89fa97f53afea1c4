"""The command line narrows a suite and changes what it measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_framework import SWEEP, declared, method_names, read_suite, sweeps_of

from harness.driver import options, planning
from harness.driver.declarations import FrameworkEntry
from harness.run.errors import UsageError

pytest_plugins = ["shared_fixtures"]


def test_workloads_narrow(tmp_path: Path, toy: FrameworkEntry) -> None:
    suite_ = read_suite(
        tmp_path, sweeps_of({"workload": ["llm-slice", "resnet50"], "method": "plain"})
    )
    [item] = planning.plan(suite_, [toy], workloads=["resnet50"])
    assert item.case.workload == "resnet50"
    with pytest.raises(
        UsageError,
        match=(
            r"suite test does not measure workload 'candle-mlp' "
            r"\(it measures: llm-slice, resnet50\)"
        ),
    ):
        planning.plan(suite_, [toy], workloads=["candle-mlp"])
    with pytest.raises(
        UsageError, match=r"unknown workload 'resnet-50'; did you mean 'resnet50'\?"
    ):
        planning.plan(suite_, [toy], workloads=["resnet-50"])


def test_methods_narrow_to_the_sweeps_that_list_them(tmp_path: Path, toy: FrameworkEntry) -> None:
    text = sweeps_of({"method": "all"}, {"method": "default", "preset": "middle"})
    planned = planning.plan(read_suite(tmp_path, text), [toy], methods=["quick"])
    assert [(item.case.method, item.case.preset) for item in planned] == [("quick", "small")]


def test_a_method_that_no_sweep_lists_is_added(tmp_path: Path, toy: FrameworkEntry) -> None:
    suite_ = read_suite(tmp_path, sweeps_of({"method": "default"}))
    assert method_names(planning.plan(suite_, [toy], methods=["liar", "slow"])) == ["slow", "liar"]
    assert method_names(planning.plan(suite_, [toy], methods=["fast"])) == ["quick"]


def test_a_method_of_one_framework_is_left_out_of_the_others(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    other = declared(tmp_path / "adapters", "other", {"npz": "listed = 'default'"})
    planned = planning.plan(read_suite(tmp_path, sweeps_of({})), [toy, other], methods=["npz"])
    assert [(item.case.framework, item.case.method) for item in planned] == [("other", "npz")]


def test_worlds_replace_the_suites(tmp_path: Path, toy: FrameworkEntry) -> None:
    planned = planning.plan(
        read_suite(tmp_path, sweeps_of({"method": "plain"})), [toy], worlds=[2, 4]
    )
    assert [item.case.world for item in planned] == [2, 4]


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        (
            {"methods": ["plian"]},
            r"unknown method 'plian' in framework toy; did you mean 'plain'\? "
            r"\(known: liar, plain, quick, slow\)",
        ),
        ({"device": "cuda"}, r"unknown device 'cuda' in framework toy \(known: cpu\)"),
        ({"launcher": "mpiexec"}, r"unknown launcher 'mpiexec'.*\(known: local, mpirun, slurm\)"),
        ({"worlds": [1, 0]}, "a world has at least 1 rank, not 0"),
        ({"launcher": "local", "worlds": [2]}, "launcher 'local' starts one process"),
        (
            {"options": {"crx": False}},
            r"unknown option 'crx' of the selected methods; did you mean 'crc'\?",
        ),
        (
            {"options": {"codec": "zip"}, "methods": ["slow"]},
            "unknown option 'codec' of the selected methods",
        ),
        (
            {"options": {"crc": "off"}},
            "option 'crc' of method 'plain' takes a bool such as true, not 'off'",
        ),
        ({"options": {"crc": 0}}, "option 'crc' of method 'plain' takes a bool"),
    ],
)
def test_a_wrong_wish_is_refused(
    tmp_path: Path, toy: FrameworkEntry, wishes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        planning.plan(read_suite(tmp_path, SWEEP), [toy], **wishes)


def test_a_method_that_no_framework_has_is_refused_in_a_suite_too(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    with pytest.raises(
        UsageError, match="unknown method 'plane' in frameworks toy, .*did you mean 'plain'"
    ):
        planning.plan(read_suite(tmp_path, sweeps_of({"method": "plane"})), [toy])


def test_nothing_to_run_is_an_error(tmp_path: Path) -> None:
    plain = declared(tmp_path / "adapters", "plain", {"npz": "listed = 'default'"})
    with pytest.raises(UsageError, match="suite test has nothing to run for framework plain"):
        planning.plan(read_suite(tmp_path, sweeps_of({"method": "fast"})), [plain])


def test_options_show_in_the_name_of_the_methods_that_have_them(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    planned = planning.plan(read_suite(tmp_path, SWEEP), [toy], options={"level": 2, "crc": False})
    assert method_names(planned) == ["plain[crc=false,level=2.0]", "quick", "slow[crc=false]"]
    assert planned[0].case.options == {"crc": False, "level": 2.0, "codec": "none"}


def test_options_are_read_as_toml_values_and_bare_words() -> None:
    parsed = options.parse_options(["crc=false", "level=2", "codec=zstd", "name='a=b'", "empty="])
    assert parsed == {"crc": False, "level": 2, "codec": "zstd", "name": "a=b", "empty": ""}


@pytest.mark.parametrize("pair", ["crc", "=1", ""])
def test_an_option_needs_a_key_and_a_value(pair: str) -> None:
    with pytest.raises(UsageError, match="a method's option must be KEY=VALUE"):
        options.parse_options([pair])
