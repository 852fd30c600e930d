"""Budgets: what a call may cost under torch.compile, counted, compared with a baseline, and reported in CI."""
