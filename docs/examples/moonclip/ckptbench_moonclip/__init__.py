"""moonclip as a method of ckptbench."""
