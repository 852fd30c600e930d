"""Look past graph breaks: find all sites that break the graph, from one call.

A full-graph capture ends at the program's first break. The expression that broke is then replaced, in memory, by
its value in an eager run, and the program is captured again. That capture ends at the next break, and so on, until the
whole program is one graph.

Read `search.py` (the loop), then `substitution.py` (a program with values in place of expressions) and
`compiler/calls/state.py` (restoring the user's objects before each run).
"""
