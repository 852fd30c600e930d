"""Origins of a logged graph's nodes in the graph before it, inferred from names, source lines and data flow.

Torch logs no provenance of graphs. Passes and the partitioner keep names, so later graphs are matched by name.
AOTAutograd traces the captured graph in order: of the nodes at one source line, consecutive blocks come from
consecutive operations. Where one operation ends is decided by its result's type, by the parameters that it reads, by
its name, and because later operations use only its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import ClassVar

from compiler.logs.events import Event, read_object
from compiler.logs.graph_text import PrintedGraph, PrintedNode
from compiler.record.printed_code import short_name

MAPPINGS = "inductor_provenance_tracking_node_mappings"
"""The artifact in which torch logs provenance."""
Names = tuple[str, ...]
Origins = dict[str, Names]
_FREE = frozenset(
    ("contiguous", "dropout", "getitem", "getattr", "detach", "detach_", "size", "to", "float", "type", "clone",
     "_set_grad_enabled", "_enter_autocast", "_exit_autocast", "_log_api_usage_once", "expand", "expand_as", "view")
)  # fmt: skip
"""Operations that often leave no node behind."""
_FREE_GRADIENTS = _FREE | {"add", "iadd"}
"""Operations whose gradients are often the incoming ones, or a view of them."""
_LARGEST_RUN = 1000
"""Maximum number of nodes times operations at one line that are matched together."""
_WINDOW = 24
_LONGEST_RUN = 600
"""With more nodes at one line, each is matched to the next operation that it can come from."""
_LONGEST_BLOCK = 48
_HOPELESS = -24.0
"""A block that reads so many values of other operations is not extended."""


def origins_by_name(graph: PrintedGraph, parent: PrintedGraph) -> Origins:
    """Origins of nodes that a pass or the partitioner copied with their names; the others take their neighbours'."""
    known = {node.name for node in parent.nodes if node.op != "output"}
    found: Origins = {node.name: (node.name,) for node in graph.nodes if node.name in known and node.op != "output"}
    return with_neighbours(graph, found)


def origins_by_trace(graph: PrintedGraph, captured: PrintedGraph) -> Origins:
    """Origins of the nodes of AOTAutograd's graph, which was traced from the captured one."""
    found = _matched_inputs(graph, captured)
    bodies = {node.body: node.body for node in captured.nodes}
    for body in dict.fromkeys(node.body for node in graph.nodes):
        same = bodies.get(body, body.rpartition(".")[2] if body else "")
        theirs = [node for node in captured.calls() if node.body == same]
        own = [node for node in graph.calls() if node.body == body]
        _Trace(own, theirs or list(captured.calls()), found, graph).match()
    for node in graph.nodes:
        if node.kind == "subgraph" and node.name in bodies:
            found[node.name] = (node.name,)
    return with_neighbours(graph, found)


def _matched_inputs(graph: PrintedGraph, captured: PrintedGraph) -> Origins:
    """AOTAutograd's primals are the captured graph's inputs, in order."""
    theirs = [node.name for node in captured.inputs()]
    primals = [node.name for node in graph.inputs() if not node.name.startswith("tangents")]
    return (
        {name: (origin,) for name, origin in zip(primals, theirs, strict=False)} if len(theirs) == len(primals) else {}
    )


def with_neighbours(graph: PrintedGraph, found: Origins) -> Origins:
    """Nodes without origins take those of their users, or else of their inputs."""
    users: dict[str, list[str]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            users.setdefault(name, []).append(node.name)
    inherit = [node for node in graph.nodes if node.kind == "call" and node.name not in found]
    for nodes, neighbours in ((inherit[::-1], users), (inherit, {node.name: node.inputs for node in inherit})):
        for node in nodes:
            origins = tuple(dict.fromkeys(o for other in neighbours.get(node.name, ()) for o in found.get(other, ())))
            if origins:
                found.setdefault(node.name, origins)
    return found


Key = tuple[str, int]


@dataclass
class _Trace:
    """Matches the calls of one body with the operations that they were traced from."""

    nodes: Sequence[PrintedNode]
    operations: Sequence[PrintedNode]
    found: Origins
    graph: PrintedGraph
    users: dict[str, set[str]] = field(default_factory=dict)
    last_use: dict[str, int] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    operands: dict[str, set[str]] = field(default_factory=dict)
    gradients: set[str] = field(default_factory=set)

    def match(self) -> None:
        for operation in self.operations:
            for name in operation.inputs:
                self.users.setdefault(name, set()).add(operation.name)
        self._follow_free()
        self.types = {node.name: node.type for node in (*self.graph.nodes, *self.operations)}
        self.results = {operation.name: operation.type for operation in self.operations}
        self.operands = {operation.name: {self.types.get(name, "") for name in operation.inputs}
                         for operation in self.operations}  # fmt: skip
        forward, backward = _halves(self.nodes, self.graph)
        self.gradients = {node.name for node in backward}
        self._note_uses(forward)
        self._match_runs(forward, self.operations, _Block)
        self._note_uses(backward)
        self._match_runs(backward, self.operations[::-1], _GradientBlock)

    def _note_uses(self, nodes: Sequence[PrintedNode]) -> None:
        """Record the last use of each value; results of the forward are used after its last node."""
        self.last_use = {name: place for place, node in enumerate(nodes) for name in node.inputs}
        if nodes and nodes[0].name not in self.gradients:
            returned = (name for node in self.graph.nodes if node.op == "output" for name in node.inputs)
            self.last_use.update(dict.fromkeys(returned, len(nodes)))

    def _follow_free(self) -> None:
        """An operation that leaves no node passes its input on: its users may read the input directly."""
        for operation in reversed(self.operations):
            if _word(operation.target) in _FREE:
                for name in operation.inputs:
                    self.users.setdefault(name, set()).update(self.users.get(operation.name, ()))

    def _match_runs(self, nodes: Sequence[PrintedNode], operations: Sequence[PrintedNode], kind: type[_Block]) -> None:
        runs = [(key, list(run)) for key, run in groupby(operations, _key)]
        at = 0
        start = 0
        for key, run in ((key, list(run)) for key, run in groupby(nodes, _key)):
            place = _next_run(runs, key, at)
            if place is None:
                start += len(run)
                continue
            theirs = runs[place][1]
            at = place + 1
            if len(run) > _LONGEST_RUN and len(theirs) > 1:
                self._one_by_one(run, theirs)
            else:
                self._in_windows(run, theirs, start, kind)
            for node in run:
                if node.target == "operator.getitem" and (origins := self.found.get(next(iter(node.inputs), ""))):
                    self.found[node.name] = origins
            start += len(run)

    def _in_windows(
        self, run: Sequence[PrintedNode], operations: Sequence[PrintedNode], start: int, kind: type[_Block]
    ) -> None:
        """Match the nodes at one line; many nodes in windows, of which only the first half of the matches is kept."""
        done = at = 0
        while done < len(run):
            is_last = (len(run) - done) * (len(operations) - at) <= _LARGEST_RUN
            nodes = run[done:] if is_last else run[done : done + _WINDOW]
            theirs = operations[at:] if is_last else operations[at : at + _WINDOW]
            new_block = partial(self._block, kind, start + done)
            found = _best_blocks(nodes, theirs or operations[-1:], new_block, kind.free, is_last=is_last)
            count = len(found) if is_last else max(len(found) // 2, 1)
            while not is_last and count < len(found) - 1 and found[count] is found[count - 1]:
                count += 1
            for node, operation in zip(nodes[:count], found[:count], strict=True):
                self.found[node.name] = (operation.name,)
            if not is_last:
                at += next(place for place, each in enumerate(theirs) if each is found[count - 1])
                at += found[count] is not found[count - 1]
            done += count

    def _block(
        self, kind: type[_Block], start: int, operation: PrintedNode, first: int, before: Mapping[str, str]
    ) -> _Block:
        return kind(self, operation, start + first, before)

    def _one_by_one(self, nodes: Sequence[PrintedNode], operations: Sequence[PrintedNode]) -> None:
        at = 0
        for node in nodes:
            fitting = (place for place in range(at, len(operations)) if self._may_read_inputs(node, operations[place]))
            named = (p for p in range(at, len(operations)) if _same_word(node.target, operations[p].target))
            at = next((p for p in named if self._may_read_inputs(node, operations[p])), None) or next(fitting, at)
            self.found[node.name] = (operations[at].name,)

    def _may_read_inputs(self, node: PrintedNode, operation: PrintedNode) -> bool:
        return all(self.may_read(name, operation) for name in node.inputs)

    def may_read(self, name: str, operation: PrintedNode, before: Mapping[str, str] = {}) -> bool:
        """Whether an operation, or its gradient, may read a value of this graph."""
        if name in before:
            return self._gives(name, before[name], operation.name)
        origins = self.found.get(name)
        return origins is None or any(self._gives(name, origin, operation.name) for origin in origins)

    def _gives(self, name: str, origin: str, operation: str) -> bool:
        if origin == operation:
            return True
        if name in self.gradients:  # a gradient goes from an operation to those that made its operands
            return origin in self.users.get(operation, ())
        is_result = self.results.get(origin, "") in ("", self.types.get(name, ""))
        return is_result and operation in self.users.get(origin, ())


@dataclass
class _Block:
    """Consecutive nodes that may come from one operation. `end` is the position after the last one.

    `before` has the operations that are assumed for nodes before the block. `inside` are its nodes, and the values that
    they read. `uses` has, for its nodes, the position of the last use of their values.
    """

    trace: _Trace
    operation: PrintedNode
    end: int
    before: Mapping[str, str]
    inside: set[str] = field(default_factory=set)
    uses: list[int] = field(default_factory=list)
    is_named: bool = False
    inputs: float = 0.0
    free: ClassVar[frozenset[str]] = _FREE
    """Operations that may have no block."""

    def extend(self, node: PrintedNode) -> float:
        """Add the next node, and return the score of the block."""
        self.end += 1
        self.is_named = self.is_named or _same_word(node.target, self.operation.target)
        inside, trace = self.inside, self.trace
        for name in node.inputs:
            if name not in inside and (name in self.before or name in trace.found):
                self.inputs += 0.25 if trace.may_read(name, self.operation, self.before) else -4
        inside.update(node.inputs)
        inside.add(node.name)
        return self.inputs + self._score(node)

    def _score(self, node: PrintedNode) -> float:
        """A block ends with the operation's result, and later blocks read nothing else of it."""
        score = 4.0 if self.is_named else -4.0 if _word(self.operation.target) in _SAME else -1.0
        self.uses = [use for use in self.uses if use >= self.end]
        if self.operation.type:
            score += (3 if node.type == self.operation.type else -1) - 2 * len(self.uses)
        self.uses.append(self.trace.last_use.get(node.name, -1))
        return score


@dataclass
class _GradientBlock(_Block):
    """Nodes that may be the gradient of one operation; those that later blocks read have the type of an operand.

    `fitting` has, for each of `uses`, whether the node has such a type.
    """

    fitting: list[bool] = field(default_factory=list)
    free: ClassVar[frozenset[str]] = _FREE_GRADIENTS

    def _score(self, node: PrintedNode) -> float:
        end = self.end
        self.uses.append(self.trace.last_use.get(node.name, -1))
        self.fitting.append(node.type in self.trace.operands[self.operation.name])
        if min(self.uses) < end:
            self.fitting = [fits for use, fits in zip(self.uses, self.fitting, strict=True) if use >= end]
            self.uses = [use for use in self.uses if use >= end]
        fitting = sum(self.fitting)
        score = (4.0 if self.is_named else 0.0) + 2 * min(fitting, 1)
        return score - 2 * (len(self.uses) - min(fitting, len(self.operation.inputs)))


@dataclass(slots=True)
class _Split:
    """A division of the first nodes of a run into blocks: the last block, and the division before it."""

    score: float
    operation: PrintedNode | None = None
    first: int = 0
    end: int = 0
    earlier: _Split | None = None

    def operations(self) -> list[PrintedNode]:
        """The operation of each node."""
        if self.operation is None or self.earlier is None:
            return []
        return self.earlier.operations() + [self.operation] * (self.end - self.first)


def _key(node: PrintedNode) -> Key:
    return (node.place.file, node.place.line) if node.place else ("", 0)


def _next_run(runs: Sequence[tuple[Key, list[PrintedNode]]], key: Key, at: int) -> int | None:
    """Index of the next run of operations at a source line; else of the last one before; None without one."""
    later = next((place for place in range(at, len(runs)) if runs[place][0] == key), None)
    return later if later is not None else next((p for p in range(at - 1, -1, -1) if runs[p][0] == key), None)


def _best_blocks(
    nodes: Sequence[PrintedNode],
    operations: Sequence[PrintedNode],
    new_block: Callable[[PrintedNode, int, Mapping[str, str]], _Block],
    free: frozenset[str],
    *,
    is_last: bool = True,
) -> list[PrintedNode]:
    """Split nodes into consecutive blocks, one for each operation or none; return each node's operation.

    Unless these are the last nodes at their line, operations may be left over for later ones. `new_block` makes an
    empty block for an operation, at a node, after nodes whose operations are assumed.
    """
    if len(operations) == 1:
        return [operations[0]] * len(nodes)
    count = len(nodes)
    best: list[_Split | None] = [_Split(0.0), *[None] * count]
    ends: list[_Split] = []
    for operation in operations:
        skip = 0.0 if _word(operation.target) in free else -2.0
        row = [known and replace(known, score=known.score + skip) for known in best]
        for first, known in enumerate(best[:-1]):
            if known is None:
                continue
            before = {node.name: made.name for node, made in zip(nodes, known.operations(), strict=False)}
            block = new_block(operation, first, before)
            for end in range(first + 1, min(first + _LONGEST_BLOCK, count) + 1):
                value = known.score + block.extend(nodes[end - 1])
                if block.inputs < _HOPELESS:
                    break
                other = row[end]
                if other is None or value > other.score:
                    row[end] = _Split(value, operation, first, end, known)
        best = row
        if (end_here := row[count]) is not None:
            ends.append(end_here)
    found = best[count] if is_last else max(ends, key=lambda end: end.score, default=None)
    return found.operations() if found is not None else [operations[0]] * count


def _halves(nodes: Sequence[PrintedNode], graph: PrintedGraph) -> tuple[list[PrintedNode], list[PrintedNode]]:
    """Forward and backward nodes: the latter begin at the first that no result of the forward needs."""
    reached = {node.name for node in graph.inputs() if node.name.startswith("tangents")}
    for node in graph.nodes:
        if node.op != "output" and not reached.isdisjoint(node.inputs):
            reached.add(node.name)
    needed = {name for node in graph.nodes if node.op == "output" for name in node.inputs} - reached
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(node.inputs)
    first = next((place for place, node in enumerate(nodes) if node.name in reached), len(nodes))
    while first and nodes[first - 1].name not in needed:
        first -= 1
    late = nodes[first:]
    return [*nodes[:first], *(node for node in late if node.name in needed)], [
        node for node in late if node.name not in needed
    ]


_SAME = {
    "linear": "addmm mm bmm", "matmul": "mm bmm mv dot", "conv2d": "convolution", "conv1d": "convolution",
    "conv3d": "convolution", "batch_norm": "_native_batch_norm_legit_functional", "softmax": "_softmax exp",
    "layer_norm": "native_layer_norm var_mean", "group_norm": "native_group_norm", "truediv": "div", "iadd": "add",
    "scaled_dot_product_attention": "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    "reshape": "view _unsafe_view clone", "view": "view reshape", "transpose": "permute transpose", "t": "permute t",
    "cross_entropy": "_log_softmax nll_loss_forward log", "max_pool2d": "max_pool2d_with_indices",
    "gelu": "erf tanh", "silu": "sigmoid", "floordiv": "div", "flatten": "view", "dropout": "rand native_dropout",
    "chunk": "split", "square": "pow", "unsqueeze": "unsqueeze", "normalize": "norm", "T": "permute",
    "log_softmax": "_log_softmax", "getitem": "getitem slice select index", "mean": "mean", "std": "var sqrt",
    "embedding": "embedding", "masked_fill": "where", "neg": "neg", "rsub": "sub", "imul": "mul", "isub": "sub",
}  # fmt: skip
"""ATen operators that an operation of the captured graph becomes, if they have other names."""


@lru_cache(maxsize=8192)
def _word(target: str) -> str:
    return short_name(target).rstrip("_") if not target.endswith("__") else target


@lru_cache(maxsize=8192)
def _same_word(target: str, operation: str) -> bool:
    own, theirs = _word(target).removesuffix("_backward"), _word(operation)
    return own == theirs or own in _SAME.get(theirs, "").split()


# Provenance that torch logged


def logged_pre_grad(mappings: Iterable[Event]) -> dict[str, list[str]]:
    """Nodes of the pre-grad graph by node of the post-grad graph, if torch tracked provenance."""
    found: dict[str, list[str]] = {}
    for name, nodes in _node_mappings(mappings, "preToPost"):
        for node in nodes:
            found.setdefault(str(node), []).append(name)
    return found


def logged_kernels(mappings: Iterable[Event]) -> dict[str, list[str]]:
    """Post-grad nodes by call of a kernel ("triton_poi_fused_add_0:3"), if torch tracked provenance."""
    return {name: list(map(str, nodes)) for name, nodes in _node_mappings(mappings, "cppCodeToPost")}


def _node_mappings(mappings: Iterable[Event], which: str) -> Iterator[tuple[str, list[object]]]:
    for event in mappings:
        mapping = read_object(event.payload).get(which)
        for name, nodes in mapping.items() if isinstance(mapping, dict) else ():
            if isinstance(nodes, list):
                yield str(name), nodes
