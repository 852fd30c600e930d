"""Present the chain rule step by step."""
