"""The pipeline of torch.compile on a user's own function, with each stage recorded as plain data.

`explore` (or `Exploration`, as a context manager) runs a call and returns its `Record`: artifacts in pipeline order,
entities linked from the Python line to the generated kernel, and facts about them. `open` shows how our own backend
compiles a call, with passes that can be replaced. This package does not depend on Jupyter.
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
    """Import the engine lazily, as it imports torch; reading a record does not need torch."""
    if name in __all__:
        home = "compiler.backend.inspect.inspection" if name == "open" else "compiler.engine"
        return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
