"""The passes, and what they decide by. `compiler.backend.pipeline` has their order."""
