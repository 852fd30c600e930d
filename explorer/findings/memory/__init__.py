"""The bytes in use over a call, as they are shown."""
