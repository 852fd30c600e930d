"""Autograd graphs: eager mode's, and AOTAutograd's joint, forward and backward graphs."""
