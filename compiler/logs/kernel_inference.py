"""Which nodes of a graph each call of logged output code computes, inferred from what it reads and writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from math import prod

from compiler.logs.graph_text import PrintedGraph, PrintedNode, type_attrs
from compiler.record.printed_code import short_name

_NAMELESS = re.compile(r"(?:cpp|triton_[a-z]+)_fused_\d+")
_MATRIX = frozenset(("mm", "addmm", "bmm", "baddbmm", "_mm_plus_mm", "mv"))
_VIEWS = frozenset(
    ("view", "reshape", "permute", "expand", "slice", "select", "squeeze", "unsqueeze", "transpose", "t", "as_strided",
     "getitem", "alias", "split", "_unsafe_view", "detach", "unbind", "split_with_sizes", "view_as_real", "diagonal")
)  # fmt: skip
_COMPUTED_ONCE = frozenset(
    ("amax", "amin", "any", "argmax", "argmin", "cumsum", "inductor_random", "mean", "prod", "sum", "var_mean")
)
"""Operators that no second kernel computes again, as reductions and random numbers are stored."""
_NOT_IN_KERNELS = frozenset(("prims.inductor_seeds.default", "aten.full.default", "aten.scalar_tensor.default"))
"""Seeds are a call of `aten.randint` in the wrapper, and constants are written where they are used."""
_KERNEL_NAME = re.compile(r"[a-z]+(?:_[a-z]+)??_fused_(.*?)_\d+$")
_MOST_NAMED = 10
"""Some versions of torch name at most this many operators in the name of a kernel."""
_OPERATORS = frozenset(
    ("abs", "add", "amax", "amin", "any", "bitwise_and", "bitwise_not", "bitwise_or", "ceil", "cos", "div", "eq",
     "erf", "exp", "expm1", "floor", "ge", "gt", "iota", "le", "log", "log1p", "logical_and", "logical_not", "lt",
     "maximum", "minimum", "mul", "ne", "neg", "pow", "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "sin",
     "sqrt", "sub", "sum", "tan", "tanh", "trunc", "var_mean", "where")
)  # fmt: skip
"""Operators that are not decomposed: a kernel computes one only if it, or one that has it as a part, is in its name."""
_PARTS = {
    "_log_softmax": ("amax", "exp", "log", "sub", "sum"),
    "_safe_softmax": ("amax", "any", "div", "eq", "exp", "logical_not", "sub", "sum", "where"),
    "_softmax": ("amax", "div", "exp", "sub", "sum"), "arange": ("add", "iota", "mul"),
    "gelu": ("add", "erf", "mul", "pow", "tanh"), "linalg_vector_norm": ("abs", "mul", "pow", "sqrt", "sum"),
    "masked_fill": ("where",), "mean": ("div", "sum"), "native_dropout": ("div", "gt", "mul"),
    "native_group_norm": ("add", "mul", "neg", "rsqrt", "sub", "var_mean"),
    "native_layer_norm": ("add", "mul", "rsqrt", "sub", "var_mean"),
    "native_layer_norm_backward": ("div", "mul", "rsqrt", "sub", "sum"),
    "nll_loss_forward": ("div", "ne", "neg", "sum", "where"), "rsub": ("sub",), "sigmoid_backward": ("mul", "sub"),
    "silu": ("add", "div", "exp", "mul", "neg", "sigmoid"),
    "smooth_l1_loss": ("abs", "div", "lt", "mul", "pow", "sub", "where"), "square": ("pow",),
    "tanh_backward": ("mul", "sub"), "threshold_backward": ("le", "where"),
    "tril": ("ge", "iota", "le", "logical_and", "sub", "where"),
    "triu": ("ge", "iota", "le", "logical_and", "sub", "where"), "var": ("div", "mul", "pow", "sub", "sum"),
}  # fmt: skip
"""Operators that are decomposed, and the operators among `_OPERATORS` that they become."""
_WHOLE = ("_to_copy", "cat", "clamp_min", "clone", "embedding", "full", "gather", "ones", "zeros")
_ALL_NAMED = sorted((*_OPERATORS, *_PARTS, *_VIEWS, *_WHOLE), key=len, reverse=True)
_OPERATOR = re.compile(f"(?:{'|'.join(_ALL_NAMED)})(?=_|$)")
_NEEDED = {
    name: re.compile(pattern) for name, pattern in (
        ("any", r"\|\||any"), ("cos", r"\bcos"), ("div", r"\btmp\d+ / |/ tmp|reciprocal"), ("eq", "=="), ("erf", "erf"),
        ("exp", r"\bexp"), ("inductor_random", "rand"), ("log", r"\blog"), ("logical_not", "!"), ("rsqrt", "sqrt"),
        ("sin", r"\bsin"), ("sqrt", "sqrt"), ("tanh", "tanh"), ("where", r"\?|blendv"),
    )
}  # fmt: skip
"""What the C++ code of a kernel has if it computes an operator."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A call in the wrapper: a kernel's launch (`kernel`), or a call of ATen (`extern`, its name)."""

    line: int
    kernel: str
    extern: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    arguments: tuple[str, ...]


@dataclass
class Inference:
    """Infers which nodes each kernel computes, by running through the wrapper's calls in order.

    `bodies` are the kernels' code. `allocated` has the number of elements and the dtype of buffers, `slices` the buffer
    of each buffer that is a part of one, as kernels write the parts of a concatenation.
    """

    printed: PrintedGraph
    statements: Sequence[Statement]
    bodies: Mapping[str, str] = field(default_factory=dict)
    allocated: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    slices: Mapping[str, str] = field(default_factory=dict)
    by_line: dict[int, tuple[str, ...]] = field(default_factory=dict)
    writers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = {node.name: node for node in self.printed.nodes}
        self._listed = [*self.nodes.values()]
        self.order = {name: place for place, name in enumerate(self.nodes)}
        self.holds: dict[str, str] = {node.name: node.name for node in self.printed.inputs()}
        self.externs = self._match_externs()
        self.extern_nodes = set(self.externs.values())
        self._name_results()
        self._run()

    def _match_externs(self) -> dict[int, str]:
        """The node of each call of ATen: of its operator's nodes, the first that reads most of the same inputs."""
        left: dict[str, list[str]] = {}
        for node in self.printed.calls():
            left.setdefault(_family(_operator(node)), []).append(node.name)
        given = {
            node.name: self._tensor_inputs(self._base(name) for name in node.inputs if name in self.nodes)
            for node in self.printed.calls()
        }
        found = {}
        for place, statement in enumerate(self.statements):
            same = left.get(_family(statement.extern), []) if not statement.kernel else []
            if same and statement.extern not in ("return", "alias"):
                read = self._tensor_inputs(statement.reads)
                found[place] = min(same, key=lambda name: 2 * len(read - given[name]) + len(given[name] - read))
                same.remove(found[place])
        return found

    def _tensor_inputs(self, names: Iterable[str]) -> set[str]:
        """Those of some values that are tensors which the graph is given."""
        return {name for name in names if name in self.holds and not self._is_size(name)}

    def _name_results(self) -> None:
        """Name what buffers hold by their uses: as results of the graph, and as arguments of calls of ATen."""
        self.wanted: dict[str, str] = {}
        for place, statement in enumerate(self.statements):
            if statement.extern == "return":
                output = next((node for node in self.printed.nodes if node.op == "output" and not node.body), None)
                self._want(statement.arguments, self._returned_names() if output else ())
            elif name := self.externs.get(place):
                self._want(statement.reads, self.nodes[name].inputs)

    def _returned_names(self) -> tuple[str, ...]:
        row = next((line for line in reversed(self.printed.text.split("\n")) if line.startswith("    return ")), "")
        return tuple(part.strip(" ()") for part in row.removeprefix("    return ").split(","))

    def _want(self, buffers: Sequence[str], names: Sequence[str]) -> None:
        for buffer, name in zip(buffers, names, strict=False):
            if buffer and name in self.nodes and self.nodes[name].kind == "call":
                self.wanted.setdefault(buffer, self._base(name))

    def _base(self, name: str) -> str:
        """The node that computes the value that a node is a view of."""
        seen = {name}  # in a damaged log, a node can be its own input
        while (node := self.nodes[name]).kind == "call" and short_name(node.target) in _VIEWS and node.inputs:
            if node.inputs[0] not in self.nodes or node.inputs[0] in seen:
                break
            name = node.inputs[0]
            seen.add(name)
        return name

    def _run(self) -> None:
        made: Counter[str] = Counter()
        for place, statement in enumerate(self.statements):
            if statement.extern == "alias":
                if held := self.holds.get(statement.reads[0]):
                    self.holds.setdefault(statement.writes[0], held)
                if wanted := self.wanted.get(statement.writes[0]):
                    self.wanted.setdefault(statement.reads[0], wanted)
            elif name := self.externs.get(place):
                self.by_line[statement.line] = (name,)
                for buffer in statement.writes[:1] or statement.reads[:1]:
                    self.holds[buffer] = self.writers[buffer] = name
            elif statement.kernel:
                found = self._find_computed_nodes(statement, made)
                nodes = found or self._by_slices(statement, made) or self._by_name(statement, made)
                self.by_line[statement.line] = tuple(nodes) or self._nodes_of_copy(place, statement)
            elif statement.extern != "return":
                self.by_line[statement.line] = self._read_next(place)

    def _nodes_of_copy(self, place: int, statement: Statement) -> tuple[str, ...]:
        """What a kernel copies that computes nothing: inputs of the graph, or of the next call of ATen."""
        if _NAMELESS.fullmatch(statement.kernel):
            return tuple(name for name in statement.reads if name in self._tensor_inputs(statement.reads))
        return tuple(name for name in self._read_next(place) if _is_named(self.nodes[name], statement.kernel))

    def _by_slices(self, statement: Statement, made: Counter[str]) -> list[str]:
        """The concatenations that a kernel writes parts of; parts of one buffer are of the same one."""
        found: dict[str, None] = {}
        for whole in dict.fromkeys(self.slices[buffer] for buffer in statement.writes if buffer in self.slices):
            fresh = (
                node.name for node in self.printed.calls()
                if short_name(node.target) == "cat" and not made[node.name] and self._fits(whole, node.name)
            )  # fmt: skip
            name = self.writers.get(whole) or next(fresh, "")
            if name and _is_named(self.nodes[name], statement.kernel):
                made[name] += 1
                self.holds[whole] = self.writers[whole] = name
                found[name] = None
        return list(found)

    def _by_name(self, statement: Statement, made: Counter[str]) -> list[str]:
        """The first node not yet computed whose operator is in the kernel's name, in a list; [] without one."""
        fresh = [node for node in self.printed.calls() if not made[node.name] and node.name not in self.extern_nodes]
        fitting = (node for node in fresh if any(self._fits(buffer, node.name) for buffer in statement.writes))
        named = [node.name for node in fitting if not _is_view(node) and _is_named(node, statement.kernel)][:1]
        made.update(named)
        return named

    def _read_next(self, place: int) -> tuple[str, ...]:
        """The node of the next call of ATen that reads what a call writes: some kernels only copy its inputs."""
        written = set(self.statements[place].writes or self.statements[place].reads[:1])
        wanted = tuple(dict.fromkeys(self.wanted[buffer] for buffer in written if buffer in self.wanted))
        for later, statement in enumerate(self.statements[place + 1 :], place + 1):
            if later in self.externs and not written.isdisjoint(statement.reads):
                return (self.externs[later],)
        return wanted

    def _find_computed_nodes(self, statement: Statement, made: Counter[str]) -> list[str]:
        """The nodes between the buffers that a kernel reads and those that it writes."""
        read = [buffer for buffer in statement.reads if buffer not in statement.writes or buffer in self.holds]
        available = {self.holds[buffer] for buffer in read if buffer in self.holds}
        reachable = self._reachable(available, statement.kernel, made)
        targets: dict[str, str] = {}
        for buffer in statement.writes:
            wanted = self.wanted.get(buffer, "")
            if wanted in reachable:
                targets[buffer] = wanted
        open_nodes = [name for name in reachable if not made[name] and not _is_view(self.nodes[name])]
        for buffer in statement.writes:
            fitting = [name for name in open_nodes if self._fits(buffer, name)]
            if buffer not in targets and (name := self._guess_target(fitting, targets, reachable, statement.kernel)):
                targets[buffer] = name
        found = {
            name
            for name in self._nodes_between(available, targets.values(), made)
            if self._can_compute(statement.kernel, name)
        }
        made.update(found)
        for buffer, name in targets.items():
            self.holds[buffer] = name
            self.writers[buffer] = name
        return sorted(found, key=self.order.__getitem__)

    def _reachable(self, available: set[str], kernel: str, made: Mapping[str, int]) -> dict[str, None]:
        """Nodes that a kernel can compute from values, without calls of ATen, in the order of the graph."""
        reached: dict[str, None] = {}
        todo = [*self._without_inputs, *(place for name in available for place in self._places_of_users(name))]
        heapify(todo)
        last = -1
        while todo:
            if (place := heappop(todo)) == last:
                continue
            last, node = place, self._listed[place]
            if node.name in self.extern_nodes or node.name in available or self._is_stored(node, made):
                continue
            inputs_known = all(name in available or name in reached or self._is_size(name) for name in node.inputs)
            if inputs_known and self._can_compute(kernel, node.name):
                reached[node.name] = None
                for later in self._places_of_users(node.name):
                    heappush(todo, later)
        return reached

    @cached_property
    def _without_inputs(self) -> list[int]:
        """The places of calls that read no tensor."""
        return [self.order[node.name] for node in self.printed.calls() if all(map(self._is_size, node.inputs))]

    def _places_of_users(self, name: str) -> Iterator[int]:
        """The places of the calls that read a value."""
        return (self.order[user] for user in self._users.get(name, ()) if self.nodes[user].kind == "call")

    def _is_stored(self, node: PrintedNode, made: Mapping[str, int]) -> bool:
        """Whether an earlier kernel stored a node's value, which no other kernel computes again."""
        return bool(made[node.name]) and short_name(node.target) in _COMPUTED_ONCE

    def _can_compute(self, kernel: str, name: str) -> bool:
        """Whether a kernel's name and code allow that it computes a node."""
        node, body = self.nodes[name], self.bodies.get(kernel, "")
        needed = _NEEDED.get(short_name(node.target)) if 'extern "C"' in body else None
        return may_compute(kernel, node) and (needed is None or needed.search(body) is not None)

    def _fits(self, buffer: str, name: str) -> bool:
        """Whether a buffer may hold a node's value, by its dtype and number of elements."""
        facts = type_attrs(self.nodes[name].type)
        sizes = facts.get("shape", ["unknown"])
        if buffer not in self.allocated or not all(isinstance(size, int) for size in sizes):
            return True
        return self.allocated[buffer] == (prod(sizes), facts["dtype"])

    def _is_size(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is None or (node.kind == "placeholder" and not type_attrs(node.type)) or node.op == "get_attr"

    def _guess_target(
        self, open_nodes: Sequence[str], targets: Mapping[str, str], reachable: Mapping[str, None], kernel: str
    ) -> str:
        """The first node not yet computed whose value is needed outside of what can be computed now."""
        taken = set(targets.values())
        named = [name for name in open_nodes if name not in taken and _is_named(self.nodes[name], kernel)]
        for name in (*named, *(name for name in open_nodes if name not in taken)):
            if any(user not in reachable for user in self._users.get(name, ())):
                return name
        return named[-1] if named else ""

    @cached_property
    def _users(self) -> dict[str, list[str]]:
        users: dict[str, list[str]] = {}
        for node in self.printed.nodes:
            for name in node.inputs:
                users.setdefault(name, []).append(node.name)
        return users

    def _nodes_between(self, available: set[str], targets: Iterable[str], made: Mapping[str, int]) -> set[str]:
        todo, seen = list(targets), set()
        while todo:
            name = todo.pop()
            if name in seen or name in available or self.nodes[name].kind != "call":
                continue
            if name in self.extern_nodes or self.nodes[name].target in _NOT_IN_KERNELS:
                continue
            if self._is_stored(self.nodes[name], made):
                continue
            seen.add(name)
            todo += [other for other in self.nodes[name].inputs if other in self.nodes]
        return seen


def _operator(node: PrintedNode) -> str:
    """The operator's name without namespace and overload."""
    parts = node.target.split(".")
    return parts[1] if len(parts) == 3 else parts[-1]


def _family(name: str) -> str:
    bare = name.rstrip("_").removesuffix("_out")
    return "mm" if bare in _MATRIX else bare


def _is_view(node: PrintedNode) -> bool:
    return short_name(node.target) in _VIEWS


def may_compute(kernel: str, node: PrintedNode) -> bool:
    """Whether a kernel may compute a node: its name has the operators that were fused ("cpp_fused_add_mul_0")."""
    word = short_name(node.target)
    if word not in _OPERATORS:
        return True
    names = _operators_in(kernel)
    return names is None or any(word == name or word in _PARTS.get(name, ()) for name in names)


@lru_cache(maxsize=4096)
def _operators_in(kernel: str) -> tuple[str, ...] | None:
    """The operators in the name of a kernel; None if it has others than those whose parts are known."""
    name = _KERNEL_NAME.match(kernel)
    found = _OPERATOR.findall(name[1]) if name is not None else []
    known = name is not None and "_".join(found) == name[1]
    return tuple(found) if known and len(found) != _MOST_NAMED else None


def _is_named(node: PrintedNode, kernel: str) -> bool:
    return short_name(node.target) in kernel
