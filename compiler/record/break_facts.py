"""What TorchDynamo says of a graph break, observed or logged, before it is put in words for the record."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

DEAD_ENDS = ("Encountered graph break that we cannot resume from", "Failed to handle graph break gracefully")
AND_THEN = "*** While handling this graph break, another graph break occurred: ***"
"""Beginnings of torch's message about a break after which nothing is compiled, and the words before another break."""


@dataclass(frozen=True, slots=True)
class Place:
    """An instruction's place in a file. Columns are as in `dis`: UTF-8 bytes from 0, with an exclusive end.

    `end_line` and the columns are None if Python does not know them.
    """

    file: str
    function: str
    line: int
    end_line: int | None = None
    column: int | None = None
    end_column: int | None = None


@dataclass(frozen=True, slots=True)
class BreakFacts:
    """TorchDynamo's account of one graph break.

    `reason` is torch's whole text, `message` the part of that text about this break.
    `stack` holds the user's frames, outermost first. `places` are the places of the instructions in these frames.
    `consequence` is the kind of a second break that this one caused, or "".
    `goes_on` is False if the rest of the function runs as plain Python. `raises` is True if torch.compile raises.
    `skips` is True if torch skips the whole frame, which its log words differently from a graph break.
    """

    kind: str
    reason: str
    stack: tuple[traceback.FrameSummary, ...]
    places: tuple[Place, ...] = ()
    message: str = ""
    consequence: str = ""
    goes_on: bool = True
    raises: bool = False
    skips: bool = False


def is_dynamo(file: str) -> bool:
    """Whether a file belongs to TorchDynamo, not to the model."""
    return "/torch/_dynamo/" in file.replace("\\", "/")
