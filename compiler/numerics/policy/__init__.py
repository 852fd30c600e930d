"""The policy that decides if results are equal to eager's, close, or different. It depends on records only."""
