"""From suites to cases: sweeps, narrowing, options and everything that can be misspelt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import workloads
from harness import experiments as known
from harness.driver import catalog, options, planning, suite
from harness.driver.catalog import FrameworkEntry, Speed
from harness.driver.suite import Suite
from harness.driver.units import needed_disk_bytes, state_bytes
from harness.run.errors import UsageError
from harness.run.plan import PlannedCase

HEAD = """
[framework]
class = "adapters.toy.framework:Toy"
devices = ["cpu"]
packages = []
"""

METHOD = """
[methods.{name}]
class = "adapters.toy.{name}:{name}"
covers = "full"
format = "zip"
description = "a method"
{traits}
"""

SWEEP = """
description = "a test"
[[sweep]]
workload = "llm-slice"
preset = "small"
precision = "float32"
method = "all"
samples = 2
"""


def _framework(
    folder: Path, name: str, methods: dict[str, str], head: str = HEAD
) -> FrameworkEntry:
    path = folder / name / "adapter.toml"
    path.parent.mkdir(parents=True)
    path.write_text(
        head
        + "".join(METHOD.format(name=method, traits=traits) for method, traits in methods.items())
    )
    return catalog.read(path)


@pytest.fixture
def toy(tmp_path: Path) -> FrameworkEntry:
    """Return a framework with a method of each kind."""
    methods = {
        "plain": "listed = 'default'\noptions = { crc = true, level = 1.5, codec = 'none' }",
        "quick": (
            "speed = 'fastest-known'\nown_process = true\n"
            "expected_failures = [{reason = 'boom', precision = 'float32'}]"
        ),
        "slow": "speed = 'slow'\nrank_local = true\noptions = { crc = true }",
        "liar": "listed = 'test-double'",
    }
    return _framework(tmp_path / "adapters", "toy", methods)


def _suite(folder: Path, text: str) -> Suite:
    (folder / "test.toml").write_text(text)
    return suite.load("test", folder)


def _sweeps(*sweeps: dict[str, Any]) -> str:
    """Return a suite's text: one sweep over SWEEP's values for each dictionary."""
    defaults: dict[str, Any] = {
        "workload": "llm-slice",
        "preset": "small",
        "precision": "float32",
        "method": "all",
        "samples": 2,
    }
    tables = [{**defaults, **sweep} for sweep in sweeps]
    lines = [
        "\n".join(
            [
                "[[sweep]]",
                *(f"{key} = {_toml(value)}" for key, value in table.items() if value is not None),
            ]
        )
        for table in tables
    ]
    return "\n".join(["description = 'a test'", *lines])


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _methods(planned: list[PlannedCase]) -> list[str]:
    return [item.case.method for item in planned]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'preset = "small"',
            'pre_set = "small"',
            r"sweep\.0: unknown key 'pre_set'; did you mean 'preset'\?",
        ),
        ("[[sweep]]", "[[sweeps]]", r"unknown key 'sweeps'; did you mean 'sweep'\?"),
        (
            '"llm-slice"',
            '"llm_slice"',
            r"sweep\.0: unknown workload 'llm_slice'; did you mean 'llm-slice'\?",
        ),
        (
            '"small"',
            '["small", "smal"]',
            r"sweep\.0: unknown preset 'smal' of workload llm-slice; did you mean 'small'\?",
        ),
        (
            '"float32"',
            '["float32", "float23"]',
            r"sweep\.0: unknown precision 'float23'; did you mean 'float32'\?",
        ),
        ("samples = 2", "samples = 0", r"sweep\.0\.samples: .*greater than or equal to 1, not 0"),
        ("samples = 2", 'samples = "2"', r"sweep\.0\.samples: .*not '2'"),
        (
            "samples = 2",
            "",
            r"sweep\.0: experiment 'cost' needs 'samples': how many samples each process takes",
        ),
        (
            "samples = 2",
            'experiment = "size"',
            r"sweep\.0: unknown experiment 'size'; did you mean 'sizes'",
        ),
        (
            "samples = 2",
            'samples = 2\nexperiment = "sizes"',
            r"sweep\.0: experiment 'sizes' takes no samples, so leave 'samples' out",
        ),
        (
            "samples = 2",
            'experiment = "parity"',
            r"sweep\.0: experiment 'parity' measures no methods, so leave 'method' out",
        ),
        (
            'method = "all"',
            "",
            r"sweep\.0: experiment 'cost' needs 'method': the methods that it measures",
        ),
        ("samples = 2", "samples = 2\nworld = [1, 0]", r"sweep\.0\.world\.1: .*not 0"),
        ("samples = 2", "samples = 2\nworld = true", r"sweep\.0\.world\.0: .*not True"),
        ("samples = 2", "samples = 2\ndropout = 1.0", r"sweep\.0\.dropout\.0: .*less than 1"),
        ("samples = 2", "samples = 2\nwarmups = -1", r"sweep\.0\.warmups: "),
        ('method = "all"', "method = []", r"sweep\.0\.method: "),
        ('method = "all"', "method = [3]", r"sweep\.0\.method\.0: .*not 3"),
        ('description = "a test"', "", "description: field required"),
    ],
)
def test_a_broken_suite_names_file_and_key(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        _suite(tmp_path, SWEEP.replace(old, new, 1))
    assert str(tmp_path / "test.toml") in str(caught.value)


def test_an_unknown_suite_is_named(tmp_path: Path) -> None:
    (tmp_path / "smoke.toml").write_text(SWEEP)
    with pytest.raises(UsageError, match=r"unknown suite 'smok'; did you mean 'smoke'\?"):
        suite.load("smok", tmp_path)


def test_a_case_carries_what_its_method_and_sweep_declare(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    text = _sweeps(
        {
            "method": "slow",
            "dropout": 0.25,
            "samples": 5,
            "warmups": 0,
            "repeats": 7,
            "processes": 3,
        }
    )
    [item] = planning.plan(_suite(tmp_path, text), [toy])
    case = item.case
    assert (case.framework, case.framework_path) == ("toy", "adapters.toy.framework:Toy")
    assert (case.method, case.method_path, case.options) == (
        "slow",
        "adapters.toy.slow:slow",
        {"crc": True},
    )
    assert (case.workload, case.preset, case.precision, case.dropout) == (
        "llm-slice",
        "small",
        "float32",
        0.25,
    )
    assert (case.covers, case.rank_local, case.device, case.world, case.launcher) == (
        "full",
        True,
        "cpu",
        1,
        "local",
    )
    assert (item.samples, item.warmups, item.repeats, item.processes) == (5, 0, 7, 3)
    assert (item.own_process, item.expected_failure) == (False, None)


def test_lists_multiply_out(tmp_path: Path, toy: FrameworkEntry) -> None:
    text = _sweeps({"method": ["plain", "quick"], "world": [1, 2], "dropout": [0, 0.1]})
    planned = planning.plan(_suite(tmp_path, text), [toy])
    assert len({item.case.id for item in planned}) == len(planned) == 8
    assert {(item.case.world, item.case.launcher) for item in planned} == {
        (1, "local"),
        (2, "mpirun"),
    }


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("all", ["plain", "quick", "slow"]),
        ("default", ["plain"]),
        ("fast", ["quick"]),
        (["fast", "default", "plain"], ["plain", "quick"]),
        (["all", "liar"], ["plain", "quick", "slow", "liar"]),
    ],
)
def test_traits_mean_methods_but_never_test_doubles(
    tmp_path: Path, toy: FrameworkEntry, wanted: str | list[str], expected: list[str]
) -> None:
    assert _methods(planning.plan(_suite(tmp_path, _sweeps({"method": wanted})), [toy])) == expected


def test_a_case_of_two_sweeps_is_planned_once(tmp_path: Path, toy: FrameworkEntry) -> None:
    text = _sweeps({"method": "plain", "samples": 4}, {"method": "all", "samples": 2})
    planned = planning.plan(_suite(tmp_path, text), [toy])
    assert [(item.case.method, item.samples) for item in planned] == [
        ("plain", 4),
        ("quick", 2),
        ("slow", 2),
    ]


def test_a_precision_that_one_of_several_workloads_lacks_is_left_out(
    tmp_path: Path, toy: FrameworkEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        suite,
        "precisions",
        lambda name: ("float32", "bf16-mixed") if name == "llm-slice" else ("float32",),
    )
    text = _sweeps(
        {
            "workload": ["llm-slice", "resnet50"],
            "precision": ["float32", "bf16-mixed"],
            "method": "plain",
        }
    )
    cases = [item.case for item in planning.plan(_suite(tmp_path, text), [toy])]
    assert [(case.workload, case.precision) for case in cases] == [
        ("llm-slice", "float32"),
        ("llm-slice", "bf16-mixed"),
        ("resnet50", "float32"),
    ]


def test_a_workload_without_any_of_the_precisions_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        suite, "precisions", lambda name: ("bf16-mixed",) if name == "llm-slice" else ("float32",)
    )
    with pytest.raises(UsageError, match="unknown precision 'bf16-mixed' of workload resnet50"):
        _suite(
            tmp_path, _sweeps({"workload": ["llm-slice", "resnet50"], "precision": "bf16-mixed"})
        )


def test_workloads_narrow(tmp_path: Path, toy: FrameworkEntry) -> None:
    suite_ = _suite(tmp_path, _sweeps({"workload": ["llm-slice", "resnet50"], "method": "plain"}))
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
    text = _sweeps({"method": "all"}, {"method": "default", "preset": "middle"})
    planned = planning.plan(_suite(tmp_path, text), [toy], methods=["quick"])
    assert [(item.case.method, item.case.preset) for item in planned] == [("quick", "small")]


def test_a_method_that_no_sweep_lists_is_added(tmp_path: Path, toy: FrameworkEntry) -> None:
    suite_ = _suite(tmp_path, _sweeps({"method": "default"}))
    assert _methods(planning.plan(suite_, [toy], methods=["liar", "slow"])) == ["slow", "liar"]
    assert _methods(planning.plan(suite_, [toy], methods=["fast"])) == ["quick"]


def test_a_method_of_one_framework_is_left_out_of_the_others(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    other = _framework(tmp_path / "adapters", "other", {"npz": "listed = 'default'"})
    planned = planning.plan(_suite(tmp_path, _sweeps({})), [toy, other], methods=["npz"])
    assert [(item.case.framework, item.case.method) for item in planned] == [("other", "npz")]


def test_worlds_replace_the_suites(tmp_path: Path, toy: FrameworkEntry) -> None:
    planned = planning.plan(_suite(tmp_path, _sweeps({"method": "plain"})), [toy], worlds=[2, 4])
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
        planning.plan(_suite(tmp_path, SWEEP), [toy], **wishes)


def test_a_method_that_no_framework_has_is_refused_in_a_suite_too(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    with pytest.raises(
        UsageError, match="unknown method 'plane' in frameworks toy, .*did you mean 'plain'"
    ):
        planning.plan(_suite(tmp_path, _sweeps({"method": "plane"})), [toy])


def test_nothing_to_run_is_an_error(tmp_path: Path) -> None:
    plain = _framework(tmp_path / "adapters", "plain", {"npz": "listed = 'default'"})
    with pytest.raises(UsageError, match="suite test has nothing to run for framework plain"):
        planning.plan(_suite(tmp_path, _sweeps({"method": "fast"})), [plain])


def test_options_show_in_the_name_of_the_methods_that_have_them(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    planned = planning.plan(_suite(tmp_path, SWEEP), [toy], options={"level": 2, "crc": False})
    assert _methods(planned) == ["plain[crc=false,level=2.0]", "quick", "slow[crc=false]"]
    assert planned[0].case.options == {"crc": False, "level": 2.0, "codec": "none"}


def test_options_are_read_as_toml_values_and_bare_words() -> None:
    parsed = options.parse_options(["crc=false", "level=2", "codec=zstd", "name='a=b'", "empty="])
    assert parsed == {"crc": False, "level": 2, "codec": "zstd", "name": "a=b", "empty": ""}


@pytest.mark.parametrize("pair", ["crc", "=1", ""])
def test_an_option_needs_a_key_and_a_value(pair: str) -> None:
    with pytest.raises(UsageError, match="a method's option must be KEY=VALUE"):
        options.parse_options([pair])


@pytest.mark.parametrize("name", suite.names())
def test_the_suites_of_this_repository_plan(name: str) -> None:
    planned = planning.plan(suite.load(name), list(catalog.frameworks().values()))
    experiments = {item.case.experiment for item in planned}
    several = {
        "resume": {"resume", "rerun"},
        "gate": {"cost", "train"},
        "train-ranks": {"cost", "train"},
    }
    assert experiments == several.get(name, {name} if name in known.names() else {"cost"})
    if name in ("smoke", "bench", "full"):
        assert {item.case.workload for item in planned} == set(workloads.names())
        slow = {
            (entry.name, name)
            for entry in catalog.frameworks().values()
            for name, made in entry.methods.items()
            if made.speed is Speed.SLOW
        }
        sampled = [item for item in planned if (item.case.framework, item.case.method) not in slow]
        assert all(item.samples * item.processes >= 6 for item in sampled) or name == "smoke"


def test_a_slow_method_has_its_own_number_of_processes(tmp_path: Path) -> None:
    framework = _framework(
        tmp_path / "adapters", "toy", {"plain": "listed = 'default'", "packed": "speed = 'slow'"}
    )
    slow = {"slow_samples": 2, "slow_processes": 1}
    sweeps = _suite(tmp_path, _sweeps({"method": "all", "processes": 2, "samples": 3, **slow}))
    counts = {
        item.case.method: (item.samples, item.processes)
        for item in planning.plan(sweeps, [framework])
    }
    assert counts == {"plain": (3, 2), "packed": (2, 1)}


def test_a_slow_method_takes_fewer_samples_and_nothing_twice(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    plain, quick, slow = planning.plan(
        _suite(tmp_path, _sweeps({"samples": 3, "slow_samples": 1})), [toy]
    )
    assert [(item.samples, item.warmups, item.repeats) for item in (plain, quick, slow)] == [
        (3, 1, 2),
        (3, 1, 2),
        (1, 0, 0),
    ]


def test_a_failure_is_expected_where_it_is_declared(tmp_path: Path, toy: FrameworkEntry) -> None:
    text = _sweeps({"precision": ["float32", "bf16-mixed"], "method": "quick"})
    planned = planning.plan(_suite(tmp_path, text), [toy])
    assert [(item.case.precision, item.expected_failure) for item in planned] == [
        ("float32", "boom"),
        ("bf16-mixed", None),
    ]


PARITY = """
description = "a test"
[[sweep]]
experiment = "parity"
workload = ["llm-slice", "candle-mlp"]
preset = "small"
precision = "float32"
"""


def test_an_experiment_without_methods_has_one_case_for_each_state(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    planned = planning.plan(_suite(tmp_path, PARITY), [toy])
    assert [(item.case.experiment, item.case.workload, item.case.method) for item in planned] == [
        ("parity", "llm-slice", ""),
        ("parity", "candle-mlp", ""),
    ]
    assert {item.processes for item in planned} == {1}
    with pytest.raises(
        UsageError,
        match="suite test has nothing to run for framework toy with these workloads and methods",
    ):
        planning.plan(_suite(tmp_path, PARITY), [toy], methods=["plain"])


def test_the_sizes_experiment_has_its_own_number_of_processes(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    text = SWEEP.replace("samples = 2", 'experiment = "sizes"')
    assert {item.processes for item in planning.plan(_suite(tmp_path, text), [toy])} == {2}


def test_a_method_is_measured_where_it_has_something_to_say(tmp_path: Path) -> None:
    methods = {
        "whole": "listed = 'default'",
        "pair": "min_world = 2",
        "trap": 'experiments = ["resume"]',
    }
    framework = _framework(tmp_path / "adapters", "toy", methods)
    cost = _suite(tmp_path, _sweeps({"method": "all", "world": [1, 2]}))
    assert [(item.case.method, item.case.world) for item in planning.plan(cost, [framework])] == [
        ("whole", 1),
        ("whole", 2),
        ("pair", 2),
    ]
    named = planning.plan(cost, [framework], methods=["trap"], worlds=[1])
    assert [item.case.method for item in named] == ["trap"], "the user's word counts more"


def test_a_suite_may_name_what_another_framework_has(tmp_path: Path, toy: FrameworkEntry) -> None:
    text = _sweeps({"method": ["plain", "torch-save"]})
    assert [item.case.method for item in planning.plan(_suite(tmp_path, text), [toy])] == ["plain"]
    with pytest.raises(UsageError, match="unknown method 'torchsave'"):
        planning.plan(_suite(tmp_path, _sweeps({"method": "torchsave"})), [toy])


def test_strategies_are_for_several_ranks(tmp_path: Path) -> None:
    strategies = (
        "[strategies.one]\ndescription = 'a'\ndefault = true\n"
        "[strategies.parts]\ndescription = 'b'\nsharded = true\n"
    )
    framework = _framework(
        tmp_path / "adapters",
        "toy",
        {"plain": "listed = 'default'", "parts": "takes_shards = true"},
        HEAD + strategies,
    )
    both = _suite(
        tmp_path, _sweeps({"method": "all", "world": [1, 2], "strategy": ["default", "sharded"]})
    )
    planned = [
        (item.case.method, item.case.world, item.case.strategy)
        for item in planning.plan(both, [framework])
    ]
    assert planned == [
        ("plain", 1, ""),
        ("parts", 1, ""),
        ("plain", 2, "one"),
        ("parts", 2, "one"),
        ("parts", 2, "parts"),
    ]
    named = planning.plan(both, [framework], methods=["plain"], worlds=[2], strategies=["parts"])
    assert [(item.case.method, item.case.strategy) for item in named] == [("plain", "parts")]
    assert "no rank holds the whole" in named[0].unsupported, "the user's word gets an answer"
    with pytest.raises(
        UsageError, match="unknown strategy 'part' in framework toy; did you mean 'parts'"
    ):
        planning.plan(both, [framework], strategies=["part"])


def test_a_file_of_each_rank_holds_replicated_state_as_often_as_there_are_ranks(
    tmp_path: Path,
) -> None:
    strategies = (
        "[strategies.one]\ndescription = 'a'\ndefault = true\n"
        "[strategies.parts]\ndescription = 'b'\nsharded = true\n"
    )
    methods = {"plain": "listed = 'default'", "each": "writes = 'every-rank'\ntakes_shards = true"}
    framework = _framework(tmp_path / "adapters", "toy", methods, HEAD + strategies)
    sweeps = _suite(
        tmp_path, _sweeps({"method": "all", "world": [4], "strategy": ["default", "sharded"]})
    )
    plan = planning.plan(sweeps, [framework])
    copies = {(item.case.method, item.case.strategy): item.copies for item in plan}
    assert copies == {("plain", "one"): 1, ("each", "one"): 4, ("each", "parts"): 1}
    of_one, of_each, _ = (needed_disk_bytes([item]) for item in plan)
    assert of_each - of_one > 3 * state_bytes(plan[0].case), (
        "a directory that is too small for it is refused"
    )


def test_every_experiment_has_keys_of_its_own(tmp_path: Path, toy: FrameworkEntry) -> None:
    for changes, message in (
        ({"every": 3}, "only experiment 'train' has the key 'every'"),
        (
            {"experiment": "train"},
            "experiment 'train' needs 'every': the number of steps between two checkpoints",
        ),
        (
            {"experiment": "reshard", "method": "plain", "samples": None},
            "experiment 'reshard' needs 'load_world'",
        ),
        ({"workload": "resnet50", "weak": True}, "does not grow with the world"),
    ):
        with pytest.raises(UsageError, match=message):
            planning.plan(_suite(tmp_path, _sweeps(changes)), [toy])


def test_a_method_that_its_framework_breaks_gives_the_frameworks_own_reason(tmp_path: Path) -> None:
    broken = "[[methods.plain.expected_failures]]\nreason = 'no infinity'\n"
    framework = _framework(tmp_path / "adapters", "toy", {"plain": "listed = 'default'\n" + broken})
    text = _sweeps(
        {"experiment": "reshard", "method": "all", "samples": None, "world": 2, "load_world": 1}
    )
    (planned,) = planning.plan(_suite(tmp_path, text), [framework])
    assert (planned.unsupported, planned.expected_failure) == ("", "no infinity")


def test_what_no_other_number_of_ranks_can_load_is_unsupported(tmp_path: Path) -> None:
    framework = _framework(
        tmp_path / "adapters",
        "toy",
        {"plain": "listed = 'default'", "any": "readable_by = 'any-world'"},
    )
    text = _sweeps(
        {
            "experiment": "reshard",
            "method": "all",
            "samples": None,
            "world": 2,
            "load_world": [1, 4],
        }
    )
    planned = planning.plan(_suite(tmp_path, text), [framework])
    assert [
        (item.case.method, item.case.load_world, bool(item.unsupported)) for item in planned
    ] == [
        ("plain", 1, True),
        ("any", 1, False),
        ("plain", 4, True),
        ("any", 4, False),
    ]
