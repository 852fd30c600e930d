"""Autograd's graphs: the one that eager code builds, and AOTAutograd's joint, forward and backward graphs."""
