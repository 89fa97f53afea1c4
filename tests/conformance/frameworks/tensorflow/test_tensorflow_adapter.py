"""The arithmetic of the TensorFlow adapter, which is not always Keras's."""

from __future__ import annotations

import numpy as np
from subject import train

import workloads
from adapters.tensorflow.framework import TensorFlow


def test_the_momentum_is_the_sum_of_gradients_and_not_of_changes(framework: TensorFlow) -> None:
    state = framework.build(workloads.load("resnet50", "small"), 1)
    optimizer = state.workload.optimizer
    first = {name: tensor.canonical() for name, tensor in state.tensors().items()}
    train(framework, state, 1)
    for variable in state.workload.parameters:
        change = (
            first[f"weights/{variable.name}"]
            - state.tensors()[f"weights/{variable.name}"].canonical()
        )
        momentum = state.tensors()[f"optimizer/momentum/{variable.name}"].canonical()
        np.testing.assert_allclose(change, optimizer.learning_rate * momentum, rtol=1e-4, atol=1e-6)


def test_the_running_variance_is_unbiased(framework: TensorFlow) -> None:
    from adapters.tensorflow.modules import BatchNorm

    images = np.random.default_rng(0).standard_normal((4, 2, 2, 3), dtype=np.float32)
    layer = BatchNorm(epsilon=1e-5, momentum=0.1)
    layer(images, training=True)
    np.testing.assert_allclose(
        layer.moving_variance.numpy(), 0.9 + 0.1 * images.var((0, 1, 2), ddof=1), rtol=1e-5
    )
    np.testing.assert_allclose(
        layer.moving_mean.numpy(), 0.1 * images.mean((0, 1, 2)), rtol=1e-4, atol=1e-6
    )
