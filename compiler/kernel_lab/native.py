"""Build an edited C++ kernel of our backend, and run it in a separate process, as it may crash."""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
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

# The child process only imports the standard library, to start quickly.
_MAIN = """
import ctypes, json, mmap, sys, time
asked = json.loads(sys.stdin.read())
with open(asked["memory"], "r+b") as file:
    access = mmap.ACCESS_COPY if asked["seconds"] else mmap.ACCESS_WRITE
    memory = mmap.mmap(file.fileno(), asked["size"], access=access)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
pointers, sizes = asked["pointers"], asked["sizes"]
given = [*(ctypes.c_void_p(base + at) for at in pointers), *map(ctypes.c_long, sizes)]
calls = [getattr(ctypes.CDLL(library), asked["name"]) for library in asked["libraries"]]
found = [call(*given, ctypes.c_int(asked["threads"])) for call in calls]
times = [[] for _ in calls]
end = time.perf_counter() + asked["seconds"]
while time.perf_counter() < end or asked["seconds"] and len(times[0]) < 4:
    for call, taken in zip(calls, times):
        start = time.perf_counter()
        call(*given, ctypes.c_int(asked["threads"]))
        taken.append(time.perf_counter() - start)
print(json.dumps({"found": found, "times": times}))
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
class Native:
    """Runs the function `name` of built libraries on copies of the arguments. `names` are the arguments' names."""

    folder: Path
    name: str
    names: Sequence[str]
    arguments: Sequence[Any]

    def run(self, library: Path) -> tuple[list[Any], KernelError | None]:
        """Call the function on copies of the arguments; returns the copies after the call, and an error or None."""
        after = own_copies(self.arguments)
        places, memory = self._map_arguments(after)
        answer = self._ask([library], places, memory.numel(), 0.0)
        if isinstance(answer, KernelError):
            return after, answer
        arena.copy_back(memory, _tensors(after), places)
        if answer["found"][0]:
            return after, KernelError("error", "an index that a tensor holds is out of range")
        return after, self._writes_out_of_bounds(memory, places)

    def times(self, libraries: Sequence[Path]) -> list[tuple[float, float, float]]:
        """Median and quartiles of a call's time for each library, called in turn, in seconds; [] if a call fails."""
        places, memory = self._map_arguments(self.arguments)
        answer = self._ask(libraries, places, memory.numel(), TIMED_SECONDS)
        if isinstance(answer, KernelError):
            return []
        quartiles = [statistics.quantiles(taken, n=4) for taken in answer["times"]]
        return [(middle, low, high) for low, middle, high in quartiles]

    def _map_arguments(self, arguments: Sequence[Any]) -> tuple[dict[str, arena.Placed], torch.Tensor]:
        tensors = _tensors(arguments)
        places = arena.place_tensors(tensors)
        return places, arena.map_tensors(self._memory, tensors, places)

    @property
    def _memory(self) -> Path:
        return self.folder / "memory"

    def _ask(
        self, libraries: Sequence[Path], places: Mapping[str, arena.Placed], size: int, seconds: float
    ) -> dict[str, Any] | KernelError:
        """Run the functions in a new process; returns the process's answer, or an error if it failed."""
        request = {
            "memory": str(self._memory), "size": size, "libraries": [*map(str, libraries)], "name": self.name,
            "pointers": [place.region.start + place.offset * place.dtype.itemsize for place in places.values()],
            "sizes": [int(value) for value in self.arguments if not isinstance(value, torch.Tensor)],
            "threads": torch.get_num_threads(), "seconds": seconds,
        }  # fmt: skip
        command = [sys.executable, "-c", _MAIN]
        try:
            done = run_in_own_group(command, json.dumps(request), SECONDS)
        except subprocess.TimeoutExpired:
            return KernelError("error", f"it took longer than {SECONDS} s")
        if done.returncode < 0:
            ended = signal.Signals(-done.returncode).name
            return KernelError("error", f"it ended its process ({ended}): it reads or writes far out of bounds")
        if done.returncode:
            return KernelError("error", f"it could not be called: {done.stderr.strip().splitlines()[-1]}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def _writes_out_of_bounds(self, memory: torch.Tensor, places: Mapping[str, arena.Placed]) -> KernelError | None:
        """An error if the kernel wrote between the tensors; None otherwise."""
        regions = sorted({place.region for place in places.values()}, key=lambda region: region.start)
        ends = [0, *(region.start + region.size for region in regions)]
        starts = [*(region.start for region in regions), memory.numel()]
        for end, start in zip(ends, starts, strict=True):
            if memory[end:start].any():
                at = end + int(memory[end:start].nonzero()[0])
                return KernelError("error", self._words(at, places))
        return None

    def _words(self, at: int, places: Mapping[str, arena.Placed]) -> str:
        """The error message for a write to a byte of the arena, as an element of the nearest tensor."""

        def distance(place: arena.Placed) -> int:
            return min(abs(at - place.region.start), abs(at - place.region.start - place.region.size))

        name, near = min(places.items(), key=lambda item: distance(item[1]))
        element = (at - near.region.start) // near.dtype.itemsize - near.offset
        return f"it writes out of bounds: element {element} of {self.names[int(name)]}"


def _tensors(arguments: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The tensors among the arguments, by position."""
    return {str(place): value for place, value in enumerate(arguments) if isinstance(value, torch.Tensor)}
