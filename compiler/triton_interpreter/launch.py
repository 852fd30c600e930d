"""Requests to the interpreter's process and its answers: plain data, MessagePack on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from compiler.record import Check
from compiler.triton_interpreter.arena import Placed

ErrorKind = Literal["syntax", "bounds", "error", "missing"]
TILE = 1 << 16
"""Elements of one program: large enough that Python's part is small, small enough for a processor's caches."""


@dataclass(frozen=True, slots=True)
class Request:
    """One launch of the function `name` of a file, with tensors in the file `memory` of `size` bytes.

    A kernel of Inductor's runs in the configuration with the number `config`, None to choose block sizes, and at most
    `most` of its programs run. A plain `@triton.jit` function has the `types` of its arguments, `blocks` and `grid`.
    """

    path: str
    name: str
    memory: str
    size: int
    arguments: list[Placed | bool | int | float | str | None]
    config: int | None = None
    most: int | None = None
    types: dict[str, str] | None = None
    blocks: dict[str, Any] = field(default_factory=dict)
    grid: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class KernelError:
    """Why a kernel could not be run. `line` is that of its source, from 1; 0 where it has none.

    `kind` says what it is: code that does not parse, an access outside its tensors, a function that the interpreter
    lacks, any other error.
    """

    kind: ErrorKind
    message: str
    line: int = 0

    def as_check(self, subject: str) -> Check:
        """The check of a kernel that has failed so."""
        where = f"line {self.line} of the kernel: " if self.line else ""
        verdict = "not comparable" if self.kind == "missing" or not self.line else "differs"
        return Check(subject, None, None, verdict, f"{where}{self.message}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One launch: block sizes, the grid, programs that ran, printed text, and what went wrong."""

    config: dict[str, Any] = field(default_factory=dict)
    grid: tuple[int, int, int] = (0, 0, 0)
    ran: int = 0
    printed: str = ""
    error: KernelError | None = None

    @property
    def programs(self) -> int:
        """Programs of the whole grid."""
        return prod(self.grid)

    @property
    def is_whole(self) -> bool:
        """Whether every program ran."""
        return self.error is None and self.ran == self.programs


def tile(config: Mapping[str, int], numels: Mapping[str, int], largest: Mapping[str, int]) -> dict[str, int]:
    """Block sizes for few programs: as large as sizes and limits allow, TILE elements in all.

    `config` is the heuristics' first choice; what is no block size stays. `numels` are elements by dimension
    (XBLOCK): the source fixes the blocks of reductions that the configuration does not name (persistent reductions).
    """
    chosen = dict(config)
    fixed = [_power_of_two(size) for name, size in numels.items() if name.startswith("R") and name not in config]
    room = TILE // min(prod(fixed), TILE)
    for name in sorted(set(config) & set(numels) & set(largest), key=lambda name: (not name.startswith("R"), name)):
        chosen[name] = max(1, min(_power_of_two(numels[name]), largest[name], room))
        room = max(1, room // chosen[name])
    return chosen


def _power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, number - 1).bit_length()
