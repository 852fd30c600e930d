"""tcompile: every stage of torch.compile, on your own code.

%load_ext explorer          in a notebook: then %%tcompile above a cell
explorer.explore(f, x, w)   in Python
explorer.autograd(loss)     the graph behind a tensor: what a backward pass runs, and what is kept for it
explorer.decompose("gelu", x)  what an operator becomes, level by level
explorer.chain_rule(loss)   the chain rule on it, step by step, with numbers
explorer.check(f, x, w)     in tests: fails where the graph breaks or is compiled anew
explorer.export(model, x)   with torch.export; explorer.save_and_load(model, x) tries each way to save it
tcompile explore f.py:f     in a terminal
explorer.targets()          the GPUs that `target=` (--target) may name
"""

from __future__ import annotations

from typing import Any

from explorer.entry.autograd import AutogradRecording, autograd
from explorer.entry.chain_rule import ChainRule, ShownStep, chain_rule
from explorer.entry.check import CheckError, check
from explorer.entry.explore import explore
from explorer.entry.export import export, save_and_load
from explorer.entry.targets import targets
from explorer.findings.decompose.op_levels import OpLevels, decompose
from explorer.run.autograd_run import AutogradRun
from explorer.run.old_names import new_name
from explorer.run.run import Run, load

__all__ = [
    "AutogradRecording",
    "AutogradRun",
    "ChainRule",
    "CheckError",
    "OpLevels",
    "Run",
    "ShownStep",
    "autograd",
    "chain_rule",
    "check",
    "decompose",
    "explore",
    "export",
    "load",
    "load_ipython_extension",
    "save_and_load",
    "targets",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    raise AttributeError(new_name("explorer", name) or f"module 'explorer' has no attribute {name!r}")


def load_ipython_extension(ipython: Any) -> None:
    """Called by `%load_ext explorer`: gives the shell `%%tcompile` and `%tcompile`."""
    from explorer.entry import magics

    magics.load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Called by `%unload_ext explorer`: leaves the shell without the magics."""
    from explorer.entry import magics

    magics.unload(ipython)
