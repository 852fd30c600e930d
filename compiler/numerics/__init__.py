"""Comparing numbers with eager's: one policy, and the results of calls, stages and kernels that it is applied to."""
