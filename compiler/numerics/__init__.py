"""Compare the results of calls, stages and kernels with eager's, by one policy."""
