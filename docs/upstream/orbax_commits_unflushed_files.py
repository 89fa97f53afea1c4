"""Save with Orbax under strace, and list the files that were not flushed before the rename."""

import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import orbax.checkpoint

SAVE = """
import sys, jax.numpy, orbax.checkpoint
checkpointer = orbax.checkpoint.StandardCheckpointer()
checkpointer.save(sys.argv[1], {"weight": jax.numpy.arange(1000.0)})
checkpointer.wait_until_finished()
"""
step = Path(tempfile.mkdtemp()) / "step"
log = step.with_name("calls.log")
strace = ["strace", "-f", "-y", "-o", log, "-e", "trace=fsync,fdatasync,syncfs,sync,rename"]
subprocess.run([*strace, sys.executable, "-c", SAVE, step], check=True, capture_output=True)

before, commit, _ = log.read_text().partition(f'.orbax-checkpoint-tmp", "{step}")')
flushed = set(re.findall(r"sync\(\d+<.*?-tmp/(.+?)(?:\.__lock)?>", before))
files = {str(file.relative_to(step)) for file in step.rglob("*") if file.is_file()}
print("orbax-checkpoint", version("orbax-checkpoint"))
print("committed by a rename:", bool(commit))
print("files that were flushed before:", len(files & flushed))
print("files that were not:", ", ".join(sorted(files - flushed)))

(step / "_METADATA").write_bytes(b"")  # the file that a power loss leaves
try:
    orbax.checkpoint.StandardCheckpointer().restore(step)
    print("a load without the unflushed bytes of _METADATA: works")
except Exception as error:
    print("a load without the unflushed bytes of _METADATA:", type(error).__name__)
