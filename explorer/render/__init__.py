"""Findings, and how they are rendered: text, static HTML, charts, drawings."""
