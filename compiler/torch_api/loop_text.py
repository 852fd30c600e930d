"""Inductor's scheduler nodes as text: output buffers, loops, and the loop body as assignments.

op3: pointwise
    buf3: float32[4, 16] stride [16, 1] on cuda:0, read by op4
    for p0 in 4, p1 in 16:
        load = buf1[16*p0 + p1]
        truediv = load / 64.0
        buf3[16*p0 + p1] = truediv

Equal nodes have equal texts. Loop bodies are graphs of torch._inductor.ops_handler operations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch._inductor.loop_body import LoopBody, LoopBodyBlock
from torch._inductor.scheduler import BaseSchedulerNode, FusedSchedulerNode, SchedulerBuffer, SchedulerNode
from torch.fx import Node

from compiler.torch_api.fx import dtype_name

_INDENT = "    "
_INDIRECT = re.compile(r"set_(indirect\d+)")
_CASTING = ("src_dtype", "use_compute_types")  # how `to_dtype` casts, for code generation
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "and_": "&", "or_": "|", "bitwise_and": "&", "bitwise_or": "|", "logical_and": "and", "logical_or": "or",
}  # fmt: skip


class LoopTexts:
    """Converts scheduler nodes to text; `what(node)` is the description in the first line. Index texts are cached."""

    def __init__(self, what: Callable[[BaseSchedulerNode], str]) -> None:
        self._what = what
        self.index = cache(str)

    def __call__(self, node: BaseSchedulerNode) -> str:
        return "\n".join(self._lines(node))

    def _lines(self, node: BaseSchedulerNode) -> Iterator[str]:
        yield f"{node.get_name()}: {self._what(node)}"
        if isinstance(node, FusedSchedulerNode):
            for part in node.get_nodes():
                yield from (f"{_INDENT}{line}" for line in self._lines(part))
            return
        yield from (f"{_INDENT}{self._buffer(buffer)}" for buffer in node.get_outputs())
        body = node._body if isinstance(node, SchedulerNode) else None
        if isinstance(body, LoopBody):
            yield from (f"{_INDENT}{line}" for line in self._loops(body))
        else:
            yield f"{_INDENT}from {', '.join(sorted({dep.name for dep in node.read_writes.reads})) or 'nothing'}"

    def _buffer(self, buffer: SchedulerBuffer) -> str:
        layout: Any = buffer.node.get_output_spec()
        text = f"{buffer.get_name()}: "
        if not hasattr(layout, "dtype"):  # the output of torch.nonzero has a NoneLayout, without a dtype
            text += type(layout).__name__
        else:
            size, stride = (", ".join(map(self.index, sizes)) for sizes in (layout.size, layout.stride))
            text += f"{dtype_name(layout.dtype)}[{size}] stride [{stride}] on {layout.device}"
        users = dict.fromkeys("the output" if user.get_name() == "OUTPUT" else user.get_name() for user in buffer.users)
        for what, names in (("writes into", buffer.get_mutations()), ("shares memory with", buffer.get_aliases()),
                            ("read by", users)):  # fmt: skip
            text += f", {what} {', '.join(names)}" if names else ""
        return text

    def _loops(self, body: LoopBody) -> Iterator[str]:
        depth = ""
        for word, names, sizes in zip(("for", "reduce"), body.vars, body.sizes, strict=True):
            if names:
                ranges = (f"{self.index(name)} in {self.index(size)}" for name, size in zip(names, sizes, strict=True))
                yield f"{depth}{word} {', '.join(ranges)}:"
                depth += _INDENT
        yield from (f"{depth}{line}" for line in self._block(body.root_block, body))

    def _block(self, block: LoopBodyBlock, body: LoopBody) -> Iterator[str]:
        known: dict[Node, str] = {}
        for node in block.graph.nodes:
            text = self._expression(node, known, body)
            if node.op == "call_module" and str(node.target) in body.subblocks:
                mask, other = (_text_of(argument, known) for argument in node.args)
                yield f"{node.name} = {other} except where {mask}:"
                yield from (f"{_INDENT}{line}" for line in self._block(body.subblocks[str(node.target)], body))
            elif node.op == "output":
                if block is not body.root_block:
                    yield _text_of(node.args[0], known)
            elif node.target in ("store", "store_reduction"):
                yield text
            elif text and (node.target in ("get_index", "constant") or node.op == "call_function"):
                known[node] = text
            elif indirect := _INDIRECT.fullmatch(str(node.target)):
                yield f"{indirect[1]} = {_text_of(node.args[0], known)}"
            elif text:
                yield f"{node.name} = {text}"

    def _expression(self, node: Node, known: Mapping[Node, str], body: LoopBody) -> str:
        if node.op == "placeholder" or node.op == "output":
            return ""
        if node.target == "get_index":
            return self.index(body.indexing_exprs[str(node.args[0])])
        if node.op == "call_module":
            return f"{node.target}({', '.join(_text_of(argument, known) for argument in node.args)})"
        return _operation(node, known)


def _operation(node: Node, known: Mapping[Node, str]) -> str:
    """Print `ops.add(a, b)` as `a + b`, `ops.load('buf0', i)` as `buf0[i]`, others as calls."""
    name = node.target if isinstance(node.target, str) else node.target.__name__
    handlers = [argument for argument in node.args if isinstance(argument, Node) and argument.op == "placeholder"]
    arguments = [_text_of(argument, known) for argument in node.args if argument not in handlers]
    if name == "constant":
        return arguments[0]
    if name in ("load", "getitem"):
        return f"{arguments[0]}[{arguments[1]}]"
    if name in ("store", "store_reduction"):
        sign = "+=" if len(arguments) > 3 and arguments[3] == "atomic_add" else "="
        return f"{arguments[0]}[{arguments[1]}] {sign} {arguments[2]}"
    if name == "reduction":
        return f"{arguments[2]}({arguments[3]})"
    if name in _INFIX and len(arguments) == 2:
        return f"{arguments[0]} {_INFIX[name]} {arguments[1]}"
    arguments += [f"{key}={_text_of(value, known)}" for key, value in node.kwargs.items() if key not in _CASTING]
    return f"{name}({', '.join(arguments)})"


def _text_of(value: Any, known: Mapping[Node, str]) -> str:
    if isinstance(value, Node):
        return known.get(value, value.name)
    if isinstance(value, tuple | list):
        return f"({', '.join(_text_of(item, known) for item in value)})"
    return dtype_name(value) if isinstance(value, torch.dtype) else str(value)
