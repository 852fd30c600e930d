"""Lower an ATen graph to a program, node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add, attrgetter, mul, sub, truediv
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from compiler.backend.ir import BackendError, Extern, Program, Step, Strided, leaves, map_leaves, strided_views
from compiler.backend.ir.expr import Const, Expr, Op, operation
from compiler.backend.ir.index import Symbol
from compiler.backend.ir.scalar import DTYPES
from compiler.backend.lower.higher_order import reason_for_call
from compiler.backend.lower.indexing import INDEXING
from compiler.backend.lower.library_calls import CUSTOM, LIBRARY, LIBRARY_CALLS
from compiler.backend.lower.pointwise import POINTWISE, element, scalar
from compiler.backend.lower.reductions import REDUCTIONS
from compiler.backend.lower.value import Lowering, NoRuleError, Rule, Tensor, index_of
from compiler.backend.lower.views import VIEWS
from compiler.backend.lower.windows import WINDOWS
from compiler.backend.torch_glue.data_sizes import OUTSIDE
from compiler.backend.torch_glue.index_bounds import replaced_symbols, specialize_symbols
from compiler.backend.torch_glue.operators import has_effect, returns_alias, written_arguments
from compiler.backend.torch_glue.written_views import views_of_written_inputs
from compiler.capture.sources import is_cell
from compiler.torch_api import fx
from compiler.torch_api.aot import aot_facts
from compiler.torch_api.pytrees import tree_map
from compiler.torch_api.user_triton import Launch, launch_of

if TYPE_CHECKING:
    from compiler.backend.passes.context import Context

RULES: Mapping[str, Rule] = {**POINTWISE, **VIEWS, **REDUCTIONS, **INDEXING, **LIBRARY_CALLS, **WINDOWS}
"""All lowering rules, by the full name of the operator.

A rule is called as `rule(low, *arguments)` with the node's lowered arguments: tensors as `Tensor`, sizes as `Index`. It
returns a `Tensor` or a tuple of them. It raises NoRuleError, with the reason, for a call that it can't lower to loops.
"""
_NUMBERS: Mapping[Any, str] = {
    truediv: "div", mul: "mul", add: "add", sub: "sub", torch.sym_float: "",
}  # fmt: skip
"""IR operations of Python's arithmetic on symbolic sizes."""
_TAKE_NUMBERS = frozenset({
    *(f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div")),
    *(f"aten.{name}.Scalar" for name in ("lt", "le", "gt", "ge", "eq", "ne")),
    "aten.full.default", "aten.scalar_tensor.default",
})  # fmt: skip
"""Operators whose rules take expressions as number arguments."""


def lower(module: GraphModule, name: str, ctx: Context) -> Program:
    """Lower a graph of AOTAutograd, which is functional except for copies into mutated inputs at its end.

    Raises BackendError for a graph that a program can't express, for example with data-dependent sizes.
    """
    decided = len(ctx.decisions)
    known = -1
    while known < (known := replaced_symbols(module)):  # a guard added by lowering may specialize a symbol
        del ctx.decisions[decided:]
        walker = _Walk(module, ctx, Lowering(module.graph.output_node(), ctx.thresholds))
        walker.run()
    return Program(
        name,
        tuple(walker.low.buffers.values()),
        tuple(walker.inputs),
        tuple(_copy_if_overwritten(step, walker.low.mutated) for step in walker.low.steps),
        walker.outputs,
        frozenset(walker.low.mutated),
        walker.constants,
        apart=frozenset(_apart_from_others(walker.outputs[: _count_outputs(name, len(walker.outputs))], module)),
    )


def _count_outputs(name: str, outputs: int) -> int:
    """Number of outputs that the user gets, without saved tensors. 0 for a backward or tensor subclasses."""
    if name != "forward":
        return outputs if name == "inference" else 0
    facts = aot_facts()
    return facts.returned if facts is not None and not facts.subclasses else 0


def _apart_from_others(outputs: Sequence[Any], module: GraphModule) -> Iterator[int]:
    """Positions of outputs that are the same view as an earlier output of another node: `y.detach()` after `y`."""
    nodes: Any = module.graph.output_node().args[0]
    for place, output in enumerate(outputs):
        is_again = isinstance(output, Strided) and output in outputs[:place]
        if is_again and nodes[place] is not nodes[outputs.index(output)]:
            yield place


@dataclass(slots=True)
class _Walk:
    module: GraphModule
    ctx: Context
    low: Lowering
    values: dict[Node, Any] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[Any, ...] = ()

    def run(self) -> None:
        for asked, operator in self.module.meta.get(OUTSIDE, ()):
            why = f"{operator}: what it gives is as large as data say: the graph is divided there"
            self.ctx.decide((asked,), "extern", why)
        for node in self.module.graph.nodes:
            self.visit(node)
        self.draw_seeds()

    def visit(self, node: Node) -> None:
        self.low.node = node
        self.low.source = source_line(node)
        self.low.operator = self.operator(node)
        if node.op == "placeholder":
            self.values[node] = self.input(node)
        elif node.op == "get_attr":
            self.values[node] = self.constant(node)
        elif node.op == "output":
            self.outputs = tuple(self.results(node.args[0]))  # type: ignore[arg-type]
        else:
            self.values[node] = self.call(node)

    def operator(self, node: Node) -> str:
        """Name of the user's operator that a node is part of. In a forward the suffix `_backward` is removed."""
        operator = fx.operator_of(node) if node.op == "call_function" else ""
        return operator.removesuffix("_backward") if self.ctx.graph == "forward" else operator

    def input(self, node: Node) -> Any:
        meta = fx.value_of(node)
        if isinstance(meta, torch.SymInt):
            size = index_of(meta)
            self.inputs.append(size.atom.name if isinstance(size.atom, Symbol) else node.name)
            return size
        self.inputs.append(node.name)
        return self.whole(node.name, meta) if isinstance(meta, torch.Tensor) else meta

    def whole(self, name: str, meta: torch.Tensor) -> Tensor:
        """Add a graph input or constant. Raises BackendError if its negative bit is set."""
        if meta.dtype in DTYPES and meta.is_neg():
            raise BackendError(f"{name} is the negative of what is in memory (is_neg): give the call x.resolve_neg()")
        return self.low.whole(name, meta)

    def constant(self, node: Node) -> Any:
        value = attrgetter(str(node.target))(self.module)
        if isinstance(value, GraphModule):  # its class name is printed in the program's text
            return GraphModule(value, value.graph, class_name=node.name)
        if not isinstance(value, torch.Tensor):
            return value
        self.constants[node.name] = value
        return self.whole(node.name, value)

    def argument(self, value: Any) -> Any:
        """Convert a node's argument for an extern call or an output: strided views for tensors, indices for sizes."""

        def in_memory(node: Node) -> Any:
            found = self.values[node]
            if isinstance(found, Const | Op):  # a number that loops compute from sizes
                found = self.specialized_number(node)
            return map_leaves(found, lambda leaf: leaf.strided if isinstance(leaf, Tensor) else leaf)

        return map_arg(value, in_memory)

    def results(self, values: Sequence[Any]) -> Iterator[Any]:
        """Lower the outputs. A view of a mutated input becomes a view of the input, not of its new value."""
        again = views_of_written_inputs(self.module, self.ctx.graph)
        for place, value in enumerate(values):
            source, meta = again.get(place, (None, None))
            yield self.argument(value) if source is None else self.low.place(self.values[source].buffer, meta)

    def rule_argument(self, value: Any) -> Any:
        """Convert a node's argument for a rule: lowered values for nodes."""
        return map_arg(value, self.values.__getitem__)

    def call(self, node: Node) -> Any:
        if isinstance(meta := fx.value_of(node), torch.SymInt):
            return index_of(meta)
        if isinstance(meta, torch.SymFloat | torch.SymBool):
            takers = (user.target in _NUMBERS or str(user.target) in _TAKE_NUMBERS for user in node.users)
            computed = node.target in _NUMBERS and all(takers)
            return self.number(node) if computed else self.specialized_number(node)
        if (launch := launch_of(node)) is not None:
            return self.user_kernel(node, launch, meta)
        name = str(node.target)
        if name == "aten.copy_.default" and (target := self.overwritten(node)):
            return self.overwrite(node, target)
        kept = dict(self.low.buffers), len(self.low.steps)
        try:
            return self.by_rule(node, name)
        except NoRuleError as error:
            self.low.buffers, self.low.steps[kept[1] :] = kept[0], []
            self.ctx.decide((node.name,), "extern", f"{name}: {error}")
        return self.extern(node, name, meta)

    def number(self, node: Node) -> Expr:
        """Expression of a number computed from sizes, in float64 as in Python."""
        args = [scalar(self.rule_argument(arg), torch.float64) for arg in node.args]
        return operation(_NUMBERS[node.target], *args) if len(args) > 1 else args[0]

    def specialized_number(self, node: Node) -> Any:
        """Specialize a number computed from sizes to its value in this call, with a guard."""
        if (number := specialize_symbols(fx.value_of(node))) is None:
            raise BackendError(f"{node.name} is a number that depends on sizes or values: {node.target}")
        return number

    def by_rule(self, node: Node, name: str) -> Any:
        rule = RULES.get(name)
        if rule is None:
            subgraphs = [source.name for source in node.all_input_nodes if fx.body_at(self.module, source) is not None]
            alone = CUSTOM if fx.is_own_operator(node) else LIBRARY
            raise NoRuleError(reason_for_call(node, name, subgraphs) if subgraphs else alone)
        args = [self.rule_argument(arg) for arg in node.args]
        named = {key: self.rule_argument(arg) for key, arg in node.kwargs.items()}
        made = {str(meta.device) for meta in leaves(fx.value_of(node)) if isinstance(meta, torch.Tensor)}
        if len(devices := made | self.devices((args, named))) > 1:
            raise NoRuleError(f"a kernel runs on one device, and this is on {' and '.join(sorted(devices))}")
        return rule(self.low, *args, **named)

    def devices(self, value: Any) -> set[str]:
        """Devices of the tensors among arguments."""
        return {self.low.buffers[x.buffer].device for x in leaves(value) if isinstance(x, Tensor)}

    def overwritten(self, node: Node) -> Tensor | None:
        """Target of a `copy_` that a loop can do, else None. The target must be a whole buffer that is not mutated yet;
        the source must be in another buffer on the same device.
        """
        target, source = self.values[node.args[0]], self.values[node.args[1]]  # type: ignore[index]
        plain = isinstance(source, Tensor) and source.buffer != target.buffer and source.dtype in DTYPES
        plain = plain and len(self.devices((source, target))) == 1
        buffer = self.low.buffers[target.buffer]
        whole = target.shape == buffer.shape and target.strided.strides == buffer.strides
        again = target.buffer in self.low.mutated
        return target if plain and whole and not again and target.dtype in DTYPES else None

    def overwrite(self, node: Node, target: Tensor) -> Tensor:
        source = self.values[node.args[1]]  # type: ignore[index]
        self.low.mutated.add(target.buffer)
        return self.low.store(target, lambda at: element(source, at, target.dtype))

    def extern(self, node: Node, name: str, meta: Any) -> Any:
        result = self.new_buffers(node.name, meta)
        args = [self.argument(arg) for arg in node.args]
        kwargs = {key: self.argument(arg) for key, arg in node.kwargs.items()}
        writes = tuple(self.written_buffers(node, args, kwargs))
        self.low.mutated.update(writes)
        facts = {"pinned": has_effect(node.target), "aliases": returns_alias(node.target)}
        made = map_leaves(result, lambda leaf: leaf.buffer if isinstance(leaf, Tensor) else None)
        self.low.call(name, node.target, args, made, kwargs=tuple(kwargs.items()), writes=writes, **facts)
        return result

    def user_kernel(self, node: Node, launch: Launch, meta: Mapping[str, torch.Tensor]) -> Mapping[str, Tensor]:
        """Add a launch of a user's Triton kernel. Returns the new value of each argument that the kernel writes."""
        made = {name: self.low.whole(f"{node.name}_{name}", meta[name]) for name in launch.written}
        copies = " and ".join(launch.written)
        why = (
            f"{launch.name}: the user's kernel is launched as it is, nothing is fused with it, and its machine code is "
            'shown with backend="inductor"'
        )
        self.ctx.decide((node.name,), "extern", f"{why}; it writes into a copy of {copies}" if copies else why)
        args = self.argument([launch.grid, *launch.arguments])
        self.low.call(launch.name, launch.function, args, tuple(value.buffer for value in made.values()))
        return made

    def new_buffers(self, name: str, meta: Any) -> Any:
        """Add buffers for the results of an extern call; returns their tensors. Data-dependent numbers among several
        results are skipped: they are unused, as `data_sizes` splits the graph at numbers that are used.
        """
        if isinstance(meta, torch.Tensor):
            return self.low.whole(name, meta)
        if isinstance(meta, tuple | list):
            unread = [isinstance(item, torch.SymInt) and item.node.hint is None for item in meta]
            each = ((f"{name}_{place}", item) for place, item in enumerate(meta))
            return tuple(None if skip else self.new_buffers(*one) for skip, one in zip(unread, each, strict=True))
        if isinstance(meta, torch.SymInt) and meta.node.hint is not None:
            return index_of(meta)
        if isinstance(meta, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise BackendError(f"{name} is a number that depends on values")
        return None

    def written_buffers(self, node: Node, args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
        for place in written_arguments(node.target):
            value = kwargs.get(place) if isinstance(place, str) else args[place] if place < len(args) else None
            yield from (view.buffer for view in strided_views(value))

    def draw_seeds(self) -> None:
        """Prepend one extern call per device that draws the seeds of all its random operators."""
        draw = torch.ops.aten.randint.low
        for name, nodes in self.low.seeds.items():
            buffer = self.low.buffers[name]
            options = (("dtype", torch.int64), ("device", torch.device(buffer.device)))
            call = Extern(str(draw), draw, (0, 2**63 - 1, buffer.shape), options, name, pinned=True, origins=(*nodes,))
            self.low.steps.insert(0, call)


def _copy_if_overwritten(step: Step, mutated: set[str]) -> Step:
    """Copy the arguments of an extern call if its results may alias an input that is mutated. Otherwise all readers of
    the results would have to run before the mutation.
    """
    if not isinstance(step, Extern) or not step.aliases or step.writes or mutated.isdisjoint(step.reads):
        return step
    function = step.function

    def of_copies(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(_copy_with_memory, (args, kwargs))
        return function(*args, **kwargs)

    return replace(step, function=of_copies, aliases=False)


def _copy_with_memory(x: Any) -> Any:
    """Copy a tensor with its whole storage, same strides and offset; return other values unchanged."""
    if not isinstance(x, torch.Tensor):
        return x
    empty = torch.empty(0, dtype=x.dtype, device=x.device)
    return empty.set_(x.untyped_storage().clone(), x.storage_offset(), x.shape, x.stride())


def source_line(node: Node) -> str:
    """The user's line of code that a node comes from, "" if torch recorded none."""
    frames = fx.source_frames(node)
    if not frames:
        return ""
    file = frames[-1].file.replace(chr(92), "/").rpartition("/")[2]
    return f"{'cell' if is_cell(frames[-1].file) else file}:{frames[-1].line} {frames[-1].code}"
