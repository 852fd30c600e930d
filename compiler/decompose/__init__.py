"""Decompositions of an operator, or of a whole graph, at each level from torch's functions down to prims."""
