"""Checks of what callers give. Each error says what is wrong, and what to give instead."""

from __future__ import annotations

import math


def require_cost(name: str, seconds: float) -> None:
    """Raise ValueError unless a cost is a finite number of seconds from 0."""
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} is {seconds}; a cost is a number of seconds from 0")


def require_positive(name: str, seconds: float) -> None:
    """Raise ValueError unless a time is a finite number of seconds above 0."""
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} of {seconds} s is not a finite time above 0; give seconds")


def require_budget(budget: float) -> None:
    """Raise ValueError unless a budget is a share of the training time."""
    if not 0 < budget < 1:
        raise ValueError(
            f"a budget of {budget} is not a share between 0 and 1; give 0.035 for 3.5 %"
        )
