"""Building a model of the user's own once, and answering what the harness asks about it.

The driver needs the size of its state for a plan, and the user an answer before a run begins.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from adapters.base import DirectIo, Framework, Place, UnusableModel
from harness.worker import own_models
from harness.worker.bench import load_class
from harness.worker.verify import Digests, Mismatch, digests, equal_leaves
from workloads import Role

_SEED = 2026


def main(request_file: str, answer_file: str) -> None:
    """Read the request, and write the size of the state, or one sentence about what is wrong.

    Raise ModuleNotFoundError where the interpreter lacks what the framework's adapter imports.
    """
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    file = Path(request["file"])
    try:
        answer = look(request, file)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        is_adapters = isinstance(error, ModuleNotFoundError) and error.name is not None
        if is_adapters and not own_models.lines_of(error, file):
            raise
        # The user's text may end the program, and its libraries may panic.
        answer = {"error": own_models.sentence(error, file, request["function"])}
    Path(answer_file).write_text(json.dumps(answer), encoding="utf-8")


def look(request: dict[str, Any], file: Path) -> dict[str, Any]:
    """Build the model and take a step.

    Return how many bytes and leaves its state has, which modules beside the text it imported, how
    many seconds the import took, and which modules the methods need and the interpreter lacks.

    Raise UnusableModel where the framework takes no models or finds no device, or where a step
    changes nothing.
    """
    framework: Framework[Any] = load_class(request["framework"])()
    if type(framework).adopt is Framework.adopt:
        raise UnusableModel(
            f"{type(framework).__name__} takes no models of the user's own, because it has no "
            "method adopt; leave --model out"
        )
    refused = framework.unsupported(None, request["device"])
    if refused:
        raise UnusableModel(refused)
    # The user's imports come first, so that a mistake in them is not behind a slow start.
    begin_s = time.monotonic()
    make = own_models.load(file, request["function"])
    import_s = time.monotonic() - begin_s
    framework.start(_place(request))
    state = own_models.adopted(framework, make, _SEED)
    before = _named_digests(framework, state)
    framework.gradients(state)
    framework.update(state)
    after = _named_digests(framework, state)
    _require_moved(before, after)
    size_bytes = sum(digest.bytes for digest in after.values())
    modules = own_models.modules_of(file)
    return {
        "state_bytes": size_bytes,
        "leaves": len(after),
        "modules": modules,
        "import_s": import_s,
        "lacking": _lacking(request["methods"]),
    }


def _lacking(methods: dict[str, str]) -> dict[str, str]:
    """Return the module that the interpreter lacks for a method, by the method's name.

    `methods` has the class of each.
    """
    lacking = {}
    for method, class_path in methods.items():
        try:
            load_class(class_path)
        except ModuleNotFoundError as error:
            lacking[method] = str(error.name)
        except Exception:  # noqa: S112  # the method's row will say what is wrong
            continue
    return lacking


def _place(request: dict[str, Any]) -> Place:
    no_direct_io = DirectIo(direct=False, block_bytes=1 << 20, depth=1)
    return Place(
        rank=0,
        world=1,
        device=request["device"],
        temporary=Path(request["folder"]),
        io=no_direct_io,
    )


def _named_digests(framework: Framework[Any], state: Any) -> Digests:
    try:
        return digests(framework.leaves(state))
    except Mismatch as error:
        raise UnusableModel(str(error)) from error


def _require_moved(before: Digests, after: Digests) -> None:
    """Raise UnusableModel where a step of training changes no weight."""
    weights = {name: digest for name, digest in before.items() if digest.role == Role.WEIGHT}
    if len(equal_leaves(weights, after)) == len(weights):
        raise UnusableModel(
            f"a step of the optimizer changes none of the {len(weights)} weights; look at its "
            "learning rate, at the parameters that it was given, and for NaN in them"
        )
