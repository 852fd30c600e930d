"""Run a compiled graph with real inputs, launch by launch.

After every step the buffers are set to eager's values, if these are known, so that one wrong kernel does not make later
ones look wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from compiler.calls.graph_runs import copy_to_cpu
from compiler.calls.kept_graphs import KeptGraph
from compiler.torch_api.buffers import mutated_inputs
from compiler.triton_interpreter import wrapper
from compiler.triton_interpreter.reference import HALF, Reference, Unknown, Unrounded, evaluate, first_line
from compiler.triton_interpreter.signature import signature


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a Triton kernel, before it runs.

    The launch changes `arguments` in place. `written` has the index of each argument that the kernel stores to, and
    the argument's value in eager mode (None if unknown). `unrounded(index)` returns this value without eager's
    intermediate rounding to 16 bits, in two variants (see `reference.Unrounded`).
    """

    kernel: str
    function: str
    source: str
    arguments: Sequence[Any]
    names: Sequence[str]
    written: Mapping[int, Tensor | None]
    unrounded: Callable[[int], list[Tensor]]

    def narrowest(self) -> torch.dtype | None:
        """The 16-bit dtype among the kernel's tensors; None if there is none."""
        formats = {argument.dtype for argument in self.arguments if isinstance(argument, Tensor)}
        return next((dtype for dtype in HALF if dtype in formats), None)


Launcher = Callable[[Launch], None]
_DRAWS_FOUR = re.compile(r"n4x\(|rand4x\(")
_PART = re.compile(r"(\w+) = reinterpret_tensor\((\w+), .*# alias$", re.MULTILINE)


class ProgramError(RuntimeError):
    """A program can't be run on this machine; the message says why."""


class Program:
    """A compiled graph with its inputs and eager's values; `run` executes its output code.

    `note` says which inputs are not the user's; "" if all are.
    """

    def __init__(self, graph: KeptGraph, code: str, inputs: Sequence[Any], note: str = "") -> None:
        self.graph, self.note = graph, note
        self._code = code
        self._inputs = [copy_to_cpu(value) for value in inputs]
        self._buffers = {buffer.name: buffer for buffer in graph.buffers}
        self._joined = dict(_PART.findall(code))
        wanted = {buffer.value for buffer in graph.buffers} | set(mutated_inputs(graph.module).values())
        wanted |= {layout.name for layout in graph.inputs}
        by_four = self._by_four()
        self.values, self.outputs = evaluate(graph.module, self._inputs, wanted, by_four)
        self.unrounded = Unrounded(graph.module, Reference(graph.module, (), by_four).compute_node)
        self.nodes = self._values_held()

    def run(self, launch: Launcher) -> None:
        """Execute the output code, calling `launch` for each kernel launch. Raises ProgramError."""
        host = _Host(self, launch)
        externs = [name for name, buffer in self._buffers.items() if buffer.is_extern]
        try:
            call = wrapper.runner(self._code, host, externs)
            call(host.hold_inputs([copy_to_cpu(value) for value in self._inputs]))
        except (ProgramError, KeyboardInterrupt):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise ProgramError(f"its output code could not be run on the CPU: {reason}") from error

    def expected_value(self, name: str) -> Tensor | None:
        """Eager's value of a buffer or mutated input; None if unknown."""
        value = self.values.get(self.nodes.get(name, ""))
        return value if isinstance(value, Tensor) else None

    def stored_value(self, name: str, buffer: Tensor) -> Tensor | None:
        """Eager's value of a buffer, also if the buffer is a part of a concatenation; None if unknown."""
        value = _if_it_fits(self.expected_value(name), buffer)
        if value is not None:
            return value
        joined = self._buffers.get(self._joined.get(name, ""))
        whole = self.expected_value(joined.name) if joined is not None and joined.is_joined else None
        if joined is None or whole is None or whole.dtype != buffer.dtype:
            return None
        return self.in_layout(joined.name, whole).as_strided(buffer.shape, buffer.stride(), buffer.storage_offset())

    def in_layout(self, name: str, value: Any) -> Any:
        """A value with the strides of a buffer of the program; unchanged if they are unknown or the shape differs."""
        buffer = self._buffers.get(name)
        if not isinstance(value, Tensor) or buffer is None or buffer.size is None or buffer.stride is None:
            return value
        if tuple(value.shape) != buffer.size:
            return value
        return torch.empty_strided(buffer.size, buffer.stride, dtype=value.dtype).copy_(value)

    def value(self, name: str) -> Any:
        """Eager's value of an ATen call's result, possibly a tuple or an `Unknown`; None if there is none."""
        buffer = self._buffers.get(name)
        return self.values.get(buffer.value) if buffer is not None else None

    def _values_held(self) -> dict[str, str]:
        """Node whose value a buffer or input holds once written, by name; "" if it is mutated later."""
        found = mutated_inputs(self.graph.module) | {buffer.name: buffer.value for buffer in self.graph.buffers}
        latest: dict[str, str] = {}
        for buffer in self.graph.buffers:
            for mutated in buffer.mutates:
                before = latest.get(mutated, mutated)
                found[buffer.name], found[before] = found.get(before, ""), ""
                latest[mutated] = buffer.name
        return found

    def mutations_of(self, kernel: str) -> dict[str, str]:
        """Buffers and inputs that a kernel mutates, each with its buffer name after the mutation."""
        nodes = self.graph.nodes.get(kernel, set())
        buffers = (buffer for buffer in self.graph.buffers if nodes & set(buffer.nodes))
        return {mutated: buffer.name for buffer in buffers for mutated in buffer.mutates}

    def _by_four(self) -> set[str]:
        """Nodes whose kernels draw four random numbers at once: triton_helpers.rand4x, randn4x."""
        sources = {name: self._code.partition(f"async_compile.triton('{name}', '''")[2] for name in self.graph.nodes}
        drawing = [name for name, source in sources.items() if _DRAWS_FOUR.search(source.partition("'''")[0])]
        nodes = set().union(*(self.graph.nodes[name] for name in drawing))
        return {buffer.value for buffer in self.graph.buffers if nodes & set(buffer.nodes)}


class _Host:
    """The `wrapper.Host` of one run of a program."""

    def __init__(self, program: Program, launch: Launcher) -> None:
        self._program = program
        self._launch = launch
        self._holds: dict[int, str] = {}  # address -> node whose value is stored there

    def hold_inputs(self, inputs: Sequence[Any]) -> list[Any]:
        """Record the addresses of the program's inputs, and return the inputs."""
        for layout, value in zip(self._program.graph.inputs, inputs, strict=False):
            if isinstance(value, Tensor):
                self._holds[value.data_ptr()] = layout.name
        return list(inputs)

    def launch(self, kernel: str, function: str, source: str, names: Sequence[str], arguments: Sequence[Any]) -> None:
        own = signature(function, source)
        mutations = self._program.mutations_of(kernel)
        written: dict[int, Tensor | None] = {}
        nodes: dict[int, str] = {}
        for index, argument in enumerate(own.arguments[: len(arguments)]):
            if argument in own.written and isinstance(arguments[index], Tensor):
                variable = mutations.get(names[index], names[index])
                written[index] = self._program.stored_value(variable, arguments[index])
                nodes[index] = self._program.nodes.get(variable, "")
        known = self._read(arguments)
        self._launch(
            Launch(kernel, function, source, arguments, names, written, lambda index: self._exact(nodes[index], known))
        )
        for index, value in written.items():
            self._holds.pop(arguments[index].data_ptr(), None)
            if value is not None:
                arguments[index].copy_(value)
                self._holds[arguments[index].data_ptr()] = nodes[index]

    def _read(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Eager's values of the arguments before a launch, by node."""
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        names = {self._holds.get(tensor.data_ptr(), "") for tensor in tensors}
        return {name: self._program.values[name] for name in names if name in self._program.values}

    def _exact(self, node: str, known: dict[str, Any]) -> list[Tensor]:
        has_half = any(isinstance(value, Tensor) and value.dtype in HALF for value in known.values())
        return self._program.unrounded.values(node, known) if has_half else []

    def compute_value(self, name: str, compute: Callable[[], Any]) -> Any:
        value = self._program.value(name)
        if not isinstance(value, Unknown | None):
            return self._hold(name, self._program.in_layout(name, copy_to_cpu(value)))
        try:
            return self._program.in_layout(name, compute())
        except Exception as error:  # noqa: BLE001 - ATen's operators for GPUs fail in many ways
            return Unknown(str(error))

    def fill_buffer(self, name: str, buffer: Tensor, compute: Callable[[], Any]) -> None:
        value = _if_it_fits(self._program.expected_value(name), buffer)
        compute() if value is None else self._hold(name, buffer.copy_(value))

    def _hold(self, name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            self._holds[value.data_ptr()] = self._program.nodes.get(name, "")
        return value


def _if_it_fits(value: Tensor | None, buffer: Tensor) -> Tensor | None:
    """The value if its dtype and shape match the buffer, else None (for parts of values and packed values)."""
    return value if value is not None and (value.dtype, value.shape) == (buffer.dtype, buffer.shape) else None
