"""The passes, their thresholds and cost model. `compiler.backend.pipeline` has their order."""
