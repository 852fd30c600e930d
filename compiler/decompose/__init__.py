"""Decompositions: what an operator, or a whole graph, becomes at each level from torch's functions down to prims."""
