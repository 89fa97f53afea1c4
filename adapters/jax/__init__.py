"""JAX: the neutral workloads as pure functions, and one module per checkpoint mechanism."""
