"""Kernels written in C++, for the CPU."""
