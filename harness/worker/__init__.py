"""The part of the harness that runs in the framework's interpreter.

It needs the standard library and numpy, and mpi4py where there is more than one rank.
"""
