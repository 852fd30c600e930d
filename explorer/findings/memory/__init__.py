"""Present the memory in use over a call."""
