"""Kernels written in Triton, for GPUs."""
