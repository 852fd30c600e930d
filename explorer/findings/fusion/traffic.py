"""Count repeated memory reads in the source of a generated Triton kernel. Caches may serve some of the reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

_DEFINED = re.compile(r"^def (?P<name>\w+)\((?P<arguments>[^)]*)\)", re.MULTILINE)
_ACCESS = re.compile(r"\btl\.load\((?P<pointer>\w+_ptr\d*)(?P<rest>[^\n]*)")
_CALL = re.compile(r"\.run\((?P<arguments>.*)\)$")
_NAME = re.compile(r"\w+")


def read_again(source: str, call: str, moves: Mapping[str, int]) -> dict[str, int]:
    """Buffer -> bytes of a launch's repeated reads. A rough count: each repeated load at an offset is taken to read as
    many bytes as the first load.

    `source` is the kernel's source, `call` the line that launches the kernel. `moves` maps each buffer to its
    bytes, each byte counted once.
    """
    extra = {}
    for pointer, times in _loads(source).items():
        buffer = _arguments(source, call).get(pointer, "")
        if buffer in moves and times > 1:
            extra[buffer] = round(moves[buffer] * (times - 1))
    return extra


@lru_cache(maxsize=512)
def _loads(source: str) -> dict[str, float]:
    """Pointer -> mean number of loads per distinct offset."""
    places: dict[str, list[str]] = {}
    for match in _ACCESS.finditer(source):
        places.setdefault(match["pointer"], []).append(_place(match["rest"]))
    return {pointer: len(found) / len(set(found)) for pointer, found in places.items()}


def _place(rest: str) -> str:
    """Offset expression added to the pointer: the text up to the end of the first argument."""
    depth = 0
    for index, sign in enumerate(rest):
        if depth == 0 and sign in ",)":
            return rest[:index].strip()
        depth += (sign in "([") - (sign in ")]")
    return rest


def _arguments(source: str, call: str) -> dict[str, str]:
    """Pointer argument -> the buffer passed to it in this launch."""
    defined, launched = _DEFINED.search(source), _CALL.search(call)
    if defined is None or launched is None:
        return {}
    names = [name.strip().split(" ")[0] for name in defined["arguments"].split(",")]
    return dict(zip(names, _split(launched["arguments"]), strict=False))


def _split(arguments: str) -> Iterator[str]:
    """Names of the arguments of a launch, "" if there is no name. A view is replaced by its base buffer."""
    depth, start = 0, 0
    for index, sign in enumerate(f"{arguments},"):
        if sign == "," and depth == 0:
            names = [name for name in _NAME.findall(arguments[start:index]) if name != "reinterpret_tensor"]
            yield names[0] if names else ""
            start = index + 1
        depth += (sign in "([") - (sign in ")]")
