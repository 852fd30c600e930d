"""Edit a kernel of a record: check whether it may be executed, run it, compare its results and times."""
