"""The arithmetic of the Chainer adapter, which is not always Chainer's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chainer
import chainer.functions as F  # noqa: N812
import numpy as np
import pytest
from chainer.backends import cuda
from subject import new_framework, train, trained

import workloads
from adapters.chainer import modules
from adapters.chainer.framework import Chainer
from adapters.chainer.modules import embed_by_product, parameters
from adapters.chainer.state import SLOTS


def test_momentum_is_the_workloads_and_not_chainers(framework: Chainer) -> None:
    workload = workloads.load("resnet50", "small")
    state = trained(framework, workload, 1, 2)
    before = {name: array.copy() for name, array in state.arrays().items()}
    framework.gradients(state)
    gradients = {name: parameter.grad.copy() for name, parameter in parameters(state.model).items()}
    framework.update(state)
    definition = workload.optimizer
    for name, array in state.arrays().items():
        if name.startswith("optimizer/momentum/"):
            weight = name.removeprefix("optimizer/momentum/")
            slot = (
                definition.momentum * before[name]
                + gradients[weight]
                + definition.weight_decay * before[f"weights/{weight}"]
            )
            moved = before[f"weights/{weight}"] - definition.learning_rate * slot
            np.testing.assert_allclose(array, slot, rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(
                state.arrays()[f"weights/{weight}"], moved, rtol=1e-5, atol=1e-7
            )


def test_adam_adds_epsilon_where_the_workload_does(framework: Chainer) -> None:
    state = framework.build(workloads.load("llm-slice", "small"), 1)
    optimizer = state.optimizer
    # This is large enough to see where the optimizer adds it.
    optimizer.epsilon = 1e-3
    parameter = parameters(state.model)["head.weight"]
    moments = [np.zeros(parameter.shape) for _ in range(2)]
    expected = parameter.array.astype(np.float64)
    for step in range(1, 4):
        framework.gradients(state)
        gradient = parameter.grad.astype(np.float64)
        decays = (optimizer.beta1, optimizer.beta2)
        moments = [
            decay * moment + (1 - decay) * power
            for decay, moment, power in zip(decays, moments, (gradient, gradient**2), strict=True)
        ]
        first, second = (
            moment / (1 - decay**step) for decay, moment in zip(decays, moments, strict=True)
        )
        expected -= optimizer.alpha * first / (np.sqrt(second) + optimizer.epsilon)
        framework.update(state)
    for slot, moment in zip(("exp_avg", "exp_avg_sq"), moments, strict=True):
        np.testing.assert_allclose(
            parameter.update_rule.state[SLOTS[slot]],
            moment,
            rtol=1e-5,
            atol=1e-5 * np.abs(moment).max(),
        )
    np.testing.assert_allclose(parameter.array, expected, rtol=0, atol=1e-7)


def test_the_running_variance_is_the_unbiased_one(framework: Chainer) -> None:
    state = framework.build(workloads.load("resnet50", "small"), 1)
    images = state.workload.batch(0, 0, 1).inputs
    stem = state.model.stem.convolution(images).array.astype(np.float64)
    framework.gradients(state)
    expected = 0.9 + 0.1 * stem.var(axis=(0, 2, 3), ddof=1)
    np.testing.assert_allclose(state.arrays()["buffers/stem.norm.running_var"], expected, rtol=1e-6)


def test_the_look_up_of_a_gpu_is_that_of_a_cpu() -> None:
    random = np.random.default_rng(1)
    tokens = random.integers(0, 11, (3, 5)).astype(np.int32)
    values = random.normal(size=(11, 4)).astype(np.float32)
    gradient = random.normal(size=(3, 5, 4)).astype(np.float32)
    outputs: list[Any] = []
    gradients: list[Any] = []
    for look_up in (F.embed_id, embed_by_product):
        table = chainer.Parameter(values.copy())
        embedded = look_up(tokens, table)
        embedded.grad = gradient
        embedded.backward()
        outputs.append(embedded.array)
        gradients.append(table.grad)
    assert np.array_equal(*outputs)
    np.testing.assert_allclose(*gradients, rtol=1e-6)


def test_tokens_are_looked_up_as_chainer_does_on_a_cpu(
    framework: Chainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "embed_by_product", None)
    train(framework, framework.build(workloads.load("llm-slice", "small"), seed=1), 1)


@pytest.mark.skipif(cuda.available, reason="CuPy is installed")
def test_a_missing_cupy_is_the_reason(tmp_path: Path) -> None:
    framework = new_framework(tmp_path, device="cuda")
    reason = framework.unsupported(workloads.load("llm-slice", "small"), "cuda")
    assert reason is not None
    assert "No module named 'cupy'" in reason
