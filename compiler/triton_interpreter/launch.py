"""Questions to the interpreter's process and its answers: plain data, JSON on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ErrorKind = Literal["syntax", "bounds", "error", "missing"]


@dataclass(frozen=True, slots=True)
class KernelError:
    """Why a kernel could not be run. `line` is that of its source, from 1; 0 where it has none.

    `kind` says what it is: code that does not parse, an access outside its tensors, a function that the interpreter
    lacks, any other error.
    """

    kind: ErrorKind
    message: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One launch: block sizes, programs of the whole grid, programs that ran, printed text.

    `written` has, by argument, which bytes were stored to; only where not all programs ran.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, int, int] = (0, 0, 0)
    ran: int = 0
    printed: str = ""
    error: KernelError | None = None

    @property
    def programs(self) -> int:
        x, y, z = self.grid
        return x * y * z

    @property
    def is_whole(self) -> bool:
        """Whether every program ran."""
        return self.error is None and self.ran == self.programs


def tile(config: Mapping[str, int], numels: Mapping[str, int], largest: Mapping[str, int]) -> dict[str, int]:
    """Block sizes for few programs: as large as sizes and limits allow, TILE elements in all.

    `config` is the heuristics' first choice; what is no block size stays. `numels` are elements by dimension
    (XBLOCK).
    """
    chosen = dict(config)
    room = TILE // _fixed_elements(config, numels)
    for name in sorted(set(config) & set(numels) & set(largest), key=_reductions_first):
        chosen[name] = max(1, min(_power_of_two(numels[name]), largest[name], room))
        room = max(1, room // chosen[name])
    return chosen


TILE = 1 << 16
"""Elements of one program: large enough that Python's part is small, small enough for a processor's caches."""


def _fixed_elements(config: Mapping[str, int], numels: Mapping[str, int]) -> int:
    """A program's elements in dimensions whose block the source fixes (persistent reductions)."""
    size = 1
    for name, numel in numels.items():
        if name.startswith("R") and name not in config:
            size *= _power_of_two(numel)
    return min(size, TILE)


def _reductions_first(name: str) -> tuple[bool, str]:
    return (not name.startswith("R"), name)


def _power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, number - 1).bit_length()
