"""PyTorch: the neutral workloads as modules, and one module per checkpoint mechanism."""
