"""equinox as a method of ckptbench."""
