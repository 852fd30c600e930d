"""Compile for a GPU that this machine lacks: graphs and code as on a machine that has it."""
