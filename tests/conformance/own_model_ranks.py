"""One rank of several with a model of the user's own: `own_model_ranks.py FOLDER STRATEGY`.

Rank 0 prints a line for every method, "NAME: right" or what is wrong on any rank.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from rank_cases import methods_for, rank_workload
from ranks import covered_on_ranks, differing, ranks, report, started, writes_for_all
from subject import (
    SUBJECT,
    copied_leaves,
    digests,
    new_method,
    opened,
    same,
    save_behind_a_step,
    train,
)

from adapters.base import Framework, Replicated
from harness.worker import own_models

# Methods are chosen by what they can save, and a float32 workload stands for the user's model.
LIKE = rank_workload("resnet50-float32")


def check_methods(framework: Framework[Any], strategy: str, folder: Path) -> None:
    """Save and load by every method with the same ranks."""
    make = own_models.load(folder / "train.py", "make")
    state = own_models.adopted(framework, make, 1)
    train(framework, state, 2)
    target = own_models.adopted(framework, make, 2)
    train(framework, target, 1)
    report("replicas", differing_replicas(framework, state))
    for name in methods_for(strategy, LIKE):
        report(name, wrong_restore(framework, state, target, name, folder / name))


def differing_replicas(framework: Framework[Any], state: Any) -> list[str]:
    """Return the leaves that should be the same on all ranks, and are not."""
    views = ranks().allgather(digests(framework, state))
    return [
        f"{leaf.name} differs between the ranks"
        for leaf in framework.leaves(state)
        if leaf.placement == Replicated() and len({view[leaf.name] for view in views}) > 1
    ]


def wrong_restore(
    framework: Framework[Any], state: Any, target: Any, name: str, path: Path
) -> list[str]:
    """Save behind a training step, load into another state, and return what did not come back.

    The state takes two steps, and the target ends one step behind it.
    """
    saved = digests(framework, state)
    # A method whose rank 0 writes alone gives all ranks what rank 0 has.
    expected = ranks().bcast(saved) if writes_for_all(name) else saved
    names, _ = covered_on_ranks(framework, state, name)
    method = new_method(name, framework)
    with opened(method, state):
        ranks().barrier()
        save_behind_a_step(framework, method, state, path)
        ranks().barrier()
        method.load(target, path)
    restored = same(expected, digests(framework, target))
    problems = [f"{leaf} did not come back" for leaf in sorted(names - restored)]
    train(framework, target, 1)
    if names == saved.keys() and not writes_for_all(name):
        one_step_later = copied_leaves(framework, state)
        problems += differing(one_step_later, copied_leaves(framework, target), "goes on otherwise")
    train(framework, state, 1)
    return problems


def main(folder: Path, strategy: str) -> None:
    """Run the check, and leave together. An error on one rank ends all of them."""
    assert SUBJECT.quirks.own_model
    try:
        with started(strategy, folder) as framework:
            check_methods(framework, strategy, folder)
    except BaseException:
        # The others would wait for ever for a rank that is gone.
        traceback.print_exc()
        ranks().Abort(1)
    from mpi4py import MPI

    ranks().barrier()
    MPI.Finalize()
    # A normal exit aborts now and then, in a thread of a process group.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
