"""See past graph breaks: all sites of a program out of one call.

A capture that must not break ends at the first break of the program. The expression that broke is then replaced, in
memory, by the value that it had when the program ran eagerly, and the capture is made again. It ends at the next
break, or the whole program is one graph.

Read `search.py` (the loop), then `substitution.py` (a program with values in place of expressions) and `state.py` (the
user's objects, as they were before each run).
"""
