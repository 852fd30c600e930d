"""What a finding is, and how it is shown: text, static HTML, charts, drawings."""
