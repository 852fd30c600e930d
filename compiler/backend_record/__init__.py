"""Our own backend in a record: the program after each pass, the generated code, the decisions of the passes."""
