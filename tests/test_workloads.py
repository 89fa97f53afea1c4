"""Workloads hold what the studies name, and the same arguments give the same ones."""

from __future__ import annotations

import numpy as np
import pytest

import workloads
from workloads import Role, Workload

EVERY = [
    (name, preset, precision)
    for name in workloads.names()
    for preset in workloads.presets(name)
    for precision in workloads.precisions(name)
]


@pytest.fixture(params=workloads.names())
def small(request: pytest.FixtureRequest) -> Workload:
    return workloads.load(request.param, "small")


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet50", 25_557_032), ("candle-mlp", 244_397_083), ("llm-slice", 220_213_248)],
)
def test_full_scale_has_exactly_the_parameters_of_the_original(name: str, count: int) -> None:
    assert workloads.load(name, "full").parameter_count == count


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("resnet50", 45, 60), ("candle-mlp", 170, 190), ("llm-slice", 150, 200)],
)
def test_middle_scale_in_megabytes(name: str, low: int, high: int) -> None:
    assert low <= workloads.load(name, "middle").state_bytes / 1e6 <= high


def test_small_scale_is_small(small: Workload) -> None:
    assert 0.5e6 <= small.state_bytes <= 3e6


def test_mixed_precision_takes_14_bytes_a_parameter() -> None:
    mixed = workloads.load("llm-slice", "full", "bf16-mixed")
    assert mixed.state_bytes == 14 * mixed.parameter_count


def test_resnet_has_the_batch_norm_statistics_of_the_original() -> None:
    assert sum(variable.size for variable in workloads.load("resnet50", "full").buffers) == 53_120


@pytest.mark.parametrize(("name", "preset", "precision"), EVERY)
def test_canonical_names_are_unique_and_tell_the_role(
    name: str, preset: str, precision: str
) -> None:
    specs = workloads.load(name, preset, precision).leaf_specs()
    prefixes = {Role.WEIGHT: "weights/", Role.BUFFER: "buffers/", Role.OPTIMIZER: "optimizer/"}
    assert len({spec.name for spec in specs}) == len(specs)
    assert all(spec.name.startswith(prefixes[spec.role]) for spec in specs)


def test_initial_values_depend_on_seed_and_name_alone(small: Workload) -> None:
    again = workloads.load(small.name, "small")
    for variable in (*small.parameters, *small.buffers):
        values = small.initial(variable.name, 1)
        assert values.dtype == np.float32
        assert values.shape == variable.shape
        assert np.array_equal(values, again.initial(variable.name, 1))


def test_random_initial_values_differ_across_seeds_and_names(small: Workload) -> None:
    matrices = [variable for variable in small.parameters if len(variable.shape) > 1]
    firsts = [
        small.initial(variable.name, seed).flat[0] for variable in matrices for seed in (1, 2)
    ]
    assert len(set(firsts)) == len(firsts)


@pytest.mark.parametrize("world", [2, 4])
def test_the_ranks_share_one_batch(small: Workload, world: int) -> None:
    whole = small.batch(3, 0, 1, seed=5)
    parts = [small.batch(3, rank, world, seed=5) for rank in range(world)]
    assert np.array_equal(np.concatenate([part.inputs for part in parts]), whole.inputs)
    assert np.array_equal(np.concatenate([part.targets for part in parts]), whole.targets)


def test_a_batch_is_a_pure_function_of_its_arguments(small: Workload) -> None:
    first = small.batch(7, 0, 1, seed=5)
    others = [small.batch(8, 0, 1, seed=5), small.batch(7, 0, 1, seed=6)]
    again = small.batch(7, 0, 1, seed=5)
    assert np.array_equal(first.inputs, again.inputs)
    assert not any(np.array_equal(first.inputs, other.inputs) for other in others)


def test_no_example_is_all_zeros(small: Workload) -> None:
    inputs = small.batch(0, 0, 1, seed=0).inputs
    assert inputs.reshape(len(inputs), -1).any(axis=1).all()


@pytest.mark.parametrize("world", [3, 16, 64])
def test_a_world_that_the_batch_does_not_suit_has_a_larger_one(small: Workload, world: int) -> None:
    parts = [small.batch(step, rank, world, seed=5) for step in (0, 1) for rank in range(world)]
    shares = {len(part.inputs) for part in parts}
    assert len(shares) == 1
    share = shares.pop()
    assert share >= small.least_share
    assert share * world >= small.batch_size
    whole = small.data.examples(0, 2 * share * world, 5)
    assert np.array_equal(np.concatenate([part.inputs for part in parts]), whole.inputs), (
        "no example twice, and none left out"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("resnet", "small"),
            "unknown workload 'resnet': valid are resnet50, candle-mlp, llm-slice",
        ),
        (
            ("resnet50", "huge"),
            "unknown preset of resnet50 'huge': valid are small, light, middle, full",
        ),
        (
            ("resnet50", "small", "bf16-mixed"),
            "unknown precision of resnet50 'bf16-mixed': valid are float32",
        ),
        (("resnet50", "small", "float32", 1.0), "dropout must be at least 0 and below 1, not 1.0"),
    ],
)
def test_wrong_names_get_one_clear_sentence(arguments: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        workloads.load(*arguments)
