"""A kernel's source without what tells it from one that does the same: names of buffers and values, comments, a number,
and which element of a buffer it reads, where that is one alone: of the seeds of a graph's random numbers each layer has
its own.

A model's layers have the same kernels under other names: so each of these is compiled, and loaded, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from compiler.backend.passes.names import without_number
from compiler.backend.triton.emit import IMPORTS, TritonFunction
from compiler.backend.triton.kernel import pointer
from compiler.backend.triton.text import functions

_COMMENT = re.compile(r"^ *#.*\n| +#.*$", re.MULTILINE)
_ASSIGNED = re.compile(r"^ *([\w, ]+?) \+?= ", re.MULTILINE)
_WORD = re.compile(r'"[^"]*"|(?<![\w.])[A-Za-z_]\w*(?!\w|=[^=])')  # no keyword of a call, which `=` follows at once
_FUNCTION = re.compile(r"^def (\w+)", re.MULTILINE)
_HEAD = re.compile(r"(?<=\()\n[^()]*(?=\):\n)")  # functions' arguments, in as many lines as their names take
_ELEMENT = re.compile(r"tl\.load\((\w+)(?: \+ (\d+))?\)")


@dataclass(frozen=True, slots=True)
class Alike:
    """A module with one function alone, the new names of the old ones, and the buffers of which the function reads one
    element: it takes a pointer to that, so many elements from where the buffer starts.
    """

    source: str
    names: Mapping[str, str]
    elements: Mapping[str, int]


def canonical_source(text: str, function: TritonFunction) -> Alike:
    """What is compiled for a function, of whose text it is made."""
    text = _HEAD.sub(lambda head: " ".join(head[0].split()).removesuffix(","), _COMMENT.sub("", text))
    elements = dict(_elements(text, function.buffers))
    starts = set(map(pointer, elements))
    text = _ELEMENT.sub(lambda load: f"tl.load({load[1]})" if load[1] in starts else load[0], text)
    assigned = {name for match in _ASSIGNED.finditer(text) for name in match[1].split(", ")}
    given = {*assigned, *map(pointer, function.buffers), *_FUNCTION.findall(text)}
    names = {function.name: without_number(function.name)}

    def renamed(match: re.Match[str]) -> str:
        word = match[0]
        return names.setdefault(word, f"v{len(names)}") if word in given else word

    return Alike("\n\n".join([IMPORTS, *functions(text), _WORD.sub(renamed, text)]) + "\n", names, elements)


def _elements(text: str, buffers: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The buffers that are named in the function's head, and then in loads of one element only, always the same."""
    read: dict[str, list[int]] = {}
    for load in _ELEMENT.finditer(text):
        read.setdefault(load[1], []).append(int(load[2] or 0))
    for name in buffers:
        places = read.get(pointer(name), [])
        if len({*places}) == 1 and len(re.findall(rf"\b{pointer(name)}\b", text)) == len(places) + 1:
            yield name, places[0]
