"""The values of every operation of a call, saved in one run and compared with those of another."""
