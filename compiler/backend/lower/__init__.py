"""From a graph of ATen operators to a program: each operator becomes loops by a rule, or one call of PyTorch.

`graph.py` walks the graph and has the table of all rules, which are written by family: `pointwise.py`, `views.py`,
`reductions.py`, `indexing.py`, `windows.py`, `library_calls.py`. `value.py` has what a rule works with.
"""
