"""One folder per framework, and what the frameworks share.

`base` holds the contract, `shared` direct I/O and file formats, `deepfreeze` an engine.
"""
