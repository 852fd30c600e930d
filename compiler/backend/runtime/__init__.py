"""Build, tune and launch generated code, and cache it on disk."""
