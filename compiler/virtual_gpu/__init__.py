"""A GPU that is not here, for Inductor and for our own backend: graphs and code as on a machine that has it."""
