"""Check the source code of a loaded record before it is executed."""
