"""An operator taken apart, level by level: its levels, as text and as HTML."""
