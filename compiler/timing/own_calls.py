"""Find the generated functions of our backend in this process by the calls that they make."""

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
    """Each artifact of such a function (stage `kernels`), with the newest function that makes its calls in order.

    The text of a function that launches on a GPU differs from the record's: there the configurations are those that
    would be tried first.
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
    """The callee of each call, by the call's id, in order."""
    rows = artifact.text.split("\n")
    places = {int(each.attrs["line"]): each.id for each in artifact.entities if each.kind in ("call", "extern")}
    return [(places[line], _call_pattern(rows[line - 1])) for line in sorted(places)]


def _call_pattern(row: str) -> str:
    """`launch(kernel_sum` for a launch, `call_aten_mm_default` for a call."""
    match = _MADE.match(row.strip())
    return match[1] if match else ""


def _places(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Line numbers, from 1, of these calls in order; none where they are not found."""
    asked = set(wanted)
    found = [(number, made) for number, row in enumerate(lines, 1) if (made := _call_pattern(row)) in asked]
    return [number for number, _ in found] if [made for _, made in found] == list(wanted) else []
