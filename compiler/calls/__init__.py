"""Repeat a user's call without leaving a trace, on copies, or with changed source."""
