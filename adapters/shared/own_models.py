"""Models of the user's own, as their `make` returns them in PyTorch, Keras and Chainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from adapters.base import UnusableModel

STEP_ARGUMENTS = 2


class Made(NamedTuple):
    """The parts that a user's `make` returned.

    `optimizers` are by name; a single one has the name "". `step` takes the model and the number of
    steps taken so far, and returns the loss. It is None where there is none.
    """

    model: Any
    optimizers: Mapping[str, Any]
    step: Callable[[Any, int], Any] | None


def taken_apart(made: object, model_type: type[Any], optimizer_type: type[Any]) -> Made:
    """Return the parts of what `make` returned. Raise UnusableModel where they are not as needed.

    It must be a model and an optimizer, or a dictionary of optimizers, and a step function if
    wanted.
    """
    if isinstance(made, list):
        made = tuple(made)
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise UnusableModel(
            "it must return a model and an optimizer, and a step function if wanted, "
            f"not {in_words(made)}"
        )
    model, optimizer, step = (*made, None)[:3]
    if not isinstance(model, model_type):
        raise UnusableModel(
            f"the first value that it returns must be a {_full_name(model_type)}, "
            f"not {in_words(model)}"
        )
    optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"": optimizer}
    for name, each in optimizers.items():
        if not isinstance(each, optimizer_type):
            which = f" ({name})" if name else ""
            raise UnusableModel(
                f"the second value that it returns must be a {_full_name(optimizer_type)}, "
                f"or a dictionary of them by name, not {in_words(each)}{which}"
            )
    if isinstance(optimizer, Mapping) and not all(
        isinstance(name, str) and name for name in optimizers
    ):
        raise UnusableModel("the dictionary of optimizers must have their names as keys")
    if not optimizers:
        raise UnusableModel("the dictionary of optimizers is empty")
    if step is not None:
        require_step(step, "third", "the model")
    return Made(model, optimizers, step)


def require_step(step: object, position: str, trained: str) -> None:
    """Raise UnusableModel unless `step` is a function of what is trained and of a number."""
    if not callable(step):
        raise UnusableModel(
            f"the {position} value that it returns must be a step function, not {in_words(step)}"
        )
    try:
        inspect.signature(step).bind(*[None] * STEP_ARGUMENTS)
    except TypeError as error:
        raise UnusableModel(
            f"the step function must take two arguments, {trained} and the number of steps taken "
            "so far"
        ) from error
    except ValueError:
        # Functions of extensions need not have a signature.
        return


def in_words(value: object) -> str:
    """Return a value's type in words, such as "an int", and of a tuple also those of its parts."""
    if value is None:
        return "None"
    if isinstance(value, tuple):
        parts = ", ".join(type(part).__name__ for part in value)
        return f"{len(value)} values ({parts})"
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    return f"{article} {name}"


def _full_name(kind: type[Any]) -> str:
    return f"{kind.__module__.partition('.')[0]} {kind.__name__}"
