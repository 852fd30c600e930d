"""Kernels of logged output code, and the graph nodes that each computes.

With provenance tracking on, torch logs the nodes of each kernel. Otherwise Triton kernels name them in a comment; for
C++ kernels and calls of ATen they are inferred from the order of calls, buffers, types and names.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from compiler.inductor.kernels import canonical, kernels_artifact, wrapper_statements
from compiler.inductor.lines import Definition
from compiler.logs.graph_text import PrintedGraph
from compiler.logs.kernel_inference import Inference, Statement
from compiler.record import Artifact, Entity, GraphHalf, Kernel

MOST_CODE = 32 * 2**20
"""Longer code is shown, but its kernels are not looked for."""
_DEFINED = re.compile(r"^(\w+) = async_compile\.(?!wait\b)(\w+)\(", re.MULTILINE)
_FRAGMENT = re.compile(r"^#   %(\w+) : [^\n]*= (?!PlaceHolder)", re.MULTILINE)
_SLICE = re.compile(r"^\s+(\w+) = reinterpret_tensor\((\w+), [^\n]*# alias$", re.MULTILINE)
_HANDLE = "# [Provenance debug handles] "
_AOT_ID = re.compile(r"# AOT ID: \['\w*?_(forward|backward|inference)'\]")
_PERSISTENT = re.compile(r"_(?:poi|red|per|mm|bmm|addmm|convolution|tem|split_scan|for|unk)_")
_CATEGORIES = {"_poi_": "pointwise", "_red_": "reduction", "_per_": "reduction", "_tem_": "template"}
_EXTERN = re.compile(r"(?:extern_kernels|torch\.ops\.\w+|aten|prims|mkldnn|inductor_ops|_quantized)\.(\w+)")


_ALLOCATED = re.compile(
    r"^ +(?P<name>\w+) = (?:(?:empty_strided_\w+\(|reinterpret_tensor\((?P<base>\w+), )\((?P<sizes>[\d, ]*)\), "
    r"\([\d, ]*\), (?:torch\.(?P<dtype>\w+)|\d+)\)|(?P<whole>\w+);)",
    re.MULTILINE,
)


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


def _attribute(
    tree: ast.Module, code: str, printed: PrintedGraph | None, logged: Mapping[str, Sequence[str]]
) -> Attribution:
    """The nodes of kernels and calls: as logged, else as in the comments on kernels, else inferred."""
    found = Attribution()
    if printed is None:
        return found
    known = {node.name for node in printed.calls()}
    inputs = {node.name for node in printed.inputs()}
    commented = {name: tuple(node for node in nodes if node in known) for name, nodes in _fragments(code)}
    statements = list(_statements(tree, code))
    handles = _handles(code, [statement.line for statement in statements])
    guess = Inference(printed, statements, _bodies(code), allocations(code), dict(_SLICE.findall(code)))
    launches = Counter(statement.kernel for statement in statements)
    for statement in statements:
        given = logged.get(handles.get(statement.line, ""), ())
        nodes: tuple[str, ...] = tuple(node for node in given if node in known)
        nodes = nodes or tuple(node for node in given if node in inputs)  # a kernel that only copies them
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


def _statements(tree: ast.Module, code: str) -> Iterator[Statement]:
    """Calls of the wrapper in order, with the buffers that each reads and writes."""
    signatures = _signatures(code)
    for statement in wrapper_statements(tree):
        if isinstance(statement, ast.Assign | ast.Expr) and isinstance(statement.value, ast.Call):
            if (made := _statement(statement, statement.value, signatures)) is not None:
                yield made
        elif isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
            yield Statement(statement.lineno, "", "return", (), (), tuple(map(_buffer, statement.value.elts)))
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name | ast.Subscript):
            target = _buffer(statement.targets[0])
            yield Statement(statement.lineno, "", "alias", (_buffer(statement.value),), (target,), ())


def _statement(
    statement: ast.Assign | ast.Expr, call: ast.Call, signatures: Mapping[str, list[bool]]
) -> Statement | None:
    name = ast.unparse(call.func)
    kernel = name.partition(".")[0]
    arguments = tuple(map(_buffer, call.args))
    if kernel in signatures and (name == kernel or name.endswith(".run")):
        stored = [buffer for buffer, out in zip(arguments, signatures[kernel], strict=False) if out and buffer]
        return Statement(statement.lineno, kernel, "", tuple(filter(None, arguments)), tuple(stored), arguments)
    targets = [_buffer(target) for target in statement.targets] if isinstance(statement, ast.Assign) else []
    if name == "reinterpret_tensor" and targets:
        return Statement(statement.lineno, "", "alias", arguments[:1], tuple(targets), ())
    if match := _EXTERN.match(name):
        out = [_buffer(keyword.value) for keyword in call.keywords if keyword.arg == "out"]
        reads = tuple(filter(None, arguments))
        writes = tuple(filter(None, (*out, *targets)))
        return Statement(statement.lineno, "", match[1], reads, writes, arguments)
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
