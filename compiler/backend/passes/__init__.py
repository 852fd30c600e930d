"""Passes, their thresholds and cost model. `compiler.backend.pipeline` defines the order of the passes."""
