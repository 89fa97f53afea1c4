"""Stores for the tests of DeepFreeze: what is in them, and what they restore."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from deepfreeze_victim import opened

from adapters.deepfreeze.store import HOME_FILE, Store
from adapters.deepfreeze.tensor import Bytes, Late
from adapters.raw.deepfreeze import DeepFreeze
from adapters.raw.framework import Raw, State

ROOT = Path(__file__).resolve().parents[1]

Digests = dict[str, str]


def digests(framework: Raw, state: State) -> Digests:
    """Return the checksum of every leaf."""
    return {leaf.name: hashlib.sha256(leaf.data).hexdigest() for leaf in framework.leaves(state)}


def names(folder: Path) -> list[str]:
    """Return the names in a store's folder, except the file with the folder's name in memory."""
    return sorted(path.name for path in folder.iterdir() if path.name != HOME_FILE)


def restored(folder: Path, **options: object) -> tuple[str, int, Digests]:
    """Restore into another state, and return the level, the step, and the state's digests."""
    framework, method, state = opened(folder, 0, seed=9, options=options)
    outcome = Store(method, folder).restore(state)
    return outcome.level, outcome.step, digests(framework, state)


def save_that_breaks_off(method: DeepFreeze, state: State, path: Path) -> None:
    """Save a state whose last tensor cannot be copied."""

    def lose(tensor: None) -> Bytes:
        raise OSError("the device is lost")

    sources = {**method.sources(state), method.tensors[-1].name: Late(lose, None)}
    method.engine.save(sources, path, method.step(state)).finished()


def run_victim(
    folder: Path, *strace: str, memory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Let another process save the second step and keep nothing else, under strace."""
    victim = Path(__file__).with_name("deepfreeze_victim.py")
    command = ["strace", "-f", "-qq", "-o", os.devnull, *strace, sys.executable, str(victim)]
    command.append(str(folder))
    if memory is not None:
        command.append(str(memory))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def run_disturbed(
    folder: Path, call: str, fault: str, number: int
) -> subprocess.CompletedProcess[str]:
    """Run the victim with a fault in its system call of that name and number."""
    return run_victim(folder, "-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={number}")
