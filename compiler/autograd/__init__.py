"""AOTAutograd's half: where each node of the joint, forward and backward graphs came from."""
