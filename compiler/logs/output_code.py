"""Kernels of logged output code, and the graph nodes that each computes.

With provenance tracking on, torch logs the nodes of each kernel. Otherwise Triton kernels name them in a comment; of
C++ kernels and calls of ATen they are inferred from the order of calls, buffers, types and names.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from compiler.inductor.kernels import WRAPPER_PARAMETERS, kernels_artifact
from compiler.inductor.lines import Definition
from compiler.logs.graph_text import PrintedGraph, PrintedNode, type_attrs
from compiler.record import Artifact, GraphHalf, Kernel
from compiler.record.printed_code import short_name

MOST_CODE = 32 * 2**20
"""Longer code is shown, but its kernels are not looked for."""
_DEFINED = re.compile(r"^(\w+) = async_compile\.(?!wait\b)(\w+)\(", re.MULTILINE)
_USER = re.compile(r"^(\w+) = async_compile\.triton\('(\w+)'", re.MULTILINE)
_FRAGMENT = re.compile(r"^#   %(\w+)(?:\.\d+)? : ", re.MULTILINE)
_AOT_ID = re.compile(r"# AOT ID: \['\w*?_(forward|backward|inference)'\]")
_PERSISTENT = re.compile(r"_(?:poi|red|per|mm|bmm|addmm|convolution|tem|split_scan|for|unk)_")
_CATEGORIES = {"_poi_": "pointwise", "_red_": "reduction", "_per_": "reduction", "_tem_": "template"}
_MATRIX = frozenset(("mm", "addmm", "bmm", "baddbmm", "_mm_plus_mm", "mv"))
_VIEWS = frozenset(
    ("view", "reshape", "permute", "expand", "slice", "select", "squeeze", "unsqueeze", "transpose", "t", "as_strided",
     "getitem", "alias", "split", "_unsafe_view", "detach", "unbind", "split_with_sizes", "view_as_real", "diagonal")
)  # fmt: skip
_EXTERN = re.compile(r"\b(?:extern_kernels|torch\.ops\.[\w.]+|aten|prims|mkldnn)\.(\w+)")
_OVERLOADS = frozenset(("default", "out", "Tensor", "Scalar", "dim_IntList", "correction"))


@dataclass(frozen=True, slots=True)
class LoggedNode:
    """A node of the post-grad graph as the writer of buffers (`compiler.inductor.kernels.WritingNode`)."""

    name: str
    kind: str
    writes: tuple[str, ...] = ()
    bytes: int = 0
    parts: tuple[str, ...] = ()


@dataclass
class Attribution:
    """The nodes of each kernel and call. `inferred` are kernels whose nodes torch did not log."""

    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    writers: dict[str, str] = field(default_factory=dict)
    inferred: set[str] = field(default_factory=set)


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
    marked = tuple(
        replace(entity, attrs=entity.attrs | {"inferred": True})
        if entity.origins and (entity.kind == "extern" or entity.label in found.inferred)
        else entity
        for entity in artifact.entities
    )
    return replace(artifact, half=half, entities=marked), tuple(replace(kernel, half=half) for kernel in kernels)


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

    kernel: str
    extern: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    arguments: tuple[str, ...]


def _attribute(
    tree: ast.Module, code: str, printed: PrintedGraph | None, logged: Mapping[str, Sequence[str]]
) -> Attribution:
    found = Attribution()
    if printed is None:
        return found
    known = {node.name for node in printed.calls()}
    given = {name: tuple(node for node in nodes if node in known) for name, nodes in logged.items()}
    commented = {name: tuple(node for node in nodes if node in known) for name, nodes in _fragments(code)}
    statements = list(_statements(tree, code))
    guess = _Inference(printed, statements)
    for name, _ in _DEFINED.findall(code):
        nodes = given.get(name) or commented.get(name)
        if not nodes:
            nodes = guess.nodes_of.get(name, ())
            found.inferred.add(name)
        found.nodes[name] = nodes
    found.writers = guess.writers
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
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and [a.arg for a in function.args.args] in WRAPPER_PARAMETERS:
            for statement in ast.walk(function):
                if isinstance(statement, ast.Assign | ast.Expr) and isinstance(statement.value, ast.Call):
                    if (made := _statement(statement, statement.value, signatures)) is not None:
                        yield made
                elif isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
                    yield _Statement("", "return", (), (), tuple(map(_buffer, statement.value.elts)))
                elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name | ast.Subscript):
                    target = _buffer(statement.targets[0])
                    yield _Statement("", "alias", (_buffer(statement.value),), (target,), ())


def _statement(
    statement: ast.Assign | ast.Expr, call: ast.Call, signatures: Mapping[str, list[bool]]
) -> _Statement | None:
    name = ast.unparse(call.func)
    kernel = name.partition(".")[0]
    arguments = tuple(map(_buffer, call.args))
    if kernel in signatures and (name == kernel or name.endswith(".run")):
        writes = [buffer for buffer, out in zip(arguments, signatures[kernel], strict=False) if out and buffer]
        return _Statement(kernel, "", tuple(filter(None, arguments)), tuple(writes), arguments)
    targets = [_buffer(target) for target in statement.targets] if isinstance(statement, ast.Assign) else []
    if name == "reinterpret_tensor" and targets:
        return _Statement("", "alias", arguments[:1], tuple(targets), ())
    if match := _EXTERN.search(name):
        word = match[1] if match[1] not in _OVERLOADS else name.rpartition(".")[0].rpartition(".")[2]
        out = [_buffer(keyword.value) for keyword in call.keywords if keyword.arg == "out"]
        return _Statement("", word, tuple(filter(None, arguments)), tuple(filter(None, (*out, *targets))), arguments)
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
    ends = [*[match.start() for match in _DEFINED.finditer(code)], len(code)]
    for match, end in zip(_DEFINED.finditer(code), ends[1:], strict=True):
        body = code[match.end() : min(end, match.end() + 200_000)]
        opening = re.search(r'extern "C"\s+void\s+\w+\(([^)]*)\)|^def \w+\(([^)]*)\):', body, re.MULTILINE)
        names = (opening[1] or opening[2] or "").split(",") if opening else []
        found[match[1]] = ["out_ptr" in name for name in names]
    return found


@dataclass
class _Inference:
    """Infers which nodes each kernel computes, by running through the wrapper's calls in order."""

    printed: PrintedGraph
    statements: Sequence[_Statement]
    nodes_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    writers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = {node.name: node for node in self.printed.nodes}
        self.order = {name: place for place, name in enumerate(self.nodes)}
        self.holds: dict[str, str] = {node.name: node.name for node in self.printed.inputs()}
        self.externs = self._match_externs()
        self._name_results()
        self._run()

    def _match_externs(self) -> dict[int, str]:
        """The node of each call of ATen: nodes of its operator, in order."""
        left: dict[str, list[str]] = {}
        for node in self.printed.calls():
            left.setdefault(_family(short_name(node.target)), []).append(node.name)
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
                self._want(statement.arguments, self._returned() if output else ())
            elif name := self.externs.get(place):
                self._want(statement.reads, self.nodes[name].inputs)

    def _returned(self) -> tuple[str, ...]:
        row = next((line for line in reversed(self.printed.text.split("\n")) if line.startswith("    return ")), "")
        return tuple(part.strip(" ()") for part in row.removeprefix("    return ").split(","))

    def _want(self, buffers: Sequence[str], names: Sequence[str]) -> None:
        for buffer, name in zip(buffers, names, strict=False):
            if buffer and name in self.nodes and self.nodes[name].kind == "call":
                self.wanted.setdefault(buffer, self._base(name))

    def _base(self, name: str) -> str:
        """The node that computes the value of which a node is a view."""
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
                for buffer in statement.writes[:1]:
                    self.holds[buffer] = self.writers[buffer] = name
            elif statement.kernel:
                nodes = self._computed(statement, made)
                known = self.nodes_of.get(statement.kernel, ())
                self.nodes_of[statement.kernel] = tuple(dict.fromkeys((*known, *nodes)))

    def _computed(self, statement: _Statement, made: Counter[str]) -> list[str]:
        """The nodes between the buffers that a kernel reads and those that it writes."""
        read = [buffer for buffer in statement.reads if buffer not in statement.writes or buffer in self.holds]
        available = {self.holds[buffer] for buffer in read if buffer in self.holds}
        reachable = self._reachable(available)
        targets: dict[str, str] = {}
        for buffer in statement.writes:
            wanted = self.wanted.get(buffer, "")
            if wanted in reachable:
                targets[buffer] = wanted
        open_nodes = [name for name in reachable if not made[name] and not _is_view(self.nodes[name])]
        for buffer in statement.writes:
            if buffer not in targets and (name := self._likely(open_nodes, targets, reachable, statement.kernel)):
                targets[buffer] = name
        found = self._between(available, targets.values())
        made.update(found)
        for buffer, name in targets.items():
            self.holds[buffer] = name
            self.writers[buffer] = name
        return sorted(found, key=self.order.__getitem__)

    def _reachable(self, available: set[str]) -> dict[str, None]:
        """Nodes that can be computed from values, without calls of ATen."""
        extern = set(self.externs.values())
        reached: dict[str, None] = {}
        for node in self.printed.calls():
            inputs_known = all(name in available or name in reached or self._is_size(name) for name in node.inputs)
            if node.name not in extern and node.name not in available and inputs_known:
                reached[node.name] = None
        return reached

    def _is_size(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is None or (node.kind == "placeholder" and not type_attrs(node.type)) or node.op == "get_attr"

    def _likely(
        self, open_nodes: Sequence[str], targets: Mapping[str, str], reachable: Mapping[str, None], kernel: str
    ) -> str:
        """The first node not yet computed whose value is needed outside of what can be computed now."""
        taken = set(targets.values())
        users: dict[str, list[str]] = self._users()
        named = [name for name in open_nodes if name not in taken and _is_named(self.nodes[name], kernel)]
        for name in (*named, *(name for name in open_nodes if name not in taken)):
            if any(user not in reachable for user in users.get(name, ())):
                return name
        return named[-1] if named else ""

    def _users(self) -> dict[str, list[str]]:
        if not hasattr(self, "_known_users"):
            self._known_users: dict[str, list[str]] = {}
            for node in self.printed.nodes:
                for name in node.inputs:
                    self._known_users.setdefault(name, []).append(node.name)
        return self._known_users

    def _between(self, available: set[str], targets: Iterable[str]) -> set[str]:
        todo, seen = list(targets), set()
        while todo:
            name = todo.pop()
            if name in seen or name in available or self.nodes[name].kind != "call":
                continue
            if name in self.externs.values():
                continue
            seen.add(name)
            todo += [other for other in self.nodes[name].inputs if other in self.nodes]
        return seen


def _family(name: str) -> str:
    bare = name.rstrip("_").removesuffix("_out")
    return "mm" if bare in _MATRIX else bare


def _is_view(node: PrintedNode) -> bool:
    return short_name(node.target) in _VIEWS


def _is_named(node: PrintedNode, kernel: str) -> bool:
    return short_name(node.target) in kernel
