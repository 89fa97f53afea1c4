"""The content of common file formats, for the `entries` of methods.

Each module needs the library of its own format only.
"""
