"""Split graphs at data-dependent sizes or numbers, such as `x[x > 0]` and `x.sum().item()`.

The graph is split at the operators that compute such sizes, which PyTorch runs. The nodes between these are compiled
as pieces, which take the sizes as arguments. In torch the sizes are unbacked symbols: u0, u1 …
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from copy import copy
from itertools import groupby
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols

from compiler.torch_api.aot import Call, Compile
from compiler.torch_api.fx import value_of
from compiler.torch_api.pytrees import tree_leaves

OUTSIDE = "tcompile_outside"
"""Key in a piece's `meta`: names and operators of the nodes that run between the previous piece and this piece; for the
last piece, also of the nodes after it.
"""


def asks_data(module: GraphModule) -> bool:
    """Whether the graph has a data-dependent size or number that something reads."""
    return any(_is_data_number(value_of(node)) or _is_read(node) for node in module.graph.nodes)


def _is_read(node: Node) -> bool:
    """Whether a tensor's size or another node's value depends on a node's data-dependent sizes or numbers.

    For example, nothing reads the counter of a `while_loop` that returns only tensors.
    """
    if not node.meta.get("unbacked_bindings"):
        return False
    leaves = tree_leaves(value_of(node))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    numbers = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    unbacked = {symbol for symbol in _symbols(numbers) if _has_unbacked({symbol})}
    others = (value_of(other) for other in node.graph.nodes if other is not node)
    return not unbacked or not unbacked.isdisjoint(_symbols([*tensors, *others]))


def is_piece(module: GraphModule) -> bool:
    """Whether a graph is a piece of a divided graph."""
    return OUTSIDE in module.meta


def divide_at_data(module: GraphModule, compile_piece: Compile) -> Call:
    """Divide a graph at its data-dependent sizes; returns a call that runs it with compiled pieces."""
    graph = module.graph
    outside, sizes = _nodes_outside(graph)
    held = [node for node in graph.find_nodes(op="get_attr") if node.users.keys() <= outside.keys()]
    runs = [*_runs(graph, outside, held)]
    if all(nodes[0] in outside for nodes in runs):
        runs.append([])  # an empty piece, whose `meta` says why nothing is compiled
    last_piece = max(number for number, nodes in enumerate(runs) if not outside.keys() & nodes)
    before: list[Node] = []
    divided, copies = Graph(), dict[Node, Node]()
    for node in (*graph.find_nodes(op="placeholder"), *held):
        copies[node] = divided.node_copy(node, copies.__getitem__)
    for number, nodes in enumerate(runs):
        if outside.keys() & nodes:
            copies[nodes[0]] = divided.node_copy(nodes[0], copies.__getitem__)
            before += nodes
            continue
        after = [node for later in runs[number + 1 :] for node in later] if number == last_piece else []
        given, made, call = _compile_piece(module, nodes, sizes, [*before, *after], compile_piece)
        results = divided.call_function(call, tuple(copies[node] for node in given))
        for place, node in enumerate(made):
            copies[node] = divided.call_function(operator.getitem, (results, place))
        before = []
    divided.node_copy(graph.output_node(), copies.__getitem__)
    interpreter = _Divided(module, graph=divided)
    interpreter.extra_traceback = False  # a traceback of the graph would be added to error messages
    return lambda args: copy(interpreter).boxed_run(args)  # a copy, as threads may run it concurrently


class _Divided(Interpreter):
    """Runs a divided graph: compiled pieces, and the nodes between them. Raises TypeError for an unexpected dtype."""

    def run_node(self, n: Node) -> Any:
        found: Any = super().run_node(n)
        dtype = getattr(n.meta.get("val"), "dtype", None)
        if isinstance(found, torch.Tensor) and dtype not in (None, found.dtype):
            # For example, torch 2.11's fake kernel of `unique` has the wrong dtype for the counts.
            raise TypeError(f"{n.target} gives {found.dtype}, and torch told its compilers {dtype}")
        return found


def _nodes_outside(graph: Graph) -> tuple[dict[Node, None], dict[Any, Node]]:
    """The nodes to run outside of pieces, and the node that computes each symbol.

    Nodes run outside if they compute data-dependent sizes, or arithmetic on these, or if they take a data-dependent
    number that is not a size.
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
        if node.op == "call_function" and (_has_unbacked(new) or _is_outside(node, value, outside)):
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
    if _is_data_number(value):  # also one computed from an unbacked input size, as by `mark_unbacked`
        return True
    if is_number or node.target is operator.getitem:
        return bool(sources)
    return any(isinstance(value_of(source), torch.SymBool | torch.SymFloat) for source in sources)


def _is_data_number(value: Any) -> bool:
    """Whether a value is a data-dependent bool or float."""
    return isinstance(value, torch.SymBool | torch.SymFloat) and _has_unbacked(_symbols(value))


def _symbols(value: Any) -> set[Any]:
    kinds = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    return {symbol for leaf in tree_leaves(value) if isinstance(leaf, kinds) for symbol in free_symbols(leaf)}


def _has_unbacked(symbols: set[Any]) -> bool:
    return bool(free_unbacked_symbols(list(symbols)))


def _nodes_by_name(graph: Graph, node: Node, value: Any, symbols: set[Any]) -> Iterator[tuple[Any, Node]]:
    """Insert nodes that read symbols from a tensor's sizes; yields each symbol with its node."""
    after = node if node.op != "placeholder" else graph.find_nodes(op="placeholder")[-1]
    shape: Any = value.shape if symbols and isinstance(value, torch.Tensor) else ()
    for dim, size in enumerate(shape):
        if isinstance(size, torch.SymInt) and size.node.expr in symbols:
            symbols = symbols - {size.node.expr}
            with graph.inserting_after(after):
                made = graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
            made.meta["val"] = size
            yield size.node.expr, made


def _runs(graph: Graph, outside: Container[Node], held: Container[Node]) -> Iterator[list[Node]]:
    """Groups of consecutive nodes: each outside node alone, and all nodes between two outside nodes together."""
    nodes = (node for node in graph.nodes if node.op not in ("placeholder", "output") and node not in held)
    for is_outside, group in groupby(nodes, key=outside.__contains__):
        run = [*group]
        yield from ([node] for node in run) if is_outside else (run,)


def _compile_piece(
    module: GraphModule, nodes: list[Node], sizes: dict[Any, Node], outside: list[Node], compile_piece: Compile
) -> tuple[Iterable[Node], Sequence[Node], Callable[..., Any]]:
    """Compile a piece; returns its input nodes, its result nodes, and a function from inputs to results."""
    own = dict.fromkeys(nodes)
    given = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in own)
    symbols = dict.fromkeys(symbol for node in (*nodes, *given) for symbol in _symbols(value_of(node)))
    given |= dict.fromkeys(sizes[symbol] for symbol in symbols if symbol in sizes)
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
    call = compile_piece(piece, [value_of(node) for node in given])
    return given, made, lambda *args: call([*args])
