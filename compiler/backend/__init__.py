"""Our own compiler: `torch.compile(model, backend="tcompile")`."""
