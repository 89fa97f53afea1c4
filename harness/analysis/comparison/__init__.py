"""Two runs of one machine, or the two arms of one run, compared row by row.

Every metric is a cost, so a ratio of head over base above 1 is worse. Columns declare what is
compared: see `harness.analysis.compared`. `sides` finds the same row on both sides, `metrics` tests
its costs, `facts` watches everything that has no interval, `remarks` says what else a reader must
know, and `comparing` puts all of it together. `docs/gate.md` has the rules and what they are worth.
"""

from harness.analysis.compared import IN_CEILINGS, TOLERANCE
from harness.analysis.comparison.comparing import (
    CONFIDENCE,
    Unlike,
    between_arms,
    have_common_rows,
    is_finished,
    of_arms,
    of_runs,
)
from harness.analysis.comparison.metrics import costs, has_settled_ceilings
from harness.analysis.comparison.results import ComparedRow, Comparison, Metric
from harness.analysis.comparison.sides import ARMS, has_arms
from harness.analysis.comparison.verdicts import Verdict, verdict

__all__ = [
    "ARMS",
    "CONFIDENCE",
    "IN_CEILINGS",
    "TOLERANCE",
    "ComparedRow",
    "Comparison",
    "Metric",
    "Unlike",
    "Verdict",
    "between_arms",
    "costs",
    "has_arms",
    "has_settled_ceilings",
    "have_common_rows",
    "is_finished",
    "of_arms",
    "of_runs",
    "verdict",
]
