"""A call of the user that is made again without leaving a trace, on copies, or with changed source."""
