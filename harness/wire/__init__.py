"""Values that cross the process border between driver and worker: standard library only."""
