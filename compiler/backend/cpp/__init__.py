"""Code generation for the CPU, in C++."""
