"""Time a call over batch sizes, dtypes and modes, to find the size from which compiling pays."""
