"""ckptbench measures the cost of checkpoints in deep-learning frameworks, and checks them."""

__version__ = "0.1.0"
