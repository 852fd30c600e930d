"""tcompile: every stage of torch.compile, on your own code.

%load_ext explorer          in a notebook: then %%tcompile above a cell
explorer.explore(f, x, w)   in Python
explorer.check(f, x, w)     in tests: fails where the graph breaks or is compiled anew
tcompile explore f.py:f     in a terminal
explorer.targets()          the GPUs that `target=` (--target) may name
"""

from __future__ import annotations

from typing import Any

from explorer.check import CheckError, check
from explorer.explore import explore
from explorer.run import Run, load
from explorer.targets import targets

__all__ = [
    "CheckError",
    "Run",
    "check",
    "explore",
    "load",
    "load_ipython_extension",
    "targets",
    "unload_ipython_extension",
]


def load_ipython_extension(ipython: Any) -> None:
    """Called by `%load_ext explorer`: gives the shell `%%tcompile` and `%tcompile`."""
    from explorer import magics

    magics.load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Called by `%unload_ext explorer`: leaves the shell without the magics."""
    from explorer import magics

    magics.unload(ipython)
