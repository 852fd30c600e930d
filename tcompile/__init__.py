"""Explore every stage of torch.compile on your own code: in a notebook, in Python, in a terminal, in a test.

In a notebook, load the magics once and write `%%tcompile` above a cell:

    %load_ext tcompile

In Python, `explore` calls a function or model under torch.compile and returns a `Run`. It prints as a summary;
`run["forward"]` is a stage, `run.breaks` is a table, and `run.save("run.html")` saves a page that needs no network:

    run = tcompile.explore(model, x)
    print(run)

In a test, `check` fails if the graph breaks or a call recompiles:

    tcompile.check(model, x, breaks=0, recompiles=0)

`torch.compile(model, backend="tcompile")` compiles with our own backend, in any script and without this import; `open`
shows what each of its passes does. In a terminal: `tcompile explore model.py:model --input "randn(8, 64)"`.

Importing this module imports neither torch nor Jupyter: they are imported by the first function that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.backend import tcompile as backend
    from compiler.backend.inspect.inspection import open  # noqa: A004
    from explorer.entry.autograd import autograd
    from explorer.entry.chain_rule import chain_rule
    from explorer.entry.check import CheckError, check
    from explorer.entry.explore import explore
    from explorer.entry.export import export, save_and_load
    from explorer.entry.lessons import lessons
    from explorer.entry.load import load
    from explorer.entry.make_repro import make_repro
    from explorer.entry.observe import observe
    from explorer.entry.status import status
    from explorer.entry.targets import targets
    from explorer.findings.decompose.op_levels import decompose
    from explorer.run.job import Job
    from explorer.run.profile import load_profile
    from explorer.run.run import Run

__all__ = [
    "CheckError",
    "Job",
    "Run",
    "autograd",
    "backend",
    "chain_rule",
    "check",
    "decompose",
    "explore",
    "export",
    "lessons",
    "load",
    "load_profile",
    "make_repro",
    "observe",
    "open",
    "save_and_load",
    "status",
    "targets",
]

_HOMES = {
    "backend": ("compiler.backend", "tcompile"),
    "open": ("compiler.backend.inspect.inspection", "open"),
}
"""Module and attribute of each public name that is not in `explorer`."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in __all__:
        raise AttributeError(_new_name(name) or f"module 'tcompile' has no attribute {name!r}")
    if name in _HOMES:
        home, attribute = _HOMES[name]
        value = getattr(importlib.import_module(home), attribute)
    else:
        import explorer

        value = getattr(explorer, name)
    globals()[name] = value
    return value


def _new_name(name: str) -> str:
    """Error message that names the replacement of a removed name; "" for other names."""
    if name.startswith("_"):
        return ""
    from explorer.run.old_names import new_name

    return new_name("tcompile", name)


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(ipython: Any) -> None:
    """Add the magics to an IPython shell. Called by `%load_ext tcompile`."""
    from explorer.entry import magics

    magics.load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Remove the magics from an IPython shell. Called by `%unload_ext tcompile`."""
    from explorer.entry import magics

    magics.unload(ipython)
