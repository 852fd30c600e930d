"""The call of a compiled program: a Python function, written for it and compiled once, that allocates and launches.

It does what has to be done at each call and nothing else: sizes are read where there are symbols, memory is asked for
once for each buffer, a kernel is one call into the library, an operator one call of PyTorch. Its text can be read.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import torch

from compiler.backend.cpp_text import Text
from compiler.backend.emit_cpp import Code
from compiler.backend.index import Atom, Index, Quotient, Remainder
from compiler.backend.ir import Extern, Kernel, Load, Program, Shape, Strided
from compiler.backend.symbols import Source, sources
from compiler.torch_api.backend import empty_on_cpu, view_of_memory

_numbers = count()


class _Python(Text):
    """Indices as Python text."""

    def __init__(self) -> None:
        super().__init__(self.nothing)

    def nothing(self, load: Load) -> str:
        raise AssertionError(f"{load} is no size")

    def index(self, index: Index) -> str:
        terms = ["*".join([str(factor), *map(self.atom, atoms)]) for atoms, factor in index.terms]
        return " + ".join(terms) or "0"

    def atom(self, atom: Atom) -> str:
        if isinstance(atom, Quotient | Remainder):
            return f"(({self.index(atom.of)}) {atom.sign} ({self.index(atom.by)}))"
        return str(atom)


class Launcher:
    """Writes the function. `text` is its source, `names` what it refers to."""

    def __init__(self, program: Program, code: Code) -> None:
        self.program = program
        self.functions = dict(zip((kernel.name for kernel in program.kernels), code.functions, strict=True))
        self.names: dict[str, Any] = {
            "torch": torch,
            "empty": empty_on_cpu,
            "view": view_of_memory,
            "count_threads": torch.get_num_threads,
            **{f"constant_{name}": value for name, value in program.constants.items()},
        }
        self.python = _Python()
        self.text = "\n".join(["def call(args):", *(f"    {line}" for line in self.lines())])

    def made(self, kernels: Mapping[str, Callable[..., Any]]) -> Callable[[list[Any]], Sequence[Any]]:
        """The function, with the library's kernels."""
        name = f"<tcompile {self.program.name} {next(_numbers)}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        names = {**self.names, **kernels}
        exec(compile(self.text, name, "exec"), names)
        call: Callable[[list[Any]], Sequence[Any]] = names["call"]
        return call

    def lines(self) -> Iterator[str]:
        inputs = [_input(name) for name in self.program.inputs]
        if inputs:
            yield f"{', '.join(inputs)}, = args"
            yield "args.clear()"
        for name, source in sources(self.program).items():
            yield f"{name} = {_read(source, inputs)}"
        for name in self.program.constants:
            yield f"{_input(name)} = constant_{name}"
        if self.program.kernels:
            yield "threads = count_threads()"
        for step, freed in zip(self.program.steps, self.program.frees, strict=True):
            yield from self.kernel(step) if isinstance(step, Kernel) else self.extern(step)
            if freed:
                yield f"del {', '.join(map(_input, freed))}"
        yield f"return [{', '.join(self.argument(output) for output in self.program.outputs)}]"

    def kernel(self, kernel: Kernel) -> Iterator[str]:
        for name in kernel.writes:
            if name not in self.program.mutated:
                yield self.allocation(name)
        function = self.functions[kernel.name]
        pointers = [f"{_input(name)}.data_ptr()" for name in function.buffers]
        call = f"{function.name}({', '.join([*pointers, *function.symbols, 'threads'])})"
        if not function.checks:
            yield call
            return
        yield f"if {call}:"
        yield f'    raise IndexError("index out of range in {kernel.name}")'

    def allocation(self, name: str) -> str:
        buffer = self.program.by_name[name]
        shape, strides = self.sizes(buffer.shape), self.sizes(buffer.strides)
        if not buffer.reuses:
            return f"{_input(name)} = empty({shape}, {strides}, {buffer.dtype})"
        old, before = _input(buffer.reuses), self.program.by_name[buffer.reuses]
        if (before.shape, before.strides) == (buffer.shape, buffer.strides):
            return f"{_input(name)} = {old}; del {old}"
        return f"{_input(name)} = view({old}, {shape}, {strides}, 0); del {old}"

    def extern(self, extern: Extern) -> Iterator[str]:
        function = self.named(f"call_{extern.name}", extern.function)
        args = [self.argument(arg) for arg in extern.args]
        args += [f"{key}={self.argument(value)}" for key, value in extern.kwargs]
        made = f"{_targets(extern.outputs)} = " if extern.targets else ""
        yield f"{made}{function}({', '.join(args)})"

    def named(self, wanted: str, value: Any) -> str:
        """A name in the function's namespace for a value."""
        name = "".join(letter if letter.isalnum() else "_" for letter in wanted)
        while self.names.setdefault(name, value) is not value:
            name += "_"
        return name

    def argument(self, value: Any) -> str:
        """An argument of an extern, or an output."""
        if isinstance(value, Strided):
            return self.view(value)
        if isinstance(value, Index):
            return self.python.index(value)
        if isinstance(value, tuple | list):
            inside = "".join(f"{self.argument(item)}, " for item in value)
            return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        return self.named("value", value)

    def view(self, view: Strided) -> str:
        buffer = self.program.by_name[view.buffer]
        if (view.shape, view.strides, view.offset.constant) == (buffer.shape, buffer.strides, 0):
            return _input(view.buffer)
        where = f"{self.sizes(view.shape)}, {self.sizes(view.strides)}, {self.python.index(view.offset)}"
        return f"view({_input(view.buffer)}, {where})"

    def sizes(self, sizes: Shape) -> str:
        return f"({''.join(f'{self.python.index(size)}, ' for size in sizes)})"


def _input(name: str) -> str:
    """A buffer's variable in the function."""
    return f"{name}_" if name in ("torch", "args", "threads", "empty", "view", "count_threads") else name


def _read(source: Source, inputs: Sequence[str]) -> str:
    name = inputs[source.position]
    if source.what == "size":
        return name
    return f"{name}.shape[{source.dim}]" if source.what == "shape" else f"{name}.stride({source.dim})"


def _targets(outputs: Any) -> str:
    if isinstance(outputs, tuple):
        return f"({''.join(f'{_targets(output)}, ' for output in outputs)})"
    return _input(outputs) if outputs else "_"
