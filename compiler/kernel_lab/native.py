"""Build an edited C++ kernel of our backend, and run it in a separate process, as it may crash."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from compiler.backend.runtime import build_cpp
from compiler.process import run_in_own_group
from compiler.triton_interpreter import arena
from compiler.triton_interpreter.kernel_inputs import own_copies
from compiler.triton_interpreter.launch import KernelError

SECONDS = 60
TIMED_SECONDS = 0.3
_NAME_OF_CELL = "cell"
_ERROR = re.compile(rf"^{_NAME_OF_CELL}:(\d+):\d+: (?:fatal )?error: (.*)$", re.MULTILINE)
_GUARD = torch.tensor([0xF5, 0xFF], dtype=torch.uint8)
"""Bytes between the tensors: NaN in each float format, and no number that a kernel is likely to store."""
TOO_SLOW = KernelError("error", f"it took longer than {SECONDS} s")

# The child process only imports the standard library, to start quickly. Its answer is a file, as the kernel may print.
_MAIN = """
import ctypes, json, mmap, os, sys, time
asked = json.loads(sys.stdin.read())
printed = os.open(asked["printed"], os.O_WRONLY)
for stream in (1, 2):
    os.dup2(printed, stream)
mapped = []

def arguments(access):
    with open(asked["memory"], "r+b") as file:
        mapped.append(mmap.mmap(file.fileno(), asked["size"], access=access))
    base = ctypes.addressof(ctypes.c_char.from_buffer(mapped[-1]))
    pointers = [ctypes.c_void_p(base + at) for at in asked["pointers"]]
    return [*pointers, *map(ctypes.c_long, asked["sizes"]), ctypes.c_int(asked["threads"])]

def answer(**facts):
    with open(asked["answer"], "w") as file:
        json.dump(facts, file)

try:
    calls = [getattr(ctypes.CDLL(library), asked["name"]) for library in asked["libraries"]]
except (OSError, AttributeError) as error:
    answer(failed=str(error))
    sys.exit()
times = [[] for _ in calls]
if asked["seconds"]:
    given, end = arguments(mmap.ACCESS_COPY), time.perf_counter() + asked["seconds"]
    for call in calls:
        call(*given)
    while time.perf_counter() < end or len(times[0]) < 4:
        for call, taken in zip(calls, times):
            start = time.perf_counter()
            call(*given)
            taken.append(time.perf_counter() - start)
answer(found=calls[-1](*arguments(mmap.ACCESS_WRITE)), times=times)
"""


class BuildError(ValueError):
    """A C++ source could not be compiled. `line` is the line of the first error in the cell, 0 if unknown."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.line = line


def build_library(prelude: str, source: str, library: Path) -> None:
    """Compile a kernel's function below its shared prelude. Raises BuildError.

    Line 1 of the source is the first line of the user's cell.
    """
    if not (program := build_cpp.compiler()):
        raise BuildError("there is no C++ compiler here: install g++, or name one in the variable CXX")
    text = library.with_suffix(".cpp")
    text.write_text(f'{prelude}\n#line 1 "{_NAME_OF_CELL}"\n{source}\n', encoding="utf-8")
    done = run_in_own_group(build_cpp.command_for(program, text, library))
    if done.returncode:
        found = _ERROR.search(done.stderr)
        raise BuildError(found[2] if found else done.stderr.strip()[-500:], int(found[1]) if found else 0)


@dataclass(frozen=True, slots=True)
class Called:
    """Copies of the arguments after a call, its error, and seconds of each library's timed calls."""

    after: list[Any]
    error: KernelError | None = None
    seconds: Sequence[Sequence[float]] = ()


@dataclass(frozen=True, slots=True)
class Native:
    """Runs the function `name` of built libraries on copies of the arguments. `names` are the arguments' names."""

    folder: Path
    name: str
    names: Sequence[str]
    arguments: Sequence[Any]

    def run(self, *libraries: Path, seconds: float = 0.0) -> Called:
        """Call the last library's function; before that, time the functions, called in turn, for some `seconds`.

        All calls are in one process, where a function may keep what it likes; timed calls have their own arguments.
        """
        after = own_copies(self.arguments)
        tensors = {str(place): value for place, value in enumerate(after) if isinstance(value, torch.Tensor)}
        places = arena.place_tensors(tensors)
        memory = arena.map_tensors(self.folder / "memory", tensors, places)
        for _, gap in _gaps(memory, places):
            gap.copy_(_guard(gap))
        answer = self._ask(libraries, places, memory.numel(), seconds)
        if isinstance(answer, KernelError):
            return Called(after, answer)
        arena.copy_back(memory, tensors, places)
        if answer["found"]:
            return Called(after, KernelError("error", "an index that a tensor holds is out of range"))
        return Called(after, self._writes_out_of_bounds(memory, places), answer["times"])

    def printed_text(self, most: int) -> str:
        """The first characters that the last run printed."""
        with (self.folder / "printed").open(encoding="utf-8", errors="replace") as file:
            return file.read(most)

    def _ask(
        self, libraries: Sequence[Path], places: Mapping[str, arena.Placed], size: int, seconds: float
    ) -> dict[str, Any] | KernelError:
        """Run the functions in a new process; returns the process's answer, or an error if it failed."""
        answer, printed = self.folder / "answer", self.folder / "printed"
        answer.unlink(missing_ok=True)
        printed.write_text("")
        request = {
            "memory": str(self.folder / "memory"), "size": size, "libraries": [*map(str, libraries)],
            "name": self.name, "answer": str(answer), "printed": str(printed),
            "pointers": [place.region.start + place.offset * place.dtype.itemsize for place in places.values()],
            "sizes": [int(value) for value in self.arguments if not isinstance(value, torch.Tensor)],
            "threads": torch.get_num_threads(), "seconds": seconds,
        }  # fmt: skip
        try:
            done = run_in_own_group([sys.executable, "-c", _MAIN], json.dumps(request), SECONDS)
        except subprocess.TimeoutExpired:
            return TOO_SLOW
        if done.returncode < 0:
            ended = signal.Signals(-done.returncode).name
            why = ": it reads or writes far out of bounds" if ended in ("SIGSEGV", "SIGBUS") else ""
            return KernelError("error", f"it ended its process ({ended}){why}")
        if not answer.exists():
            return KernelError("error", f"it ended its process (exit code {done.returncode}) instead of returning")
        facts: dict[str, Any] = json.loads(answer.read_text())
        return KernelError("error", f"it could not be called: {facts['failed']}") if "failed" in facts else facts

    def _writes_out_of_bounds(self, memory: torch.Tensor, places: Mapping[str, arena.Placed]) -> KernelError | None:
        """An error if the kernel wrote between the tensors; None otherwise."""
        for start, gap in _gaps(memory, places):
            changed = (gap != _guard(gap)).nonzero()
            if len(changed):
                return KernelError("error", self._words(start + int(changed[0]), places))
        return None

    def _words(self, at: int, places: Mapping[str, arena.Placed]) -> str:
        """The error message for a write to a byte of the arena, as an element of the nearest tensor."""

        def distance(place: arena.Placed) -> int:
            return min(abs(at - place.region.start), abs(at - place.region.start - place.region.size))

        name, near = min(places.items(), key=lambda item: distance(item[1]))
        element = (at - near.region.start) // near.dtype.itemsize - near.offset
        return f"it writes out of bounds: element {element} of {self.names[int(name)]}"


def _gaps(memory: torch.Tensor, places: Mapping[str, arena.Placed]) -> Iterator[tuple[int, torch.Tensor]]:
    """The start and the bytes of the memory before, between and after the tensors."""
    regions = sorted({place.region for place in places.values()}, key=lambda region: region.start)
    ends = [0, *(region.start + region.size for region in regions)]
    starts = [*(region.start for region in regions), memory.numel()]
    return ((end, memory[end:start]) for end, start in zip(ends, starts, strict=True))


def _guard(gap: torch.Tensor) -> torch.Tensor:
    return _GUARD.repeat(gap.numel() // 2 + 1)[: gap.numel()]
