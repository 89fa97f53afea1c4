"""Guards: each catches one class of mistakes by which a method would get a number unearned.

A guard raises on proof, and its method's row fails. On suspicion it notes a mark, which keeps the
row out of the headline. A remark only informs. Tests switch a guard off by its name to show that
it is needed. Code in the worker's own process that patches the harness is not guarded against.
"""
