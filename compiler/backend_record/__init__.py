"""Record our own backend: the program after each pass, the generated code, and the passes' decisions."""
