"""tcompile: every stage of torch.compile, on your own code.

%load_ext explorer          in a notebook: then %%tcompile above a cell
explorer.explore(f, x, w)   in Python
explorer.autograd(loss)     the autograd graph of a tensor, with its saved tensors
explorer.decompose("gelu", x)  decompositions of an operator, level by level
explorer.chain_rule(loss)   the chain rule on the graph, step by step, with numbers
explorer.lessons          exercises that check themselves
explorer.check(f, x, w)     in tests: fails if the graph breaks or a call recompiles
explorer.export(model, x)   torch.export of a call; explorer.save_and_load(model, x) tries each way to save a model
explorer.load("trace_dir")  what torch.compile did in a job, from its logs; explorer.observe() of a block of code
explorer.status(model)      whether it is compiled, or fell back to eager
tcompile explore f.py:f     in a terminal; tcompile run -- python train.py
explorer.load_profile(path, job)  a profile of torch.profiler, beside the log of the same program
explorer.make_repro(run)    the smallest file that shows a fault of a run again
explorer.targets()          the GPUs that `target=` (--target) accepts
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explorer.entry.autograd import AutogradRecording, autograd
    from explorer.entry.chain_rule import ChainRule, ShownStep, chain_rule
    from explorer.entry.check import CheckError, check
    from explorer.entry.explore import explore
    from explorer.entry.export import export, save_and_load
    from explorer.entry.lessons import lessons
    from explorer.entry.load import load
    from explorer.entry.make_repro import make_repro
    from explorer.entry.observe import observe
    from explorer.entry.status import status
    from explorer.entry.targets import targets
    from explorer.findings.decompose.op_levels import OpLevels, decompose
    from explorer.run.autograd_run import AutogradRun
    from explorer.run.job import Job
    from explorer.run.profile import Profile, load_profile
    from explorer.run.run import Run

__all__ = [
    "AutogradRecording",
    "AutogradRun",
    "ChainRule",
    "CheckError",
    "Job",
    "OpLevels",
    "Profile",
    "Run",
    "ShownStep",
    "autograd",
    "chain_rule",
    "check",
    "decompose",
    "explore",
    "export",
    "lessons",
    "load",
    "load_ipython_extension",
    "load_profile",
    "make_repro",
    "observe",
    "save_and_load",
    "status",
    "targets",
    "unload_ipython_extension",
]


_HOMES = {
    "AutogradRecording": "explorer.entry.autograd",
    "AutogradRun": "explorer.run.autograd_run",
    "ChainRule": "explorer.entry.chain_rule",
    "CheckError": "explorer.entry.check",
    "Job": "explorer.run.job",
    "OpLevels": "explorer.findings.decompose.op_levels",
    "Profile": "explorer.run.profile",
    "Run": "explorer.run.run",
    "ShownStep": "explorer.entry.chain_rule",
    "autograd": "explorer.entry.autograd",
    "chain_rule": "explorer.entry.chain_rule",
    "check": "explorer.entry.check",
    "decompose": "explorer.findings.decompose.op_levels",
    "explore": "explorer.entry.explore",
    "export": "explorer.entry.export",
    "lessons": "explorer.entry.lessons",
    "load": "explorer.entry.load",
    "load_profile": "explorer.run.profile",
    "make_repro": "explorer.entry.make_repro",
    "observe": "explorer.entry.observe",
    "save_and_load": "explorer.entry.export",
    "status": "explorer.entry.status",
    "targets": "explorer.entry.targets",
}
"""Module of each public name."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: reading a log needs little of this package."""
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    from explorer.run.old_names import new_name

    raise AttributeError(new_name("explorer", name) or f"module 'explorer' has no attribute {name!r}")


def load_ipython_extension(ipython: Any) -> None:
    """Add the magics to an IPython shell. Called by `%load_ext explorer`."""
    from explorer.entry import magics

    magics.load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Remove the magics from an IPython shell. Called by `%unload_ext explorer`."""
    from explorer.entry import magics

    magics.unload(ipython)
