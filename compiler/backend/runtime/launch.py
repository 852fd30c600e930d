"""Generate the Python function of a compiled program, which allocates and launches.

It does only what every call needs: sizes are read where there are symbols, each buffer is allocated once, a kernel is
one call into the library, an operator one call of PyTorch. Its text can be read.
"""

from __future__ import annotations

import linecache
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, repeat
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
"""Names that the function's text uses itself."""
_ROW_BY_ROW = tuple(f"aten.{name}.default" for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot"))
"""Calls of which the result lies row by row. What others give is looked at: libraries choose the layouts of
convolutions, torch's fake kernels are wrong about some layouts, and operators of others may give anything.
"""


@dataclass(frozen=True, slots=True)
class Assumed:
    """What code is compiled for: whether all inputs are aligned to 16 bytes, and which symbols are multiples of 16."""

    aligned: bool = True
    multiples: frozenset[str] = frozenset()

    @staticmethod
    def from_checks(program: Program, found: Sequence[bool], inputs: bool) -> Assumed:
        """The assumptions that hold in a call, from its checks in order: inputs if checked, then each symbol."""
        aligned, multiples = (found[0], found[1:]) if inputs else (True, found)
        return Assumed(
            aligned, frozenset(name for name, holds in zip(sources(program), multiples, strict=True) if holds)
        )


def gpu_of(program: Program) -> int | None:
    """Ordinal of the GPU that the program's kernels run on; None for the CPU."""
    found = {program.by_name[name].device for kernel in program.kernels for name in kernel.writes} - {"cpu"}
    return int(found.pop().partition(":")[2] or 0) if found else None


def by_kernel(*codes: Code | TritonCode) -> Mapping[str, Function | TritonFunction]:
    """Functions of a program's code, by kernel."""
    return {function.kernel: function for code in codes for function in code.functions}


def given_pointers(program: Program, functions: Iterable[Function | TritonFunction]) -> list[str]:
    """Inputs and constants that kernels on a GPU read or write."""
    used = {name for function in functions if isinstance(function, TritonFunction) for name in function.buffers}
    return [name for name in (*program.inputs, *program.constants) if name in used]


class _Threads:
    """Number of threads of kernels on a CPU.

    It is one in a forked process, where OpenMP's threads are gone and a parallel region would wait for them for ever.
    """

    count: Callable[[], int] = staticmethod(torch.get_num_threads)
    calls: ClassVar[WeakSet[Any]] = WeakSet()

    @classmethod
    def after_fork(cls) -> None:
        """In the child process, existing calls take one thread too."""
        cls.count = staticmethod(cls.one)
        for call in cls.calls:
            call.__globals__["count_threads"] = cls.one

    @staticmethod
    def one() -> int:
        """One thread, with a warning where PyTorch would take more."""
        if torch.get_num_threads() > 1:
            _warn_of_fork()
        return 1


@cache
def _warn_of_fork() -> None:
    warnings.warn(
        "a compiled function runs in a forked process: its kernels take one thread, and calls of PyTorch in it may "
        "hang, as in eager mode. Call torch.set_num_threads(1) first, or start the process by spawn",
        stacklevel=4,
    )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Threads.after_fork)


class Launcher:
    """Writes the function: `text` is its source, `names` what it refers to.

    A kernel on the CPU is a call into the library. A kernel on a GPU goes to the driver with pointers that are read
    once. Where inputs are not aligned as `assumed`, or other sizes are multiples of 16, it calls `again`, which has
    code for that. `loaded` are kernels on the GPU; without them the text shows what the heuristics chose.
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
        self.names: dict[str, Any] = {
            "torch": torch,
            "empty": empty_on_cpu,
            "view": view_of_memory,
            "keeps_graph": keeps_graph,
            "count_threads": _Threads.count,
            "match_layout": match_fake_layout,
            **{f"constant_{name}": value for name, value in program.constants.items()},
        }
        self.text = "\n".join(["def call(args):", *(f"    {line}" for line in self.lines())])

    def compile(self, names: Mapping[str, Any]) -> Callable[[list[Any]], Sequence[Any]]:
        """The compiled function, with the library's kernels or the GPU's launches."""
        name = f"<tcompile {self.program.name} {next(_numbers)}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        names = {**self.names, **names}
        exec(compile(self.text, name, "exec"), names)
        call: Callable[[list[Any]], Sequence[Any]] = names["call"]
        _Threads.calls.add(call)
        return call

    def lines(self) -> Iterator[str]:
        inputs = [_input(name) for name in self.program.inputs]
        if inputs:
            yield f"{', '.join(inputs)}, = args"
        symbols = sources(self.program)
        for name, source in symbols.items():
            if (read := _read(source, inputs)) != name:
                yield f"{name} = {read}"
        for name in self.program.constants:
            yield f"{_input(name)} = constant_{name}"
        if self.gpu is not None:
            yield from self.on_gpu(symbols)
        if inputs:
            yield "args.clear()"
        if any(isinstance(function, Function) for function in self.functions.values()):
            yield "threads = count_threads()"
        for step, freed in zip(self.program.steps, self.program.frees, strict=True):
            yield from self.kernel(step) if isinstance(step, Kernel) else self.extern(step)
            if freed:
                yield f"del {', '.join(map(_input, freed))}"
        yield f"return [{', '.join(self.output(place) for place in range(len(self.program.outputs)))}]"

    def on_gpu(self, symbols: Iterable[str]) -> Iterator[str]:
        """Lines for the GPU's stream, the inputs' addresses, and the check of assumptions."""
        yield f"if current_device() != {self.gpu}:"
        yield f"    with torch.cuda.device({self.gpu}):"
        yield "        return call(args)"
        found = [self.pointer(name) for name in given_pointers(self.program, self.functions.values())]
        yield from (line for lines, _ in found for line in lines)
        expected = {f"({' | '.join(pointer for _, pointer in found)})": self.assumed.aligned} if found else {}
        expected.update((name, name in self.assumed.multiples) for name in symbols)
        if expected:
            wrong = [f"{'' if holds else 'not '}{value} & 15" for value, holds in expected.items()]
            yield f"if {' or '.join(wrong)}:"
            yield f"    return again(args, ({''.join(f'{value} & 15 == 0, ' for value in expected)}))"
        if any(buffer.reuses in self.program.inputs for buffer in self.program.buffers):
            yield "kept = keeps_graph()"
        yield f"stream = stream_of({self.gpu})"

    def kernel(self, kernel: Kernel) -> Iterator[str]:
        for name in kernel.writes:
            if name not in self.program.mutated:
                yield from self.allocation(name)
        function = self.functions[kernel.name]
        yield from self.launch(function) if isinstance(function, TritonFunction) else self.call(kernel, function)

    def call(self, kernel: Kernel, function: Function) -> Iterator[str]:
        """Lines that call a kernel of the library."""
        pointers = [f"{_input(name)}.data_ptr()" for name in function.buffers]
        call = f"{function.name}({', '.join([*pointers, *function.symbols, 'threads'])})"
        if not function.checks:
            yield call
            return
        yield f"if {call}:"
        yield f'    raise IndexError("index out of range in {kernel.name}")'

    def launch(self, function: TritonFunction) -> Iterator[str]:
        """Lines that launch a kernel on the GPU."""
        config, loaded = self.loaded.get(function.kernel) or (function.configs[0], None)
        arguments = []
        starts = loaded.starts if loaded and loaded.starts else repeat(0)
        for name, start in zip(function.buffers, starts, strict=False):
            lines, pointer = self.pointer(name)
            yield from lines
            arguments.append(f"{pointer} + {start}" if start else pointer)
        arguments += [*function.symbols, *(["None"] * loaded.spare if loaded else [])]
        grid = [self.programs(points, config.blocks.get(block, 1)) for points, block in function.grid]
        grid = [" * ".join(grid)] if function.is_folded else grid
        grid += ["1"] * (3 - len(grid))
        types = letters([name for name in signature(self.program, function).values() if name != "constexpr"])
        facts = [str(config.num_warps), str(loaded.shared if loaded else 0), repr(loaded.letters if loaded else types)]
        packed = f"({''.join(f'{argument}, ' for argument in arguments)})"
        yield f"launch({function.name}, {', '.join([*grid, *facts, packed])}, stream)"

    def programs(self, points: Index, block: int) -> str:
        """Number of programs along one axis."""
        if points.constant is not None:
            return str(-(-points.constant // block))
        return f"-(-({points}) // {block})" if block > 1 else f"({points})"

    def pointer(self, name: str) -> tuple[list[str], str]:
        """Variable with a buffer's address, and at its first use the line that reads it."""
        known = self.pointers.get(name)
        if known is not None:
            return [], known
        self.pointers[name] = f"at_{name}"
        return [f"at_{name} = {_input(name)}.data_ptr()"], f"at_{name}"

    def allocation(self, name: str) -> Iterator[str]:
        buffer = self.program.by_name[name]
        shape, strides = self.sizes(buffer.shape), self.sizes(buffer.strides)
        if not buffer.reuses:
            empty = "empty" if buffer.device == "cpu" else "empty_on_gpu"
            yield f"{_input(name)} = {empty}({shape}, {strides}, {buffer.dtype})"
            return
        old, before = _input(buffer.reuses), self.program.by_name[buffer.reuses]
        is_alike = (before.shape, before.strides) == (buffer.shape, buffer.strides)
        view = old if is_alike else f"view({old}, {shape}, {strides}, 0)"
        if buffer.reuses in self.program.inputs:
            yield from self.pointer(buffer.reuses)[0]
            yield f"{_input(name)} = empty_on_gpu({shape}, {strides}, {buffer.dtype}) if kept else {view}; del {old}"
            return
        if self.gpu is not None:  # the kernel may still read what it writes over
            lines, self.pointers[name] = self.pointer(buffer.reuses)
            yield from lines
        yield f"{_input(name)} = {view}; del {old}"

    def extern(self, extern: Extern) -> Iterator[str]:
        function = self.bind_name(f"call_{extern.name}", quick(extern.function))
        args = [self.argument(arg) for arg in extern.args]
        args += [f"{key}={self.argument(value)}" for key, value in extern.kwargs]
        made = f"{_targets(extern.outputs)} = " if extern.targets else ""
        yield f"{made}{function}({', '.join(args)})"
        if not extern.aliases and extern.name not in _ROW_BY_ROW:
            yield from (line for name in extern.targets for line in self.check_metadata(name, extern))

    def check_metadata(self, name: str, extern: Extern) -> Iterator[str]:
        """Lines that enforce fake-kernel metadata; of torch's own operators only strides can differ."""
        buffer, found = self.program.by_name[name], _input(name)
        if len(buffer.strides) != len(buffer.shape):
            return  # another layout: no kernel reads it
        shape, strides = self.sizes(buffer.shape), self.sizes(buffer.strides)
        told = f"{shape}, {strides}, {buffer.dtype}"
        if extern.name.startswith(("aten.", "prims.")):
            yield f"if {found} is not None and {found}.stride() != {strides}:"
        else:
            yield f"if {found} is None or ({found}.shape, {found}.stride(), {found}.dtype) != ({told}):"
        yield f'    {found} = match_layout("{extern.name}", {found}, {told})'

    def bind_name(self, wanted: str, value: Any) -> str:
        """A name in the function's namespace for a value."""
        name = "".join(letter if letter.isalnum() else "_" for letter in wanted)
        while self.names.setdefault(name, value) is not value:
            name += "_"
        return name

    def output(self, place: int) -> str:
        found = self.argument(self.program.outputs[place])
        return f"{found}.detach()" if place in self.program.apart else found

    def argument(self, value: Any) -> str:
        """An argument of an extern call, or an output."""
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
            return _input(view.buffer)
        where = f"{self.sizes(view.shape)}, {self.sizes(view.strides)}, {view.offset}"
        return f"view({_input(view.buffer)}, {where})"

    def sizes(self, sizes: Shape) -> str:
        return f"({''.join(f'{size}, ' for size in sizes)})"


def _input(name: str) -> str:
    """Variable of a buffer in the function."""
    return f"{name}_" if name in _TAKEN else name


def _read(source: Source, inputs: Sequence[str]) -> str:
    name = inputs[source.position]
    if source.what == "size":
        return name
    return f"{name}.shape[{source.dim}]" if source.what == "shape" else f"{name}.stride({source.dim})"


def _targets(outputs: Any) -> str:
    if isinstance(outputs, tuple):
        return f"({''.join(f'{_targets(output)}, ' for output in outputs)})"
    return _input(outputs) if outputs else "_"
