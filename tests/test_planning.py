"""A suite's sweeps become planned cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_framework import HEAD, SWEEP, declared, method_names, read_suite, sweeps_of

import workloads
from harness import experiments as known
from harness.driver import catalog, planning, suite
from harness.driver.declarations import FrameworkEntry, Speed
from harness.driver.units import needed_disk_bytes, state_bytes
from harness.run.errors import UsageError

pytest_plugins = ["shared_fixtures"]


def test_a_case_carries_what_its_method_and_sweep_declare(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    text = sweeps_of(
        {
            "method": "slow",
            "dropout": 0.25,
            "samples": 5,
            "warmups": 0,
            "repeats": 7,
            "processes": 3,
        }
    )
    [item] = planning.plan(read_suite(tmp_path, text), [toy])
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
    text = sweeps_of({"method": ["plain", "quick"], "world": [1, 2], "dropout": [0, 0.1]})
    planned = planning.plan(read_suite(tmp_path, text), [toy])
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
    assert (
        method_names(planning.plan(read_suite(tmp_path, sweeps_of({"method": wanted})), [toy]))
        == expected
    )


@pytest.fixture
def with_stores(tmp_path: Path) -> FrameworkEntry:
    """Return a framework whose stores have the traits of its methods."""
    methods = {
        "plain": "listed = 'default'",
        "manager": "store = true\nspeed = 'fastest-known'",
        "behind": "store = true\nasynchronous = true",
    }
    return declared(tmp_path / "adapters", "toy", methods)


STRIKES = {"experiment": "faults", "samples": None}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["all", "default", "fast", "asynchronous"], ["plain"]),
        ("stores", ["manager", "behind"]),
        (["all", "stores"], ["plain", "manager", "behind"]),
        ("behind", ["behind"]),
    ],
)
def test_stores_are_taken_by_their_own_trait_alone(
    tmp_path: Path, with_stores: FrameworkEntry, wanted: str | list[str], expected: list[str]
) -> None:
    strikes = read_suite(tmp_path, sweeps_of({**STRIKES, "method": wanted}))
    assert method_names(planning.plan(strikes, [with_stores])) == expected


@pytest.mark.parametrize(("name", "means"), [("stores", "means stores"), ("behind", "is a store")])
def test_an_experiment_of_methods_refuses_stores(
    tmp_path: Path, with_stores: FrameworkEntry, name: str, means: str
) -> None:
    message = (
        f"'{name}' {means}, and experiment cost measures none; name a method, or run a suite "
        "whose experiment measures stores: faults"
    )
    with pytest.raises(UsageError, match=message):
        planning.plan(read_suite(tmp_path, sweeps_of({})), [with_stores], methods=["plain", name])
    with pytest.raises(UsageError, match=message):
        planning.plan(read_suite(tmp_path, sweeps_of({"method": name})), [with_stores])


def test_a_store_that_is_asked_for_goes_to_the_experiments_of_stores(
    tmp_path: Path, with_stores: FrameworkEntry
) -> None:
    both = read_suite(tmp_path, sweeps_of({"method": "plain"}, {**STRIKES, "method": "all"}))
    planned = planning.plan(both, [with_stores], methods=["manager", "plain"])
    measured = [(item.case.method, item.case.experiment) for item in planned]
    assert measured == [("plain", "cost"), ("plain", "faults"), ("manager", "faults")]


def test_a_case_of_two_sweeps_is_planned_once(tmp_path: Path, toy: FrameworkEntry) -> None:
    text = sweeps_of({"method": "plain", "samples": 4}, {"method": "all", "samples": 2})
    planned = planning.plan(read_suite(tmp_path, text), [toy])
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
    text = sweeps_of(
        {
            "workload": ["llm-slice", "resnet50"],
            "precision": ["float32", "bf16-mixed"],
            "method": "plain",
        }
    )
    cases = [item.case for item in planning.plan(read_suite(tmp_path, text), [toy])]
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
        read_suite(
            tmp_path, sweeps_of({"workload": ["llm-slice", "resnet50"], "precision": "bf16-mixed"})
        )


@pytest.mark.parametrize("name", suite.names())
def test_the_suites_of_this_repository_plan(name: str) -> None:
    planned = planning.plan(suite.load(name), list(catalog.frameworks().values()))
    experiments = {item.case.experiment for item in planned}
    several = {
        "resume": {"resume", "rerun"},
        "gate": {"cost", "train"},
        "train-ranks": {"cost", "train"},
        "gpu": {"cost", "train"},
        "gpu-short": {"cost", "train"},
        "faults-disks": {"faults"},
        "faults-ranks": {"killed_rank"},
        "recovery-full": {"recovery", "drill"},
        "recovery-large": {"recovery"},
        "drills": {"drill"},
        "goodput-quick": {"goodput"},
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


def test_the_suite_goodput_has_nine_cells_for_each_of_two_frameworks() -> None:
    frameworks = [catalog.frameworks()[name] for name in ("pytorch", "chainer")]
    cases = [item.case for item in planning.plan(suite.load("goodput"), frameworks)]
    for framework in ("pytorch", "chainer"):
        cells = {
            (case.method, case.settings["interval"], case.settings["mtbf"])
            for case in cases
            if case.framework == framework
        }
        assert len(cells) == 9
        for values in zip(*cells, strict=True):
            assert len(set(values)) == 3
    assert len(cases) == 18


def test_a_slow_method_has_its_own_number_of_processes(tmp_path: Path) -> None:
    framework = declared(
        tmp_path / "adapters", "toy", {"plain": "listed = 'default'", "packed": "speed = 'slow'"}
    )
    slow = {"slow_samples": 2, "slow_processes": 1}
    sweeps = read_suite(
        tmp_path, sweeps_of({"method": "all", "processes": 2, "samples": 3, **slow})
    )
    counts = {
        item.case.method: (item.samples, item.processes)
        for item in planning.plan(sweeps, [framework])
    }
    assert counts == {"plain": (3, 2), "packed": (2, 1)}


def test_a_slow_method_takes_fewer_samples_and_nothing_twice(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    plain, quick, slow = planning.plan(
        read_suite(tmp_path, sweeps_of({"samples": 3, "slow_samples": 1})), [toy]
    )
    assert [(item.samples, item.warmups, item.repeats) for item in (plain, quick, slow)] == [
        (3, 1, 2),
        (3, 1, 2),
        (1, 0, 0),
    ]


def test_a_failure_is_expected_where_it_is_declared(tmp_path: Path, toy: FrameworkEntry) -> None:
    text = sweeps_of({"precision": ["float32", "bf16-mixed"], "method": "quick"})
    planned = planning.plan(read_suite(tmp_path, text), [toy])
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
    planned = planning.plan(read_suite(tmp_path, PARITY), [toy])
    assert [(item.case.experiment, item.case.workload, item.case.method) for item in planned] == [
        ("parity", "llm-slice", ""),
        ("parity", "candle-mlp", ""),
    ]
    assert {item.processes for item in planned} == {1}
    with pytest.raises(
        UsageError,
        match="suite test has nothing to run for framework toy with these workloads and methods",
    ):
        planning.plan(read_suite(tmp_path, PARITY), [toy], methods=["plain"])


def test_the_sizes_experiment_has_its_own_number_of_processes(
    tmp_path: Path, toy: FrameworkEntry
) -> None:
    text = SWEEP.replace("samples = 2", 'experiment = "sizes"')
    assert {item.processes for item in planning.plan(read_suite(tmp_path, text), [toy])} == {2}


def test_a_method_is_measured_where_it_has_something_to_say(tmp_path: Path) -> None:
    methods = {
        "whole": "listed = 'default'",
        "pair": "min_world = 2",
        "trap": 'experiments = ["resume"]',
    }
    framework = declared(tmp_path / "adapters", "toy", methods)
    cost = read_suite(tmp_path, sweeps_of({"method": "all", "world": [1, 2]}))
    assert [(item.case.method, item.case.world) for item in planning.plan(cost, [framework])] == [
        ("whole", 1),
        ("whole", 2),
        ("pair", 2),
    ]
    named = planning.plan(cost, [framework], methods=["trap"], worlds=[1])
    assert [item.case.method for item in named] == ["trap"], "the user's word counts more"


def test_a_suite_may_name_what_another_framework_has(tmp_path: Path, toy: FrameworkEntry) -> None:
    text = sweeps_of({"method": ["plain", "torch-save"]})
    assert [item.case.method for item in planning.plan(read_suite(tmp_path, text), [toy])] == [
        "plain"
    ]
    with pytest.raises(UsageError, match="unknown method 'torchsave'"):
        planning.plan(read_suite(tmp_path, sweeps_of({"method": "torchsave"})), [toy])


def test_strategies_are_for_several_ranks(tmp_path: Path) -> None:
    strategies = (
        "[strategies.one]\ndescription = 'a'\ndefault = true\n"
        "[strategies.parts]\ndescription = 'b'\nsharded = true\n"
    )
    framework = declared(
        tmp_path / "adapters",
        "toy",
        {"plain": "listed = 'default'", "parts": "takes_shards = true"},
        HEAD + strategies,
    )
    both = read_suite(
        tmp_path, sweeps_of({"method": "all", "world": [1, 2], "strategy": ["default", "sharded"]})
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
    framework = declared(tmp_path / "adapters", "toy", methods, HEAD + strategies)
    sweeps = read_suite(
        tmp_path, sweeps_of({"method": "all", "world": [4], "strategy": ["default", "sharded"]})
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
            planning.plan(read_suite(tmp_path, sweeps_of(changes)), [toy])


def test_a_method_that_its_framework_breaks_gives_the_frameworks_own_reason(tmp_path: Path) -> None:
    broken = "[[methods.plain.expected_failures]]\nreason = 'no infinity'\n"
    framework = declared(tmp_path / "adapters", "toy", {"plain": "listed = 'default'\n" + broken})
    text = sweeps_of(
        {"experiment": "reshard", "method": "all", "samples": None, "world": 2, "load_world": 1}
    )
    (planned,) = planning.plan(read_suite(tmp_path, text), [framework])
    assert (planned.unsupported, planned.expected_failure) == ("", "no infinity")


def test_what_no_other_number_of_ranks_can_load_is_unsupported(tmp_path: Path) -> None:
    framework = declared(
        tmp_path / "adapters",
        "toy",
        {"plain": "listed = 'default'", "any": "readable_by = 'any-world'"},
    )
    text = sweeps_of(
        {
            "experiment": "reshard",
            "method": "all",
            "samples": None,
            "world": 2,
            "load_world": [1, 4],
        }
    )
    planned = planning.plan(read_suite(tmp_path, text), [framework])
    assert [
        (item.case.method, item.case.load_world, bool(item.unsupported)) for item in planned
    ] == [
        ("plain", 1, True),
        ("any", 1, False),
        ("plain", 4, True),
        ("any", 4, False),
    ]


PEERS = """
[peers.torchrun]
class = "adapters.elastic.launched:Launched"
launch = ["-m", "launcher", "--ranks={ranks}"]
description = "a launcher of its own"
"""


def test_a_way_of_a_frameworks_own_is_planned_where_it_is_declared(tmp_path: Path) -> None:
    default = {"plain": 'listed = "default"'}
    plain = declared(tmp_path, "plain", default)
    elastic = declared(tmp_path, "elastic", default, head=HEAD + PEERS)
    text = sweeps_of(
        {
            "experiment": "recovery",
            "way": ["shrink", "torchrun", "live-devices"],
            "world": 2,
            "samples": None,
        }
    )
    planned = planning.plan(read_suite(tmp_path, text), [plain, elastic])
    ways = [(item.case.framework, item.case.settings["way"]) for item in planned]
    assert ways == [("plain", "shrink"), ("elastic", "shrink"), ("elastic", "torchrun")]
    assert [item.case.peers for item in planned[:2]] == [{}, {}]
    assert planned[2].case.peers == {
        "class": "adapters.elastic.launched:Launched",
        "launch": ["-m", "launcher", "--ranks={ranks}"],
    }


def test_peers_with_packages_of_their_own_change_no_other_case(tmp_path: Path) -> None:
    environments = """
[environments.healing]
requirements = ["healer==1.0"]

[environments.writing]
requirements = ["writer==1.0"]
"""
    own = PEERS.replace("description", 'environment = "healing"\ndescription')
    methods = {"plain": 'listed = "default"', "written": 'environment = "writing"'}
    framework = declared(tmp_path, "elastic", methods, head=HEAD + own + environments)
    text = sweeps_of(
        {
            "experiment": "recovery",
            "method": "all",
            "way": ["shrink", "torchrun"],
            "world": 2,
            "samples": None,
        }
    )
    planned = planning.plan(read_suite(tmp_path, text), [framework])
    cases = {(item.case.settings["way"], item.case.method): item for item in planned}
    assert cases["shrink", "plain"].case.environment == "elastic"
    assert cases["torchrun", "plain"].case.environment == "elastic+healing"
    assert framework.packages_of()["elastic+healing"][-1] == "healer"
    refused = [(way, item.unsupported) for (way, _), item in cases.items() if item.unsupported]
    words = "it needs the packages of writing, and the ranks need those of healing"
    assert refused == [("torchrun", words)]


def test_an_unknown_environment_of_peers_is_refused(tmp_path: Path) -> None:
    own = PEERS.replace("description", 'environment = "heeling"\ndescription')
    head = HEAD + own + '[environments.healing]\nrequirements = ["healer==1.0"]\n'
    with pytest.raises(UsageError, match=r"'heeling'.*healing"):
        declared(tmp_path, "elastic", {"plain": 'listed = "default"'}, head=head)
