"""Repeat a user's call without side effects, on copies, or with changed source."""
