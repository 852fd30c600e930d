"""A kernel's source without what tells it from one that does the same: names of buffers and values, comments, a number.

A model's layers have the same kernels under other names: so each of these is compiled, and loaded, once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from compiler.backend.emit_triton import IMPORTS, TritonFunction
from compiler.backend.triton_kernel import pointer
from compiler.backend.triton_text import functions

_COMMENT = re.compile(r"^ *#.*\n| +#.*$", re.MULTILINE)
_ASSIGNED = re.compile(r"^ *([\w, ]+?) \+?= ", re.MULTILINE)
_WORD = re.compile(r'"[^"]*"|(?<![\w.])[A-Za-z_]\w*(?!\w|=[^=])')  # no keyword of a call, which `=` follows at once
_HEAD = re.compile(r"(?<=\()\n[^()]*(?=\):\n)")  # functions' arguments, in as many lines as their names take
_NUMBER = re.compile(r"_\d+$")


def alike(text: str, function: TritonFunction) -> tuple[str, Mapping[str, str]]:
    """A module with the function alone, of whose text it is made, and the new names of the old ones."""
    text = _HEAD.sub(lambda head: " ".join(head[0].split()), _COMMENT.sub("", text))
    assigned = {name for match in _ASSIGNED.finditer(text) for name in match[1].split(", ")}
    given = {*assigned, *map(pointer, function.buffers), function.name}
    names = {function.name: _NUMBER.sub("", function.name)}

    def renamed(match: re.Match[str]) -> str:
        word = match[0]
        return names.setdefault(word, f"v{len(names)}") if word in given else word

    return "\n\n".join([IMPORTS, *functions(text), _WORD.sub(renamed, text)]) + "\n", names
