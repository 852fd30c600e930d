"""Graphs with data-dependent sizes or numbers: `x[x > 0]`, `x.sum().item()`.

They are divided at the operators that compute such sizes. PyTorch's own kernels run there, and what lies between is
compiled in pieces, which take the sizes as arguments. torch names the sizes u0, u1 … (unbacked symbols).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols

from compiler.torch_api.aot import Call, Compile
from compiler.torch_api.fx import value_of
from compiler.torch_api.pytrees import tree_leaves

OUTSIDE = "tcompile_outside"
"""In a piece's `meta`: names and operators of what runs right before it, outside of any piece; in the last piece's
also of what runs after it.
"""


def asks_data(module: GraphModule) -> bool:
    """Whether the graph has a data-dependent size or number that something reads."""
    return any(_is_told(value_of(node)) or _is_read(node) for node in module.graph.nodes)


def _is_read(node: Node) -> bool:
    """Whether a node's data-dependent sizes or numbers are in a tensor or another node's value.

    The counter of a `while_loop` that returns its tensors alone is not read.
    """
    if not node.meta.get("unbacked_bindings"):
        return False
    leaves = tree_leaves(value_of(node))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    numbers = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    told = {symbol for symbol in _symbols(numbers) if _unbacked_symbols({symbol})}
    others = (value_of(other) for other in node.graph.nodes if other is not node)
    return not told or not told.isdisjoint(_symbols([*tensors, *others]))


def is_piece(module: GraphModule) -> bool:
    """Whether a graph is a piece of a divided graph."""
    return OUTSIDE in module.meta


def divide_at_data(module: GraphModule, compile_piece: Compile) -> Call:
    """Divide a graph at its data-dependent sizes; returns a call that runs its compiled pieces."""
    graph = module.graph
    outside, sizes = _nodes_outside(graph)
    constants = _constants_outside(module, outside)
    runs = [*_runs(graph, outside, constants)]
    if all(nodes[0] in outside for nodes in runs):
        runs.append([])  # a piece that computes nothing says why
    last_piece = max(number for number, nodes in enumerate(runs) if not outside.keys() & nodes)
    before: list[Node] = []
    steps: list[_Outside | _Piece] = []
    for number, nodes in enumerate(runs):
        if outside.keys() & nodes:
            steps.append(_Outside(nodes[0]))
            before += nodes
            continue
        told = before if number < last_piece else [*before, *(node for after in runs[number + 1 :] for node in after)]
        steps.append(_piece(module, nodes, sizes, told, compile_piece))
        before = []
    last = {node: number for number, step in enumerate(steps) for node in (*step.given, *step.made)}
    for node in last.keys() - {*graph.output_node().all_input_nodes}:
        steps[last[node]].done.append(node)
    return _Divided(graph.find_nodes(op="placeholder"), constants, steps, graph.output_node().args[0]).run


@dataclass(slots=True)
class _Outside:
    """One operator that PyTorch runs between pieces. The values of `done` are freed after it."""

    node: Node
    done: list[Node] = field(default_factory=list)

    @property
    def given(self) -> Sequence[Node]:
        return self.node.all_input_nodes

    @property
    def made(self) -> Sequence[Node]:
        return (self.node,)

    def run(self, values: dict[Node, Any]) -> None:
        args, kwargs = torch.fx.map_arg((self.node.args, self.node.kwargs), values.__getitem__)
        values[self.node] = found = self.node.target(*args, **kwargs)  # type: ignore[operator]
        told = value_of(self.node)
        if isinstance(found, torch.Tensor) and found.dtype != told.dtype:  # torch 2.11 says so of `unique`'s counts
            raise TypeError(f"{self.node.target} gives {found.dtype}, and torch told its compilers {told.dtype}")


@dataclass(slots=True)
class _Piece:
    given: Sequence[Node]
    made: Sequence[Node]
    call: Call
    done: list[Node] = field(default_factory=list)

    def run(self, values: dict[Node, Any]) -> None:
        found = self.call([values[node] for node in self.given])
        values.update(zip(self.made, found, strict=True))


@dataclass(frozen=True, slots=True)
class _Divided:
    inputs: Sequence[Node]
    constants: dict[Node, Any]
    steps: Sequence[_Outside | _Piece]
    outputs: Any

    def run(self, args: list[Any]) -> Sequence[Any]:
        values = dict(zip(self.inputs, args, strict=True)) | self.constants
        args.clear()
        for step in self.steps:
            step.run(values)
            for node in step.done:
                values.pop(node, None)
        found: Sequence[Any] = torch.fx.map_arg(self.outputs, values.__getitem__)
        return found


def _nodes_outside(graph: Graph) -> tuple[dict[Node, None], dict[Any, Node]]:
    """The nodes to run outside of pieces, and the node that computes each symbol.

    They are the nodes that compute data-dependent sizes, numbers that follow from these, and operators that take
    such a number and not as a size.
    """
    for node in graph.find_nodes(op="call_function", target=operator.getitem):
        node.args[0].append(node)
    sizes: dict[Any, Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        if isinstance(value := value_of(node), torch.SymInt):
            sizes.setdefault(value.node.expr, node)
    outside: dict[Node, None] = {}
    for node in list(graph.nodes):
        value = value_of(node)
        if isinstance(value, torch.SymInt) and (same := sizes.get(value.node.expr, node)) is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
            continue
        new = _symbols(value) - sizes.keys() if node.op in ("placeholder", "call_function") else set()
        if node.op == "call_function" and (_unbacked_symbols(new) or _is_outside(node, value, outside)):
            outside[node] = None
            if isinstance(value, torch.SymInt):
                sizes[value.node.expr] = node
        for symbol, made in _nodes_by_name(graph, node, value, new):
            sizes[symbol] = made
            outside[made] = None
    return outside, sizes


def _is_outside(node: Node, value: Any, found: dict[Node, None]) -> bool:
    is_number = value is None or isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat)
    sources = [source for source in node.all_input_nodes if source in found]
    if _is_told(value):  # of a size that is given, like that of `mark_unbacked`
        return True
    if is_number or node.target is operator.getitem:
        return bool(sources)
    return any(isinstance(value_of(source), torch.SymBool | torch.SymFloat) for source in sources)


def _is_told(value: Any) -> bool:
    """Whether a value is a data-dependent number and not a size."""
    return isinstance(value, torch.SymBool | torch.SymFloat) and _unbacked_symbols(_symbols(value))


def _symbols(value: Any) -> set[Any]:
    kinds = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    return {symbol for leaf in tree_leaves(value) if isinstance(leaf, kinds) for symbol in free_symbols(leaf)}


def _unbacked_symbols(symbols: set[Any]) -> bool:
    return bool(free_unbacked_symbols(list(symbols)))


def _nodes_by_name(graph: Graph, node: Node, value: Any, symbols: set[Any]) -> Iterator[tuple[Any, Node]]:
    """The nodes whose values are the symbols in tensor sizes."""
    after = node if node.op != "placeholder" else graph.find_nodes(op="placeholder")[-1]
    shape: Any = value.shape if symbols and isinstance(value, torch.Tensor) else ()
    for dim, size in enumerate(shape):
        if isinstance(size, torch.SymInt) and size.node.expr in symbols:
            symbols = symbols - {size.node.expr}
            with graph.inserting_after(after):
                made = graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
            made.meta["val"] = size
            yield size.node.expr, made


def _constants_outside(module: GraphModule, outside: dict[Node, None]) -> dict[Node, Any]:
    """The bodies and tensors of the module that only nodes outside of pieces take."""
    found = [node for node in module.graph.find_nodes(op="get_attr") if node.users.keys() <= outside.keys()]
    return {node: operator.attrgetter(str(node.target))(module) for node in found}


def _runs(graph: Graph, outside: dict[Node, None], constants: Mapping[Node, Any]) -> Iterator[list[Node]]:
    """The nodes that compute: each one outside alone, the others as long as they follow one another."""
    run: list[Node] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or node in constants:
            continue
        if node not in outside:
            run.append(node)
            continue
        if run:
            yield run
        run = []
        yield [node]
    if run:
        yield run


def _piece(
    module: GraphModule, nodes: list[Node], sizes: dict[Any, Node], outside: list[Node], compiled: Compile
) -> _Piece:
    own = dict.fromkeys(nodes)
    given = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in own)
    for symbol in {symbol: None for node in (*nodes, *given) for symbol in _symbols(value_of(node))}:
        if symbol in sizes:
            given[sizes[symbol]] = None
    made = [node for node in nodes if any(user not in own for user in node.users)]
    graph, copies = Graph(), dict[Node, Node]()
    for node in given:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in made))
    piece = GraphModule(module, graph)
    asked = [node for node in outside if node.meta.get("unbacked_bindings")]
    piece.meta[OUTSIDE] = tuple((node.name, str(node.target)) for node in asked)
    return _Piece([*given], made, compiled(piece, [value_of(node) for node in given]))
