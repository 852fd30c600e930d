"""From a graph of ATen operators to a program: each operator becomes loops by a rule, or one call of PyTorch.

`graph.py` walks the graph; `table.py` holds all rules, which are written by family: `pointwise.py`, `views.py`,
`reductions.py`, `indexing.py`, `scattering.py`, `windows.py`, `random.py`. `value.py` has what a rule works with.
"""
