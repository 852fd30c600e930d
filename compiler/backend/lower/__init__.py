"""Lowering of an ATen graph to a program: a rule lowers each operator to loops, or it becomes an extern call.

`graph.py` walks the graph and has the table of all rules. The rules are in one file per family: `pointwise.py`,
`views.py`, `reductions.py`, `indexing.py`, `windows.py`, `library_calls.py`. `value.py` has the classes that they use.
"""
