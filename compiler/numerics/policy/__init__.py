"""When numbers are equal to eager's, close, or different: the one policy, which knows of records alone."""
