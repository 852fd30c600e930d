"""TorchInductor's stages as artifacts: scheduler IR, fusion decisions, code and kernels."""
