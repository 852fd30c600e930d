"""The chain rule step by step, as it is shown."""
