"""Requests to the interpreter process and its answers: plain data, sent as MessagePack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from compiler.record import Check
from compiler.triton_interpreter.arena import Placed

ErrorKind = Literal["syntax", "bounds", "error", "missing"]
TILE = 1 << 16
"""Elements per program: large enough to hide Python's overhead, small enough for the CPU's caches."""


@dataclass(frozen=True, slots=True)
class Request:
    """One launch of the function `name` in the file `path`, with tensors in the file `memory` of `size` bytes.

    An Inductor kernel runs in the configuration with index `config`; None chooses block sizes. At most `most` programs
    run. For a plain `@triton.jit` function, `types` has its parameters' types, and `blocks` and `grid` are given.
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
    """The reason why a kernel could not be run. `line` is the source line, from 1; 0 if unknown.

    `kind`: "syntax" for code that does not parse, "bounds" for an access outside its tensors, "missing" for a function
    that the interpreter lacks, "error" for anything else.
    """

    kind: ErrorKind
    message: str
    line: int = 0

    def as_check(self, subject: str) -> Check:
        """The check of a kernel that failed with this error."""
        where = f"line {self.line} of the kernel: " if self.line else ""
        verdict = "not comparable" if self.kind == "missing" or not self.line else "differs"
        return Check(subject, None, None, verdict, f"{where}{self.message}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one launch: block sizes, grid, number of programs that ran, printed text, and the error."""

    config: dict[str, Any] = field(default_factory=dict)
    grid: tuple[int, int, int] = (0, 0, 0)
    ran: int = 0
    printed: str = ""
    error: KernelError | None = None

    @property
    def programs(self) -> int:
        """Number of programs in the whole grid."""
        return prod(self.grid)

    @property
    def is_whole(self) -> bool:
        """Whether every program ran."""
        return self.error is None and self.ran == self.programs


def tile(config: Mapping[str, int], numels: Mapping[str, int], largest: Mapping[str, int]) -> dict[str, int]:
    """Choose large block sizes for few programs, with about TILE elements per program.

    `config` is the heuristics' first choice; its other values are kept. `numels` has the number of elements, and
    `largest` the largest block, by dimension (XBLOCK). The source fixes the reduction blocks that `config`
    lacks (persistent reductions).
    """
    chosen = dict(config)
    fixed = [_power_of_two(size) for name, size in numels.items() if name.startswith("R") and name not in config]
    room = TILE // min(prod(fixed), TILE)
    for name in sorted(set(config) & set(numels) & set(largest), key=lambda name: (not name.startswith("R"), name)):
        chosen[name] = max(1, min(_power_of_two(numels[name]), largest[name], room))
        room = max(1, room // chosen[name])
    return chosen


def _power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()
