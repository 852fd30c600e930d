"""The kernel lab: edit a run's kernel in a cell, then compile and check it."""
