"""No framework: numpy (CuPy on a GPU) and plain files.

The floor of every comparison, and the public test double.
"""
