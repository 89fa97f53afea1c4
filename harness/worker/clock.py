"""The only clock of the measurements."""

from time import perf_counter_ns as now_ns

__all__ = ["now_ns"]
