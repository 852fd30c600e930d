"""One graph on its way from eager mode to kernels: its states, their layout, and pictures between two states."""
