"""Write a dataset to a full disk by h5py. A limit on the size of files stands for the disk."""

import os
import resource
import signal
import sys
import tempfile
from pathlib import Path

import h5py
import numpy

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit is to fail, and not kill
unraisable = []
sys.unraisablehook = unraisable.append

path = Path(tempfile.mkdtemp()) / "weights.h5"
file = h5py.File(path, "w")
file["before"] = numpy.ones(64)
file.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, resource.RLIM_INFINITY))
try:
    file["weight"] = numpy.ones(64)
    print("h5py", h5py.__version__)
    print("the write of a dataset for which there is no room raises: nothing")
    print("errors that Python prints and ignores meanwhile:", len(unraisable))
except OSError as error:
    print("the write of a dataset for which there is no room raises:", error)
sys.stdout.flush()
os._exit(0)  # because closing the file would end the process by SIGSEGV
