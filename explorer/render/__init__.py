"""The type of findings, and renderers: text, static HTML, charts, drawings."""
