"""Exercises without an answer key: questions about a cell, graded by what torch.compile made of it."""
