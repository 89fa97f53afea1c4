"""Watches one save of each method at the system calls."""

from harness.durability.watch import watch_saves

__all__ = ["after_stages"]

after_stages = watch_saves
