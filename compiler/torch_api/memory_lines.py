"""Allocations, reuses and frees in Inductor's wrapper, line by line, read from Inductor's own objects.

The lines are read once Inductor has planned buffer reuse (`run_wrapper_ir_passes` of torch._inductor.codegen.wrapper).

Symbolic sizes take their hints (`optimization_hint`, which adds no guard).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch._inductor.codegen.wrapper as wrappers
from torch._inductor import ir
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.utils import get_dtype_size
from torch._inductor.virtualized import V

What = Literal["allocate", "reuse", "alias", "free"]


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One memory operation on `buffer`: "reuse" takes over the memory of `of`, "alias" renames `of`."""

    what: What
    buffer: str
    bytes: int = 0
    of: str = ""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Memory of a graph's wrapper.

    `inputs` are the graph's tensor inputs, each with its bytes. `outputs` are the returned buffers, by position.
    `pooled` is True if Inductor placed all buffers in pools (`memory_planning`): there are no lines then.
    """

    inputs: tuple[tuple[str, int], ...]
    lines: tuple[MemoryLine, ...]
    outputs: tuple[str, ...]
    pooled: bool = False


def memory_facts(wrapper: PythonWrapperCodegen, lines: Iterable[MemoryLine]) -> MemoryFacts:
    """The memory facts of a whole graph's wrapper, with these lines."""
    tensors = ((name, value) for name, value in V.graph.graph_inputs.items() if isinstance(value, ir.IRNode))
    inputs = tuple((name, buffer_bytes(value)) for name, value in tensors if hasattr(value, "get_dtype"))
    pooled = any(type(line).__module__.endswith("codegen.memory_planning") for line in wrapper.lines)
    return MemoryFacts(inputs, tuple(lines), tuple(V.graph.get_output_names()), pooled)


def memory_lines(lines: Iterable[Any]) -> Iterator[MemoryLine]:
    """The memory operations of wrapper lines. Outputs of an extern call count as allocated by the call itself."""
    lines = list(lines)
    named = {line.result_name for line in lines if isinstance(line, wrappers.MultiOutputLine)}
    parts: dict[str, tuple[str, ...]] = {}
    for line in lines:
        if isinstance(line, wrappers.ExternKernelAllocLine):
            made = list(_made_by_call(line.node))
            parts[line.node.get_name()] = tuple(each.buffer for each in made if each.buffer not in named)
            yield from made
        elif isinstance(line, wrappers.FreeLine | wrappers.FreeIfNotReusedLine):
            yield from _freed_lines(line, parts)
        else:
            yield from _planned_lines(line)


def _planned_lines(line: Any) -> Iterator[MemoryLine]:
    if isinstance(line, wrappers.AllocateLine):
        yield MemoryLine("allocate", line.node.get_name(), buffer_bytes(line.node))
    elif isinstance(line, wrappers.ReuseLine | wrappers.ReinterpretLine):
        what: What = "reuse" if isinstance(line, wrappers.ReuseLine) else "alias"
        yield MemoryLine(what, line.reused_as.get_name(), buffer_bytes(line.reused_as), line.node.get_name())


def _freed_lines(line: Any, parts: Mapping[str, tuple[str, ...]]) -> Iterator[MemoryLine]:
    """The frees of a line: the buffer, and for a tuple of outputs also the unnamed outputs."""
    if getattr(line, "is_reused", False):
        return
    name = line.node.get_name()
    for unnamed in parts.get(name, ()):
        if unnamed != name:
            yield MemoryLine("free", unnamed)
    yield MemoryLine("free", name)


def _made_by_call(node: Any) -> Iterator[MemoryLine]:
    """The outputs that an extern call allocates, or returns as aliases of its arguments."""
    alike = next(iter(node.get_inputs_that_alias_output()), "")
    for result in _results(node):
        if isinstance(result.get_output_spec(), ir.Layout):
            yield MemoryLine("alias" if alike else "allocate", result.get_name(), buffer_bytes(result), alike)


def _results(node: Any) -> Iterator[Any]:
    if isinstance(node.layout, ir.MultiOutputLayout):
        yield from _leaves(getattr(node, "outputs", ()))
    elif not isinstance(node.layout, ir.NoneLayout):
        yield node


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, ir.Buffer):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)


def buffer_bytes(buffer: Any) -> int:
    """Bytes of the storage that a buffer needs, including gaps between its rows; 0 without a layout."""
    try:
        elements = V.graph.get_allocation_storage_size(buffer)
    except NotImplementedError:  # no layout: an operator's opaque state
        return 0
    return int(V.graph.sizevars.optimization_hint(elements, fallback=0)) * int(get_dtype_size(buffer.get_dtype()))
