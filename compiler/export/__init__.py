"""torch.export observed, and what of a compiled module can be saved: each way tried, for real."""
