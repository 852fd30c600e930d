"""Compile for a GPU that this machine lacks; graphs and code are the same as on a machine with that GPU."""
