"""What would make a call faster, as it is shown, and its trial."""
