"""Reading a record: places, causes, sizes, stages, source lines, kernels; as values and in words."""
