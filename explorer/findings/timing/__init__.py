"""Present measured times: candidates, kernels, lines, compile phases, and estimates."""
