"""Decompositions of an operator, level by level, as text and as HTML."""
