"""How the compilations of a job are named: their ids, functions, places and causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler.logs.capture import failure_of, resumed_line
from compiler.logs.compilations import INSTALLED, Compilation
from compiler.record import GuardFailure
from compiler.record.plain_text import file_name
from explorer.reading.plain_text import clip

_NAME = 34


@dataclass(frozen=True, slots=True)
class RankCompilations:
    """The compilations of one rank. `rank` is None in a job of one process.

    If `is_of_group` is false, the process is in no process group, and `rank` is only its number.
    """

    rank: int | None
    compilations: tuple[Compilation, ...]
    is_of_group: bool = True


Found = tuple[int | None, Compilation]
"""A compilation, and its rank."""


def all_compilations(ranks: Sequence[RankCompilations]) -> Iterator[Found]:
    """All compilations, rank by rank."""
    return ((each.rank, one) for each in ranks for one in each.compilations)


def opened_name(rank: int | None, name: str) -> str:
    """The name by which links open a compilation: "0/1", or "3:0/1" of rank 3."""
    return name if rank is None else f"{rank}:{name}"


def shown_name(one: Compilation) -> str:
    """The function's name, as `display_name` gives it, clipped."""
    return clip(display_name(one.function), _NAME)


def display_name(function: str) -> str:
    """`forward (resumed)` for the function that torch makes of what follows a graph break; others have their name."""
    resumed = resumed_line(function)
    return f"{resumed[0]} (resumed)" if resumed is not None else function


def place_of(one: Compilation) -> str:
    """The code location; of a function in an installed package, also the user's call that led to it."""
    if not INSTALLED.search(one.file) or not one.callers:
        return one.place
    call = one.callers[-1]
    return f"{one.place} (from {file_name(call.file)}:{call.line})"


def failure_of_reason(reason: str) -> GuardFailure:
    """Torch's reason of a recompilation as a fact. An index has no new values but those in torch's words."""
    entry, colon, words = reason.partition(": ")
    return failure_of(entry, words, ()) if colon and "/" in entry else failure_of("", reason, ())


def change_words(failure: GuardFailure) -> str:
    """What changed between calls: "size of `x` in dimension 0 was 4, is now 5"; "`step` was the int 4"."""
    if failure.cause == "type" and failure.old:
        now = f", is now {failure.new.rpartition('.')[2]}" if failure.new else ""
        return f"type of `{failure.argument}` was {failure.old.rpartition('.')[2]}{now}"
    return failure.words.removesuffix(", is now another value")
