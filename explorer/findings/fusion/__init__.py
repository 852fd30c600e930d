"""Present fusion: the loops that became one kernel, and the bytes saved."""
