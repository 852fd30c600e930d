"""TorchDynamo's stages as artifacts and facts: source, bytecode, FX graphs, breaks, guards."""
