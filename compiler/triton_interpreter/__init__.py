"""Run Triton kernels on CPU tensors with Triton's interpreter, in a separate process.

`process.Interpreter` runs one kernel; `program` uses it to run Inductor's whole output code with real inputs;
`compiler.numerics.kernel_check` compares each kernel's results with eager PyTorch (`--check kernels`).
"""
