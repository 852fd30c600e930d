"""Time a call, eager and compiled, and attribute its time to kernels and lines."""
