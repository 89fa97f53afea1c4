"""Decides from its system calls which failures a checkpoint survives."""
