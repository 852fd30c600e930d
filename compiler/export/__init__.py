"""Observe torch.export, and try each way to save a compiled module."""
