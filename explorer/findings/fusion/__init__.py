"""Which loops became one kernel and what that saves, as it is shown."""
