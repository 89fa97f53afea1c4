"""A model of the user's own as a Chainer state: what `make` may return, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import chainer
import numpy as np
from chainer import GradientMethod, Link, Parameter
from numpy.typing import NDArray

from adapters.base import UnusableModel
from adapters.chainer.modules import Array
from adapters.chainer.state import State
from adapters.chainer.strategies import Strategy
from adapters.chainer.training import OwnTraining, RandomTraining
from adapters.shared.own_models import taken_apart

Number = bool | int | float | np.generic


class OwnState(State):
    """A user's link and optimizer. Leaves have the paths of Chainer's serializers."""

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        trained = _parameters(self.model)
        for name, parameter in trained.items():
            yield f"weights/{name}", parameter.array
        for name, link, attribute in _persistent(self.model):
            value = getattr(link, attribute)
            if not isinstance(value, Number):
                yield f"buffers/{name}", value
        for name, parameter in trained.items():
            for slot, values in (parameter.update_rule.state or {}).items():
                yield f"optimizer/{slot}/{name}", values
        yield "rng/numpy", self.rng

    def _numbers(self) -> Iterator[tuple[str, object, str]]:
        for name, link, attribute in _persistent(self.model):
            if isinstance(getattr(link, attribute), Number):
                yield f"buffers/{name}", link, attribute
        for name, parameter in _parameters(self.model).items():
            yield f"optimizer/step/{name}", parameter.update_rule, "t"
        yield "optimizer/step", self.optimizer, "t"
        yield "position/step", self, "step"


def new_state(
    made: object, device: chainer.device.Device, strategy: Strategy, rng: NDArray[np.uint32]
) -> OwnState:
    """Return the state of what a user's `make` returned, before its first step.

    `made` is a link and an optimizer, and a step function if wanted. Without one, random gradients
    train the link. Raise UnusableModel where it cannot be measured.
    """
    model, optimizers, step = taken_apart(made, Link, GradientMethod)
    if list(optimizers) != [""]:
        raise UnusableModel(
            f"a Chainer model is trained by one optimizer here, and it returned {len(optimizers)} "
            "in a dictionary"
        )
    optimizer = optimizers[""]
    _require_parameters(model, needs_values=step is None)
    _require_device(model, device)
    _set_up(optimizer, model)
    training = OwnTraining(step) if step is not None else RandomTraining()
    return OwnState(training, model, optimizer, strategy, rng)


def make_slots(state: State) -> None:
    """Make the slots that the optimizer has not made yet, once all parameters have values.

    Under ChainerMN the first update takes no step, and a load needs the slots.
    """
    for name, parameter in _parameters(state.model).items():
        if parameter.array is None:
            raise UnusableModel(
                f"{name} has no values after a step, so the step function does not use it"
            )
        parameter.update_rule._init_states(parameter)


def require_comparable(state: State) -> None:
    """Raise UnusableModel where links keep what is neither an array nor a number."""
    arrays = chainer.get_array_types()
    for name, link, attribute in _persistent(state.model):
        value = getattr(link, attribute)
        if not isinstance(value, (*arrays, Number)):
            raise UnusableModel(
                f"the link keeps the persistent value {name} as a {type(value).__name__}, and only "
                "arrays and numbers can be compared bit by bit"
            )


def _require_parameters(model: Link, needs_values: bool) -> None:
    trained = _parameters(model)
    if not trained:
        raise UnusableModel(
            "the model has no parameters; a Chain registers the links that it makes within "
            "init_scope() alone"
        )
    for name, parameter in trained.items():
        if needs_values and parameter.array is None:
            raise UnusableModel(
                f"{name} has no values, because its size is not known before the first call; call "
                "the model once, or return a step function too"
            )


def _require_device(model: Link, device: chainer.device.Device) -> None:
    for name, parameter in _parameters(model).items():
        if parameter.device != device:
            raise UnusableModel(
                f"{name} is on {parameter.device}, and the run is on {device}; move the model "
                "there by to_device before it is returned, or give another --device"
            )


def _set_up(optimizer: GradientMethod, model: Link) -> None:
    """Have an optimizer train the model. Refuse one that trains another already."""
    if optimizer.target is None:
        optimizer.setup(model)
    if optimizer.target is not model:
        raise UnusableModel(
            f"{type(optimizer).__name__} was set up for another {type(optimizer.target).__name__} "
            "than the model that was returned"
        )
    for name, parameter in _parameters(model).items():
        if parameter.update_rule is None:
            raise UnusableModel(
                f"{name} was added after the optimizer was set up, so nothing trains it"
            )


def _parameters(model: Link) -> dict[str, Parameter]:
    return {_name(path): parameter for path, parameter in model.namedparams()}


def _persistent(model: Link) -> Iterator[tuple[str, Link, str]]:
    """Yield the name, the link and the attribute of every persistent value."""
    for path, link in model.namedlinks():
        for attribute in sorted(link._persistent):
            yield _name(f"{path}/{attribute}"), link, attribute


def _name(path: str) -> str:
    """Return a path of Chainer as a name, such as stem.norm.gamma for /stem/norm/gamma."""
    return path.strip("/").replace("/", ".")
