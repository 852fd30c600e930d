"""From generated code to calls: build, launch, tune, and the cache on disk."""
