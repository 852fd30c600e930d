"""Kernels of logged output code, and the graph nodes that each computes.

With provenance tracking on, torch logs the nodes of each kernel. Otherwise Triton kernels name them in a comment; for
C++ kernels and calls of ATen they are inferred from the order of calls, buffers, types and names.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from math import prod

from compiler.inductor.kernels import canonical, kernels_artifact, wrapper_statements
from compiler.inductor.lines import Definition
from compiler.logs.graph_text import PrintedGraph, PrintedNode, type_attrs
from compiler.record import Artifact, Entity, GraphHalf, Kernel
from compiler.record.printed_code import short_name

MOST_CODE = 32 * 2**20
"""Longer code is shown, but its kernels are not looked for."""
_DEFINED = re.compile(r"^(\w+) = async_compile\.(?!wait\b)(\w+)\(", re.MULTILINE)
_FRAGMENT = re.compile(r"^#   %(\w+) : [^\n]*= (?!PlaceHolder)", re.MULTILINE)
_HANDLE = "# [Provenance debug handles] "
_AOT_ID = re.compile(r"# AOT ID: \['\w*?_(forward|backward|inference)'\]")
_PERSISTENT = re.compile(r"_(?:poi|red|per|mm|bmm|addmm|convolution|tem|split_scan|for|unk)_")
_CATEGORIES = {"_poi_": "pointwise", "_red_": "reduction", "_per_": "reduction", "_tem_": "template"}
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
_EXTERN = re.compile(r"(?:extern_kernels|torch\.ops\.\w+|aten|prims|mkldnn|inductor_ops|_quantized)\.(\w+)")

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


_ALLOCATED = re.compile(
    r"^ +(?P<name>\w+) = (?:(?:empty_strided_\w+\(|reinterpret_tensor\((?P<base>\w+), )\((?P<sizes>[\d, ]*)\), "
    r"\([\d, ]*\), (?:torch\.(?P<dtype>\w+)|\d+)\)|(?P<whole>\w+);)",
    re.MULTILINE,
)
_NEEDED = {
    name: re.compile(pattern) for name, pattern in (
        ("any", r"\|\||any"), ("cos", r"\bcos"), ("div", r"\btmp\d+ / |/ tmp|reciprocal"), ("eq", "=="), ("erf", "erf"),
        ("exp", r"\bexp"), ("inductor_random", "rand"), ("log", r"\blog"), ("logical_not", "!"), ("rsqrt", "sqrt"),
        ("sin", r"\bsin"), ("sqrt", "sqrt"), ("tanh", "tanh"), ("where", r"\?|blendv"),
    )
}  # fmt: skip
"""What the C++ code of a kernel has if it computes an operator."""


@dataclass(frozen=True, slots=True)
class LoggedNode:
    """A node of the post-grad graph as the writer of buffers (`compiler.inductor.kernels.WritingNode`)."""

    name: str
    kind: str
    writes: tuple[str, ...] = ()
    bytes: int = 0
    parts: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()


@dataclass
class Attribution:
    """The nodes of each kernel, and of the calls on each line. `inferred` are lines whose nodes torch did not log."""

    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    by_line: dict[int, tuple[str, ...]] = field(default_factory=dict)
    writers: dict[str, str] = field(default_factory=dict)
    inferred: set[int] = field(default_factory=set)
    inferred_kernels: set[str] = field(default_factory=set)


def half_of(code: str) -> GraphHalf | None:
    """The half of a graph that the code says it is for; None if it doesn't."""
    match = _AOT_ID.search(code[:4096])
    halves: dict[str, GraphHalf] = {"forward": "forward", "backward": "backward", "inference": "inference"}
    return halves[match[1]] if match else None


def kernels_of_code(
    code: str, *, graph: str, half: GraphHalf, title: str, post_grad: Artifact | None, printed: PrintedGraph | None,
    logged: Mapping[str, Sequence[str]] | None,
) -> tuple[Artifact, tuple[Kernel, ...]]:  # fmt: skip
    """Output code as an artifact, with its kernels linked to the nodes of the post-grad graph.

    `logged` maps kernels to the nodes that torch logged for them, if it did.
    """
    identity = f"kernels[{graph} {half}]"
    bare = Artifact(identity, "kernels", title, "python", code, graph, half=half)
    if len(code) > MOST_CODE:
        return bare, ()
    code = canonical(code, graph)
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return bare, ()
    found = _attribute(tree, code, printed, logged or {})
    fused_id = post_grad.id if post_grad else f"post_grad[{graph} {half}]"
    definitions = [
        Definition(name, found.nodes.get(name, ()), _category(name, kind)) for name, kind in _DEFINED.findall(code)
    ]
    artifact, kernels = kernels_artifact(
        code, artifact_id=identity, title=title, graph=graph, definitions=definitions,
        fused=_logged_nodes(printed, found), fused_id=fused_id,
    )  # fmt: skip
    linked = {entity.id: entity for entity in (_link_to_nodes(each, found, fused_id) for each in artifact.entities)}
    own = tuple(
        replace(kernel, half=half, nodes=linked[kernel.id].origins) if kernel.id in linked else kernel
        for kernel in kernels
    )
    return replace(artifact, half=half, entities=tuple(linked.values())), own


def _link_to_nodes(entity: Entity, found: Attribution, post_grad: str) -> Entity:
    """Link a kernel or call to the nodes that it computes; a call is known by its line."""
    if entity.kind == "kernel":
        nodes, inferred = found.nodes.get(entity.label, ()), entity.label in found.inferred_kernels
    elif entity.kind in ("call", "extern"):
        line = int(entity.attrs["line"])
        nodes, inferred = found.by_line.get(line, ()), line in found.inferred
    else:
        return entity
    attrs = entity.attrs | ({"links": "inferred"} if inferred and nodes else {})
    return replace(entity, attrs=attrs, origins=tuple(f"{post_grad}.{name}" for name in nodes))


def _category(name: str, kind: str) -> str:
    if kind == "cpp_pybinding":
        return "reduction" if re.search(r"sum|mean|max|norm|softmax|var", name) else "pointwise"
    found = next((category for mark, category in _CATEGORIES.items() if mark in name), "")
    return found or ("template" if _PERSISTENT.search(name) else "user" if "fused" not in name else "other")


def _logged_nodes(printed: PrintedGraph | None, found: Attribution) -> list[LoggedNode]:
    if printed is None:
        return []
    written: dict[str, list[str]] = {}
    for buffer, name in found.writers.items():
        written.setdefault(name, []).append(buffer)
    externs = {name for names in found.nodes.values() for name in names}
    return [
        LoggedNode(node.name, "fused" if node.name in externs else "extern", tuple(written.get(node.name, ())))
        for node in printed.calls()
    ]


@dataclass(frozen=True, slots=True)
class _Statement:
    """A call in the wrapper: a kernel's launch (`kernel`), or a call of ATen (`extern`, its name)."""

    line: int
    kernel: str
    extern: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    arguments: tuple[str, ...]


def _attribute(
    tree: ast.Module, code: str, printed: PrintedGraph | None, logged: Mapping[str, Sequence[str]]
) -> Attribution:
    """The nodes of kernels and calls: as logged, else as in the comments on kernels, else inferred."""
    found = Attribution()
    if printed is None:
        return found
    known = {node.name for node in printed.calls()}
    commented = {name: tuple(node for node in nodes if node in known) for name, nodes in _fragments(code)}
    statements = list(_statements(tree, code))
    handles = _handles(code, [statement.line for statement in statements])
    guess = _Inference(printed, statements, _bodies(code), allocations(code))
    launches = Counter(statement.kernel for statement in statements)
    for statement in statements:
        given = logged.get(handles.get(statement.line, ""), ())
        nodes: tuple[str, ...] = tuple(node for node in given if node in known)
        if not nodes and statement.kernel and launches[statement.kernel] == 1:
            nodes = commented.get(statement.kernel, ())
        if not nodes:
            nodes = guess.by_line.get(statement.line, ())
            found.inferred.add(statement.line)
        found.by_line[statement.line] = nodes
        if statement.kernel:
            found.nodes[statement.kernel] = tuple(dict.fromkeys((*found.nodes.get(statement.kernel, ()), *nodes)))
            if statement.line in found.inferred:
                found.inferred_kernels.add(statement.kernel)
    for name, nodes in commented.items():
        found.nodes[name] = tuple(dict.fromkeys((*nodes, *found.nodes.get(name, ()))))
    found.writers = guess.writers
    return found


def _handles(code: str, lines: Sequence[int]) -> dict[int, str]:
    """Torch's name of the call on a line ("triton_poi_fused_add_0:3"), if provenance was tracked."""
    if _HANDLE not in code:
        return {}
    rows = code.split("\n")
    found = {}
    for line in lines:
        above = line - 2
        while 0 <= above < len(rows) and above > line - 8:
            if _HANDLE in rows[above]:
                found[line] = rows[above].partition(_HANDLE)[2].strip()
                break
            above -= 1
    return found


def _fragments(code: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each Triton kernel with the nodes in the comment above it ("# Graph fragment:")."""
    start = 0
    for match in _DEFINED.finditer(code):
        yield match[1], list(dict.fromkeys(_FRAGMENT.findall(code, start, match.start())))
        start = match.end()


def _statements(tree: ast.Module, code: str) -> Iterator[_Statement]:
    """Calls of the wrapper in order, with the buffers that each reads and writes."""
    signatures = _signatures(code)
    for statement in wrapper_statements(tree):
        if isinstance(statement, ast.Assign | ast.Expr) and isinstance(statement.value, ast.Call):
            if (made := _statement(statement, statement.value, signatures)) is not None:
                yield made
        elif isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
            yield _Statement(statement.lineno, "", "return", (), (), tuple(map(_buffer, statement.value.elts)))
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name | ast.Subscript):
            target = _buffer(statement.targets[0])
            yield _Statement(statement.lineno, "", "alias", (_buffer(statement.value),), (target,), ())


def _statement(
    statement: ast.Assign | ast.Expr, call: ast.Call, signatures: Mapping[str, list[bool]]
) -> _Statement | None:
    name = ast.unparse(call.func)
    kernel = name.partition(".")[0]
    arguments = tuple(map(_buffer, call.args))
    if kernel in signatures and (name == kernel or name.endswith(".run")):
        stored = [buffer for buffer, out in zip(arguments, signatures[kernel], strict=False) if out and buffer]
        return _Statement(statement.lineno, kernel, "", tuple(filter(None, arguments)), tuple(stored), arguments)
    targets = [_buffer(target) for target in statement.targets] if isinstance(statement, ast.Assign) else []
    if name == "reinterpret_tensor" and targets:
        return _Statement(statement.lineno, "", "alias", arguments[:1], tuple(targets), ())
    if match := _EXTERN.match(name):
        out = [_buffer(keyword.value) for keyword in call.keywords if keyword.arg == "out"]
        reads = tuple(filter(None, arguments))
        writes = tuple(filter(None, (*out, *targets)))
        return _Statement(statement.lineno, "", match[1], reads, writes, arguments)
    return None


def _buffer(value: ast.expr) -> str:
    """The buffer that an argument is, or is a view of; "" for other values."""
    if isinstance(value, ast.Name):
        return value.id
    if isinstance(value, ast.Call) and value.args:
        return _buffer(value.args[0])
    return _buffer(value.value) if isinstance(value, ast.Subscript | ast.Attribute) else ""


def _signatures(code: str) -> dict[str, list[bool]]:
    """For each kernel, whether it writes to each of its arguments, by the names of its pointers."""
    found: dict[str, list[bool]] = {}
    for kernel, body in _bodies(code).items():
        opening = re.search(r'extern "C"\s+void\s+\w+\(([^)]*)\)|^def \w+\(([^)]*)\):', body, re.MULTILINE)
        names = (opening[1] or opening[2] or "").split(",") if opening else []
        found[kernel] = ["out_ptr" in name for name in names]
    return found


def _bodies(code: str) -> dict[str, str]:
    """The code of each kernel, by name."""
    starts = list(_DEFINED.finditer(code))
    ends = [*(match.start() for match in starts[1:]), len(code)]
    return {
        match[1]: code[match.end() : min(end, match.end() + 200_000)] for match, end in zip(starts, ends, strict=False)
    }


def allocations(code: str) -> dict[str, tuple[int, str]]:
    """The number of elements and the dtype of each buffer that the wrapper allocates, if its sizes are numbers.

    A buffer may be another one, or a view of it (`reinterpret_tensor`) with sizes of its own.
    """
    found: dict[str, tuple[int, str]] = {}
    for match in _ALLOCATED.finditer(code):
        count = prod(map(int, re.findall(r"\d{1,15}", match["sizes"] or "")))
        if match["dtype"]:
            found[match["name"]] = count, match["dtype"]
        elif (base := found.get(match["base"] or match["whole"])) is not None:
            found[match["name"]] = (count if match["base"] else base[0]), base[1]
    return found


@dataclass
class _Inference:
    """Infers which nodes each kernel computes, by running through the wrapper's calls in order.

    `bodies` are the kernels' code. `allocated` has the number of elements and the dtype of buffers.
    """

    printed: PrintedGraph
    statements: Sequence[_Statement]
    bodies: Mapping[str, str] = field(default_factory=dict)
    allocated: Mapping[str, tuple[int, str]] = field(default_factory=dict)
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
        """The node of each call of ATen: nodes of its operator, in order."""
        left: dict[str, list[str]] = {}
        for node in self.printed.calls():
            left.setdefault(_family(_operator(node)), []).append(node.name)
        found = {}
        for place, statement in enumerate(self.statements):
            same = left.get(_family(statement.extern), []) if not statement.kernel else []
            if same and statement.extern not in ("return", "alias"):
                found[place] = same.pop(0)
        return found

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
        while (node := self.nodes[name]).kind == "call" and short_name(node.target) in _VIEWS and node.inputs:
            if node.inputs[0] not in self.nodes:
                break
            name = node.inputs[0]
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
                nodes = self._find_computed_nodes(statement, made) or self._by_name(statement, made)
                copied = (name for name in self._read_next(place) if _is_named(self.nodes[name], statement.kernel))
                self.by_line[statement.line] = tuple(nodes) or tuple(copied)
            elif statement.extern != "return":
                self.by_line[statement.line] = self._read_next(place)

    def _by_name(self, statement: _Statement, made: Counter[str]) -> list[str]:
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

    def _find_computed_nodes(self, statement: _Statement, made: Counter[str]) -> list[str]:
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
