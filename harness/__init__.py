"""ckptbench: what checkpointing costs in a deep-learning framework, and whether what it wrote can be trusted."""

__version__ = "0.1.0"
