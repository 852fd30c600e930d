"""Inspect a call: its graphs, the program after each pass, passes replaced, results compared."""
