"""What runs in the framework's interpreter: standard library and numpy only (mpi4py when there is more than one rank)."""
