"""torch.compile's pipeline on a user's own function, each stage kept as plain data.

`explore` (or `Exploration`, as a context manager) runs a call and gives its `Record`: artifacts in pipeline order,
entities linked from the Python line to the generated kernel, and the facts around them. `open` shows what our own
backend makes of a call, with passes that can be replaced. Nothing here knows Jupyter.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from compiler.record import Record, RecordError
from compiler.record.options import OptionError, Options

if TYPE_CHECKING:
    from compiler.backend.inspect.inspection import open  # noqa: A004
    from compiler.engine import Event, Exploration, Explored, explore

__all__ = ["Event", "Exploration", "Explored", "OptionError", "Options", "Record", "RecordError", "explore", "open"]


def __getattr__(name: str) -> Any:
    """The engine brings torch with it; reading a record does without."""
    if name in __all__:
        home = "compiler.backend.inspect.inspection" if name == "open" else "compiler.engine"
        return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
