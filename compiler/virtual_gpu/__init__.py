"""Compile for a GPU that this machine lacks: the graphs and code are those of a machine with that GPU."""
