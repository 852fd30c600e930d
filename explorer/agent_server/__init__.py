"""Tools for coding agents: each is a command of `tcompile` in a child process with limits of time and memory."""
