"""The kernel lab: a kernel of a run in a cell, edited, compiled and checked."""
