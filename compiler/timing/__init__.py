"""How long a call takes, eager and compiled, and where the time goes."""
