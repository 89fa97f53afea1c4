"""The names of nodes, by which the driver and the ranks tell where a process runs."""

from __future__ import annotations

import os
import socket


def node_name() -> str:
    """Return Slurm's name of this node, else the host's name.

    The daemons of several Slurm nodes can share a host.
    """
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
