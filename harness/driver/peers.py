"""The framework's own means by which the ranks of a case add up, as its declaration has them."""

from __future__ import annotations

from typing import Any

from harness import experiments
from harness.driver.declarations import FrameworkEntry, MethodEntry, PeersEntry
from harness.driver.suite import Shape, Sweep


def are_declared(framework: FrameworkEntry, sweep: Sweep, shape: Shape) -> bool:
    """Return whether a framework declares the peers that a shape's settings need, if any."""
    return all(name in framework.peers for name in _names(sweep, shape))


def entry(framework: FrameworkEntry, sweep: Sweep, shape: Shape) -> PeersEntry | None:
    """Return the peers that a shape's settings need; None where the ranks add up over MPI."""
    for name in _names(sweep, shape):
        return framework.peers[name]
    return None


def of_case(peers: PeersEntry | None) -> dict[str, Any]:
    """Return what a case holds of its peers; empty for MPI."""
    return {"class": peers.class_path, "launch": list(peers.launch)} if peers else {}


def own_environment(
    framework: FrameworkEntry, method: MethodEntry, peers: PeersEntry | None
) -> str:
    """Return the environment that the peers or the method have for themselves; empty for none."""
    of_peers = framework.environment_of(peers) if peers else ""
    return of_peers or framework.environment_of(method)


def obstacle(method: MethodEntry, peers: PeersEntry | None) -> str:
    """Return why a method and peers cannot be in one environment; empty where they can."""
    if peers and peers.environment and method.environment not in ("", peers.environment):
        return (
            f"it needs the packages of {method.environment}, and the ranks need those of "
            f"{peers.environment}"
        )
    return ""


def _names(sweep: Sweep, shape: Shape) -> list[str]:
    """Return the values of a shape's settings that only some frameworks declare."""
    keys = experiments.experiment(sweep.experiment).suite_keys
    return [value for key, value in shape.settings.items() if value in keys[key].declared_as_peers]
