"""Plain files without a framework, and the public test double.

The arrays are numpy's, or CuPy's on a GPU. Every other framework is compared with this floor.
"""
