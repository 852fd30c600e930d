"""What a user holds after an exploration, and how it is looked at: `Run`, tables, pages, the live view, files."""
