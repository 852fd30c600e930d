"""Triton kernels run on CPU tensors, through Triton's interpreter, in a process of their own.

`process.Interpreter` runs one kernel; `program` runs Inductor's whole output code with it, with real inputs; `check`
compares what each kernel stores with what eager PyTorch computes (`--check kernels`).
"""
