"""PyTorch: the neutral workloads as modules, and one file for each checkpoint mechanism."""
