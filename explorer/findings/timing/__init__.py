"""How long a call takes, as it is shown: candidates, kernels, lines, phases of compiling, estimates."""
