"""What common file formats say of their own content; for the `entries` of methods.

A reader needs its format's library alone.
"""
