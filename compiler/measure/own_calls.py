"""The functions that our own backend wrote to make a graph's calls, found in this process by what they call."""

from __future__ import annotations

import gc
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType

from compiler.record import Artifact

_FILE = re.compile(r"<tcompile (\w+) (\d+)>")
_MADE = re.compile(r"(?:[\w\[\], ]+ = )?(launch\(\w+|\w+)")
Found = tuple[FunctionType, Sequence[str], Mapping[int, str]]
"""A function, the lines of its source, and by line the id of the call that is made there."""


def own_calls(artifacts: Sequence[Artifact]) -> Iterator[tuple[Artifact, Found]]:
    """Each artifact of such a function (stage `kernels`), with the newest function that makes its calls in its order.

    The text of one that launches on a GPU is not that of the record: there the configurations are those that would be
    tried first.
    """
    functions = _functions()
    for artifact in artifacts:
        wanted = _calls(artifact)
        for function, lines in functions:
            places = _places(lines, [made for _, made in wanted])
            if places and lines[1:2] == artifact.text.split("\n")[1:2]:
                functions.remove((function, lines))
                identities = (identity for identity, _ in wanted)
                yield artifact, (function, lines, dict(zip(places, identities, strict=True)))
                break


def _functions() -> list[tuple[FunctionType, Sequence[str]]]:
    found = [each for each in gc.get_objects() if type(each) is FunctionType and each.__name__ == "call"]
    named = [(each, match) for each in found if (match := _FILE.fullmatch(each.__code__.co_filename))]
    named.sort(key=lambda pair: -int(pair[1][2]))
    return [(each, [line.rstrip("\n") for line in linecache.getlines(match[0])]) for each, match in named]


def _calls(artifact: Artifact) -> list[tuple[str, str]]:
    """By the id of each call, in their order, what is called."""
    rows = artifact.text.split("\n")
    places = {int(each.attrs["line"]): each.id for each in artifact.entities if each.kind in ("call", "extern")}
    return [(places[line], _made(rows[line - 1])) for line in sorted(places)]


def _made(row: str) -> str:
    """`launch(kernel_sum` of a launch, `call_aten_mm_default` of a call."""
    match = _MADE.match(row.strip())
    return match[1] if match else ""


def _places(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """The lines, from 1, on which these are called one after the other; none where they are not."""
    asked = set(wanted)
    found = [(number, made) for number, row in enumerate(lines, 1) if (made := _made(row)) in asked]
    return [number for number, _ in found] if [made for _, made in found] == list(wanted) else []
