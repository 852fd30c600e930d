"""Our own backend as a record shows it: the program after each pass, the code, and what was decided on the way."""
