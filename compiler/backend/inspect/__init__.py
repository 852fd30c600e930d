"""A call opened: its graphs, the program after each pass, passes replaced, results compared."""
