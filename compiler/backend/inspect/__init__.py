"""Inspect a call: show its graphs and the program after each pass, replace passes, compare results."""
