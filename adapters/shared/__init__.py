"""Code that several adapters share: direct I/O and file formats."""
