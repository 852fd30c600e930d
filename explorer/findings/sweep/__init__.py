"""A call timed over sizes, number formats and modes: from which size on compiling pays."""
