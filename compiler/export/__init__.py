"""Record torch.export's view of a call, and try each way to save a compiled module."""
