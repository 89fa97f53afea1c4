"""Runs a command so that its calls can be struck. `harness.durability.gate` explains it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.durability.gate.errors import GateError
from harness.durability.gate.striking import Striker


def main() -> int:
    """Run the command of the command line, and return its exit status, or 125 to 127."""
    parser = argparse.ArgumentParser(prog="gate", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="calls about files here count")
    parser.add_argument("--report", type=Path, required=True, help="the file to report in")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    try:
        return _run(asked.command, Striker(asked.root, asked.report))
    except GateError as error:
        print(f"gate: {error}", file=sys.stderr)
        return error.status


def _run(command: list[str], striker: Striker) -> int:
    try:
        from harness.durability.gate.supervisor import Supervisor
    except ImportError as error:
        raise GateError(f"the package {error.name} is not installed") from error
    except RuntimeError as error:
        # pyseccomp raises it when it does not find the library.
        raise GateError("the library libseccomp is not installed") from error
    status = Supervisor(command, striker.answer).run()
    striker.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
