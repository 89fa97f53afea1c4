"""A model of the user's own as a Keras state: what `make` may return, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import keras
import numpy as np

from adapters.base import UnusableModel
from adapters.shared.own_models import in_words, require_step
from adapters.tensorflow.state import State, Tensor, Variable
from adapters.tensorflow.training import OwnTraining, RandomTraining

_SEED = "seed_generator_state"  # Keras's name of a seed and its counter
_FORM = (
    "it must return a compiled keras.Model, or a keras.Model and an optimizer, and a step function "
    "if wanted"
)


class OwnState(State):
    """A user's model and optimizer. Leaves have the paths that Keras gives to the variables."""

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from _named("weights", self.model.trainable_variables)
        yield from _named("buffers", self.model.non_trainable_weights)
        yield from _named("optimizer", self.optimizer.variables)
        for name, seed in self.rng.items():
            yield f"rng/{name}", Tensor(seed)
        yield "position/step", Tensor(self.step)


def new_state(made: object, seed: int, rank: int) -> OwnState:
    """Return the state of what a user's `make` returned, before its first step.

    `made` is a model, its optimizer unless the model is compiled, and a step function if wanted.
    Without one, random gradients train the model. Raise UnusableModel where it cannot be measured.
    """
    model, optimizer, step = _taken_apart(made)
    _require_parameters(model)
    if optimizer.built:
        _require_own_variables(model, optimizer)
    rng = dict(_by_path(_seeds(model)))
    _set_seeds(rng.values(), seed, rank)
    training = OwnTraining(step) if step is not None else RandomTraining()
    return OwnState(training, model, optimizer, rng)


def _taken_apart(made: object) -> tuple[keras.Model, keras.optimizers.Optimizer, object]:
    parts = list(made) if isinstance(made, tuple | list) else [made]
    if not parts or not isinstance(parts[0], keras.Model):
        raise UnusableModel(
            f"{_FORM}; the first value must be a keras.Model, and it returned {in_words(made)}"
        )
    model, *others = parts
    if others and isinstance(others[0], Mapping):
        raise UnusableModel(
            f"{_FORM}; Keras takes one optimizer, and it returned {len(others[0])} in a dictionary"
        )
    has_optimizer = bool(others) and isinstance(others[0], keras.optimizers.Optimizer)
    optimizer = others.pop(0) if has_optimizer else getattr(model, "optimizer", None)
    if optimizer is None:
        raise UnusableModel(
            f"{_FORM}; the model is not compiled, and no keras.optimizers.Optimizer follows it"
        )
    if len(others) > 1:
        raise UnusableModel(f"{_FORM}, not {in_words(made)}")
    step = others[0] if others else None
    if step is not None:
        require_step(step, "last", "the model")
    return model, optimizer, step


def _require_parameters(model: keras.Model) -> None:
    if not model.built:
        raise UnusableModel(
            "the model has no variables yet, because Keras makes them in the first call; call it "
            "once on an example, or build it, before it is returned"
        )
    if not model.trainable_variables:
        raise UnusableModel("the model has no parameters that can be trained")


def _require_own_variables(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Refuse an optimizer that was built for other variables than the model's."""
    own = [id(variable) for variable in model.trainable_variables]
    trained = [id(variable) for variable in optimizer._trainable_variables]
    if own != trained:
        raise UnusableModel(
            f"{type(optimizer).__name__} was built for {len(trained)} other variables than the "
            f"{len(own)} trainable ones of the model; was the model copied, or a layer frozen, "
            "after the optimizer was built?"
        )


def _seeds(model: keras.Model) -> list[keras.Variable]:
    """Return the seeds of random layers, each with the number of its draws."""
    return [variable for variable in model.variables if variable.name == _SEED]


def _set_seeds(seeds: Iterable[keras.Variable], seed: int, rank: int) -> None:
    """Give other seeds to every rank, so that each has dropout of its own."""
    random = np.random.default_rng((seed, rank))
    for variable in seeds:
        variable.assign([int(random.integers(2**31)), 0])


def _named(part: str, variables: Iterable[keras.Variable]) -> Iterator[tuple[str, Tensor]]:
    for path, variable in _by_path(variables):
        yield f"{part}/{path}", Tensor(variable)


def _by_path(variables: Iterable[Variable]) -> Iterator[tuple[str, Variable]]:
    """Yield variables by Keras's path, and by a number too where several have the same path."""
    seen: dict[str, int] = {}
    for variable in variables:
        path = variable.path
        seen[path] = seen.get(path, 0) + 1
        yield path if seen[path] == 1 else f"{path}#{seen[path]}", variable
