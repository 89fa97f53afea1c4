"""JAX: the neutral workloads as pure functions, and one file for each checkpoint mechanism."""
