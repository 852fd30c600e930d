"""TorchInductor's half as artifacts: scheduler IR, fusion decisions, code and kernels."""
