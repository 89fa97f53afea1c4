"""Judges from the system calls of a save which failures its checkpoint survives.

`strace` records the calls, `log` reads them, `replay` applies them one by one to the model in
`file_system`, and `verdict` judges what the model holds. `recording` does all of it for one save.
"""
