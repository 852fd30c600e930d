"""TorchDynamo's half of the pipeline turned into artifacts: source, bytecode, FX graphs, breaks, guards."""
