"""Present advice on making a call faster, and measure it."""
