"""One rank of a distributed job: its process group, its collectives, its memory."""
