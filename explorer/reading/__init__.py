"""Read a record: source places, causes, shapes, stages, source lines, kernels; as values and as text."""
