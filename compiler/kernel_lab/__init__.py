"""A kernel of a record, edited: whether it may be run, what it computes, how long it takes."""
