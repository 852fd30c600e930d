"""The code to ask about: the cell, or the definition elsewhere of what the cell calls."""

from __future__ import annotations

import inspect
import linecache
from typing import Any

from compiler.capture.sources import is_installed
from explorer.entry.cell import Cell
from explorer.teach.listing import Listing


def listing_of(cell: Cell) -> Listing:
    """The code that a learner is asked about.

    This is the cell, without the line of its magic. If the cell only calls a function or model that exists already, it
    is the code of that.
    """
    own = Listing(cell.source, _first_line(cell.source))
    if own.computing:
        return own
    known = (callee for site in cell.sites if (callee := cell.known_callee(site)) is not None)
    return next(filter(None, map(_definition, known)), own)


def _first_line(source: str) -> int:
    lines = source.splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")), 1)


def _definition(callee: Any) -> Listing | None:
    """The source of the user's function, or of the class of the user's model; None if it can't be read."""
    try:
        code = inspect.unwrap(callee) if inspect.isroutine(callee) else type(callee)
        file = inspect.getsourcefile(code)
        rows, first = inspect.getsourcelines(code)
    except (OSError, TypeError):
        return None
    text = "".join(linecache.getlines(file)) if file and not is_installed(file) else ""
    return Listing(text, first, first + len(rows) - 1) if text else None
