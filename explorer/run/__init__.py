"""The result of an exploration: `Run`, its tables, pages, live view and files."""
