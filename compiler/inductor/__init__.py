"""TorchInductor's half: scheduler IR, fusion decisions, generated code and its kernels as artifacts."""
