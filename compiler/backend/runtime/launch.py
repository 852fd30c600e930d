"""Generate the Python function that runs a compiled program: it allocates buffers and launches kernels.

The function does only what every call needs: it reads symbolic sizes from its inputs, allocates each buffer once, and
launches each kernel and makes each extern call once. Its source is readable.
"""

from __future__ import annotations

import linecache
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, ClassVar
from weakref import WeakSet

import torch

from compiler.backend.cpp.emit import Code, Function
from compiler.backend.ir import Extern, Kernel, Program, Strided
from compiler.backend.ir.expr import Shape
from compiler.backend.ir.index import Index
from compiler.backend.ir.reference_interpreter import match_fake_layout
from compiler.backend.ir.symbols import Source, sources
from compiler.backend.torch_glue.operators import quick
from compiler.backend.triton.emit import TritonCode, TritonFunction, signature
from compiler.backend.triton.tiles import TritonConfig
from compiler.torch_api.bindings import empty_on_cpu, keeps_graph, view_of_memory
from compiler.torch_api.cuda_launch import Loaded, letters

_numbers = count()
_TAKEN = frozenset({
    "torch", "args", "threads", "empty", "empty_on_gpu", "view", "match_layout", "count_threads", "launch", "stream",
    "stream_of", "current_device", "again", "call", "kept", "keeps_graph",
})  # fmt: skip
"""Names that the generated function uses itself: a buffer with such a name gets another variable name."""
_ROW_BY_ROW = tuple(f"aten.{name}.default" for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot"))
"""Operators whose results are always row-major. The strides of other results are checked: libraries choose the layouts
of convolutions, some of torch's fake kernels are wrong, and custom operators may return anything.
"""


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumptions of compiled code: all inputs are aligned to 16 bytes, and some symbols are multiples of 16."""

    aligned: bool = True
    multiples: frozenset[str] = frozenset()

    @staticmethod
    def from_checks(program: Program, found: Sequence[bool], inputs: bool) -> Assumed:
        """Assumptions that hold in a call. `found` has results of checks: alignment (if `inputs`), then symbols."""
        aligned, multiples = (found[0], found[1:]) if inputs else (True, found)
        named = zip(sources(program), multiples, strict=True)
        return Assumed(aligned, frozenset(name for name, holds in named if holds))

    def alignments(self, program: Program, buffers: Sequence[str]) -> list[bool]:
        """Whether each buffer is aligned to 16 bytes.

        New memory is aligned. Inputs and constants are aligned if `aligned`. Results of extern calls that may be views
        count as not aligned.
        """
        unknown = {name for call in program.calls if call.aliases for name in call.targets}
        inputs = {*program.inputs, *program.constants}
        return [self.aligned if name in inputs else name not in unknown for name in buffers]


def gpu_of(program: Program) -> int | None:
    """Ordinal of the GPU that the program's kernels run on; None for the CPU."""
    found = {program.by_name[name].device for kernel in program.kernels for name in kernel.writes} - {"cpu"}
    return int(found.pop().partition(":")[2] or 0) if found else None


def by_kernel(*codes: Code | TritonCode) -> Mapping[str, Function | TritonFunction]:
    """Functions of a program's code, by kernel name."""
    return {function.kernel: function for code in codes for function in code.functions}


class _Threads:
    """Number of threads for CPU kernels.

    In a forked process it is 1: OpenMP's threads don't survive a fork, so a parallel region would hang.
    """

    count: Callable[[], int] = staticmethod(torch.get_num_threads)
    calls: ClassVar[WeakSet[Any]] = WeakSet()

    @classmethod
    def after_fork(cls) -> None:
        """In the child process, make new and existing calls use one thread."""
        cls.count = staticmethod(cls.one)
        for call in cls.calls:
            call.__globals__["count_threads"] = cls.one

    @staticmethod
    def one() -> int:
        """Return 1; warn if PyTorch would use more threads."""
        if torch.get_num_threads() > 1:
            _warn_of_fork()
        return 1


@cache
def _warn_of_fork() -> None:
    why = "its kernels take one thread, and calls of PyTorch in it may hang, as in eager mode"
    advice = "Call torch.set_num_threads(1) first, or start the process by spawn"
    warnings.warn(f"a compiled function runs in a forked process: {why}. {advice}", stacklevel=4)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Threads.after_fork)


class Launcher:
    """Generates the function that runs a program: `text` is its source, `names` are its globals.

    On the CPU, the function calls kernels of the library. On a GPU, it passes pointers to the driver, and calls `again`
    if inputs or sizes violate the assumptions.

    loaded  the kernels on the GPU, by name; without these, the text shows the heuristics' configurations
    places  line numbers for each step: first the line that runs the step, then the lines that allocate its results or
            read their addresses
    """

    def __init__(
        self,
        program: Program,
        functions: Mapping[str, Function | TritonFunction],
        *,
        loaded: Mapping[str, tuple[TritonConfig, Loaded]] | None = None,
        assumed: Assumed | None = None,
    ) -> None:
        self.program, self.functions = program, functions
        self.loaded, self.assumed = loaded or {}, assumed or Assumed()
        self.gpu = gpu_of(program)
        self.pointers: dict[str, str] = {}
        self.lines, self.assigned = ["def call(args):"], dict[int, str]()
        self.names: dict[str, Any] = {
            "torch": torch,
            "empty": empty_on_cpu,
            "view": view_of_memory,
            "keeps_graph": keeps_graph,
            "count_threads": _Threads.count,
            "match_layout": match_fake_layout,
            **{f"constant_{name}": value for name, value in program.constants.items()},
        }
        self.places = [*self.write()]
        self.text = "\n".join(self.lines)

    def compile(self, names: Mapping[str, Any]) -> Callable[[list[Any]], Sequence[Any]]:
        """Compile the function. `names` are its other globals: the library's kernels or the driver's functions."""
        name = f"<tcompile {self.program.name} {next(_numbers)}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        names = {**self.names, **names}
        exec(compile(self.text, name, "exec"), names)
        call: Callable[[list[Any]], Sequence[Any]] = names["call"]
        _Threads.calls.add(call)
        return call

    def line(self, text: str, assigned: str = "") -> int:
        """Write a line; returns its number. `assigned` is the buffer that it allocates or reads the address of."""
        self.lines.append(f"    {text}")
        self.assigned[len(self.lines)] = assigned
        return len(self.lines)

    def write(self) -> Iterator[list[int]]:
        """Write all lines; yield the line numbers of each step."""
        inputs = [_variable(name) for name in self.program.inputs]
        if inputs:
            self.line(f"{', '.join(inputs)}, = args")
        symbols = sources(self.program)
        for name, source in symbols.items():
            if (read := _read(source, inputs)) != name:
                self.line(f"{name} = {read}")
        for name in self.program.constants:
            self.line(f"{_variable(name)} = constant_{name}")
        if self.gpu is not None:
            self.start_on_gpu(self.gpu, symbols)
        if inputs:
            self.line("args.clear()")
        if any(isinstance(function, Function) for function in self.functions.values()):
            self.line("threads = count_threads()")
        after = 0
        for step, freed in self.program.steps_with_frees:
            place = self.kernel(step) if isinstance(step, Kernel) else self.extern(step)
            yield [place, *(line for line in range(after + 1, place) if self.assigned.get(line, "") in step.targets)]
            after = place
            if freed:
                self.line(f"del {', '.join(map(_variable, freed))}")
        self.line(f"return [{', '.join(self.output(place) for place in range(len(self.program.outputs)))}]")

    def start_on_gpu(self, gpu: int, symbols: Iterable[str]) -> None:
        """Write lines that set the GPU, read the inputs' addresses, check the assumptions, and get the stream."""
        self.line(f"if current_device() != {gpu}:")
        self.line(f"    with torch.cuda.device({gpu}):")
        self.line("        return call(args)")
        functions = [function for function in self.functions.values() if isinstance(function, TritonFunction)]
        used = {name for function in functions for name in function.buffers}
        found = [self.pointer(name) for name in (*self.program.inputs, *self.program.constants) if name in used]
        expected = {f"({' | '.join(found)})": self.assumed.aligned} if found else {}
        expected.update((name, name in self.assumed.multiples) for name in symbols)
        if expected:
            wrong = [f"{'' if holds else 'not '}{value} & 15" for value, holds in expected.items()]
            self.line(f"if {' or '.join(wrong)}:")
            self.line(f"    return again(args, ({''.join(f'{value} & 15 == 0, ' for value in expected)}))")
        if self.program.overwritten:
            self.line("kept = keeps_graph()")
        self.line(f"stream = stream_of({gpu})")

    def kernel(self, kernel: Kernel) -> int:
        """Write lines that allocate a kernel's outputs and run it; returns the number of the line that runs it."""
        for name in kernel.writes:
            if name not in self.program.mutated:
                self.allocate(name)
        function = self.functions[kernel.name]
        if isinstance(function, TritonFunction):
            return self.line(self.launch(function))
        pointers = [f"{_variable(name)}.data_ptr()" for name in function.buffers]
        call = f"{function.name}({', '.join([*pointers, *function.symbols, 'threads'])})"
        place = self.line(f"if {call}:" if function.checks else call)
        if function.checks:
            self.line(f'    raise IndexError("index out of range in {kernel.name}")')
        return place

    def launch(self, function: TritonFunction) -> str:
        """Source text that launches a kernel on the GPU."""
        config, loaded = self.loaded.get(function.kernel) or (function.configs[0], None)
        starts = loaded.starts if loaded and loaded.starts else (0,) * len(function.buffers)
        pointers = zip(map(self.pointer, function.buffers), starts, strict=True)
        arguments = [f"{pointer} + {start}" if start else pointer for pointer, start in pointers]
        arguments += [*function.symbols, *(["None"] * loaded.spare if loaded else [])]
        grid = [_programs(points, config.blocks.get(block, 1)) for points, block in function.grid]
        grid = [" * ".join(grid)] if function.is_folded else grid
        grid += ["1"] * (3 - len(grid))
        types = letters([name for name in signature(self.program, function).values() if name != "constexpr"])
        facts = [str(config.num_warps), str(loaded.shared if loaded else 0), repr(loaded.letters if loaded else types)]
        packed = f"({''.join(f'{argument}, ' for argument in arguments)})"
        return f"launch({function.name}, {', '.join([*grid, *facts, packed])}, stream)"

    def pointer(self, name: str) -> str:
        """Variable name of a buffer's address. The first time, also write the line that reads the address."""
        if name not in self.pointers:
            self.pointers[name] = f"at_{name}"
            self.line(f"at_{name} = {_variable(name)}.data_ptr()", name)
        return self.pointers[name]

    def allocate(self, name: str) -> None:
        buffer = self.program.by_name[name]
        shape, strides = _sizes(buffer.shape), _sizes(buffer.strides)
        value = f"{'empty' if buffer.device == 'cpu' else 'empty_on_gpu'}({shape}, {strides}, {buffer.dtype})"
        if buffer.reuses:
            old, before = _variable(buffer.reuses), self.program.by_name[buffer.reuses]
            is_alike = (before.shape, before.strides) == (buffer.shape, buffer.strides)
            view = old if is_alike else f"view({old}, {shape}, {strides}, 0)"
            is_input = buffer.reuses in self.program.overwritten
            if self.gpu is not None:  # the kernel may still read the buffer that it overwrites
                address = self.pointer(buffer.reuses)
                self.pointers |= {} if is_input else {name: address}
            value = f"{value} if kept else {view}; del {old}" if is_input else f"{view}; del {old}"
        self.line(f"{_variable(name)} = {value}", name)

    def extern(self, extern: Extern) -> int:
        """Write an extern call and return its line number."""
        function = self.bind_name(f"call_{extern.name}", quick(extern.function))
        args = [self.argument(arg) for arg in extern.args]
        args += [f"{key}={self.argument(value)}" for key, value in extern.kwargs]
        made = f"{_targets(extern.outputs)} = " if extern.targets else ""
        place = self.line(f"{made}{function}({', '.join(args)})")
        if not extern.aliases and extern.name not in _ROW_BY_ROW:
            for name in extern.targets:
                self.check_metadata(name, extern)
        return place

    def check_metadata(self, name: str, extern: Extern) -> None:
        """Write lines that make a result match its fake tensor. For torch's own operators they check strides only."""
        buffer, found = self.program.by_name[name], _variable(name)
        if len(buffer.strides) != len(buffer.shape):
            return  # another layout: no kernel reads it
        strides = _sizes(buffer.strides)
        expected = f"{_sizes(buffer.shape)}, {strides}, {buffer.dtype}"
        if extern.name.startswith(("aten.", "prims.")):
            self.line(f"if {found} is not None and {found}.stride() != {strides}:")
        else:
            self.line(f"if {found} is None or ({found}.shape, {found}.stride(), {found}.dtype) != ({expected}):")
        self.line(f'    {found} = match_layout("{extern.name}", {found}, {expected})')

    def bind_name(self, wanted: str, value: Any) -> str:
        """Bind a value to a name in the function's globals; returns the name."""
        name = "".join(letter if letter.isalnum() else "_" for letter in wanted)
        while self.names.setdefault(name, value) is not value:
            name += "_"
        return name

    def output(self, place: int) -> str:
        found = self.argument(self.program.outputs[place])
        return f"{found}.detach()" if place in self.program.apart else found

    def argument(self, value: Any) -> str:
        """Source text of an argument of an extern call, or of an output."""
        if isinstance(value, Strided):
            return self.view(value)
        if isinstance(value, Index):
            return str(value)
        if isinstance(value, tuple | list):
            inside = "".join(f"{self.argument(item)}, " for item in value)
            return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        return self.bind_name("value", value)

    def view(self, view: Strided) -> str:
        if view.is_all_of(self.program.by_name[view.buffer]):
            return _variable(view.buffer)
        where = f"{_sizes(view.shape)}, {_sizes(view.strides)}, {view.offset}"
        return f"view({_variable(view.buffer)}, {where})"


def _sizes(sizes: Shape) -> str:
    return f"({''.join(f'{size}, ' for size in sizes)})"


def _programs(points: Index, block: int) -> str:
    """Source text of the number of programs along an axis."""
    if points.constant is not None:
        return str(-(-points.constant // block))
    return f"-(-({points}) // {block})" if block > 1 else f"({points})"


def _variable(name: str) -> str:
    """Variable name of a buffer in the generated function."""
    return f"{name}_" if name in _TAKEN else name


def _read(source: Source, inputs: Sequence[str]) -> str:
    name, dim = inputs[source.position], source.dim
    return {"size": name, "shape": f"{name}.shape[{dim}]", "stride": f"{name}.stride({dim})"}[source.what]


def _targets(outputs: Any) -> str:
    if isinstance(outputs, tuple):
        return f"({''.join(f'{_targets(output)}, ' for output in outputs)})"
    return _variable(outputs) if outputs else "_"
