"""Structured traces (TORCH_TRACE) of programs that ran elsewhere, read into records."""
