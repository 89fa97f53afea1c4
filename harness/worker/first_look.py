"""`python -m harness.worker.first_look REQUEST ANSWER`: build a model of the user's own once.

It needs the standard library alone, so that it can tell which package an interpreter lacks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(request_file: str, answer_file: str) -> None:
    """Look at the model, and write the answer, or which module the interpreter lacks."""
    try:
        from harness.worker import look

        look.main(request_file, answer_file)
    except ModuleNotFoundError as error:
        answer = json.dumps({"missing": error.name})
        Path(answer_file).write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    sys.stdout.flush()
    # Threads of the user's text could hold a normal exit for ever.
    os._exit(0)
