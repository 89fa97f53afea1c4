"""A run on disk: its plan, its machine and its records, written by the driver and read by all."""
