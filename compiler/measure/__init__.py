"""Measurements on the user's own call: time, and numbers against eager."""
