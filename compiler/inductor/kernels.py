"""Inductor's generated code as an artifact: kernels, and the wrapper that calls them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from compiler.inductor.lines import Definition, kernel_lines
from compiler.record import Artifact, Entity, Kernel

_AOT_ID = re.compile(r"# AOT ID: \['[^']*'\]")
_KERNEL_PATH = re.compile(r"^# kernel path: .*\n", re.MULTILINE)
_CACHE_PATH = re.compile(r"(['\"])[^'\"\n]*torchinductor_[^'\"\n]*/(\w+\.\w+)\1")
WRAPPER_PARAMETERS = (["args"], ["self", "args"])  # parameters of `call`, and of the partitions and branches it calls
_COLLECTIVE = "_c10d_functional."
WAIT = f"{_COLLECTIVE}wait_tensor"
_EXTERN = re.compile(r"\b(?:extern_kernels|torch\.ops|aten|prims|mkldnn)\b[\w.]*")


class WritingNode(Protocol):
    """A node that kernels compute: a scheduler node, or a node of a logged graph."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def parts(self) -> tuple[str, ...]: ...
    @property
    def writes(self) -> tuple[str, ...]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def waits_for(self) -> tuple[str, ...]: ...
    @property
    def updates(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class _Call:
    kernel: str
    first: int
    last: int
    text: str
    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Fused:
    """Lookup tables from the fused_ir stage, for the kernels stage.

    `ids` maps names of nodes and of their parts to node ids. `writers` maps each buffer to the id of the node that
    writes it, `waits` to the id of the node that waits for a collective to fill it. `facts` has the facts of each node,
    in the order of the code.
    """

    ids: dict[str, str]
    writers: dict[str, str]
    facts: dict[str, WritingNode]
    waits: dict[str, str]

    def nodes_of(self, kernel: str, definitions: list[Definition]) -> tuple[str, ...]:
        nodes = (node for definition in definitions if definition.name == kernel for node in definition.nodes)
        return tuple(dict.fromkeys(self.ids[node] for node in nodes if node in self.ids))

    def updaters_of(self, buffers: Collection[str]) -> Iterator[str]:
        """The nodes that write into one of these buffers, which other nodes made, in the order of the code."""
        return (identity for identity, node in self.facts.items() if not {*buffers}.isdisjoint(node.updates))

    def bytes_of(self, nodes: Iterable[str]) -> int:
        return sum(self.facts[node].bytes for node in nodes)


def kernels_artifact(
    code: str,
    *,
    artifact_id: str,
    title: str,
    graph: str,
    definitions: list[Definition],
    fused: Sequence[WritingNode],
    fused_id: str,
) -> tuple[Artifact, tuple[Kernel, ...]]:
    """The output code as an artifact, and its kernels.

    The artifact has entities for each kernel, each line of a kernel, and each call.
    """
    text = canonical(code, graph)
    tree = ast.parse(text)
    known = _group_fused(fused, fused_id)
    spans = _definition_spans(tree, {definition.name for definition in definitions})
    calls = list(_calls(tree, text, set(spans), set(known.writers)))
    launches = Counter(call.kernel for call in calls)
    kernels = []
    for definition in _unique(definitions, spans):
        kernel = _kernel(definition, spans, artifact_id, graph, text)
        nodes = known.nodes_of(kernel.name, definitions)
        count = launches[kernel.name]
        kernels.append(replace(kernel, nodes=nodes, calls=count, bytes=known.bytes_of(nodes) // max(count, 1)))
    call_entities = _call_entities(calls, definitions, known, artifact_id)
    rows = text.split("\n")
    inner = {kernel.id: kernel_lines(kernel, rows, definitions) for kernel in kernels}
    line_entities = [entity for lines in inner.values() for entity in lines.values()]
    artifact = Artifact(
        artifact_id, "kernels", title, "python", text, graph, _lines(kernels, calls, artifact_id, inner),
        (*map(_kernel_entity, kernels), *call_entities, *line_entities),
        {"language": kernels[0].language if kernels else "python"},
    )  # fmt: skip
    return artifact, (*kernels, *_externs(calls, call_entities, graph, artifact))


def nodes_of_call(call: Entity, origins: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """The nodes of the last graph that a call of the generated code comes from, through the loops."""
    for loops in call.origins:
        for unfused in origins.get(loops, ()):
            yield from origins.get(unfused, ())


def canonical(code: str, graph: str) -> str:
    """Output code without parts that vary between runs: cache paths and process-wide counters."""
    code = _KERNEL_PATH.sub("", _AOT_ID.sub(f"# AOT ID: ['{graph}']", code))
    return _CACHE_PATH.sub(r"\1\2\1", code)


def _group_fused(nodes: Sequence[WritingNode], fused_id: str) -> _Fused:
    facts = {f"{fused_id}.{node.name}": node for node in nodes}
    ids = {node.name: identity for identity, node in facts.items()}
    ids |= {part: identity for identity, node in facts.items() for part in node.parts}
    writers = {buffer: identity for identity, node in facts.items() for buffer in node.writes}
    waits = {buffer: identity for identity, node in facts.items() for buffer in node.waits_for}
    return _Fused(ids, writers, facts, waits)


def _definition_spans(tree: ast.Module, names: set[str]) -> dict[str, tuple[int, int]]:
    return {
        statement.targets[0].id: (statement.lineno, statement.end_lineno or statement.lineno)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id in names
    }


def _unique(definitions: list[Definition], spans: dict[str, tuple[int, int]]) -> list[Definition]:
    first: dict[str, Definition] = {}
    for definition in definitions:
        if definition.name in spans:
            first.setdefault(definition.name, definition)
    return list(first.values())


def _calls(tree: ast.Module, text: str, kernels: set[str], buffers: set[str]) -> Iterator[_Call]:
    """Yield the wrapper's statements that launch a kernel or call ATen, in order."""
    rows = text.split("\n")
    for statement in wrapper_statements(tree):
        names = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
        kernel = next((name for name in names if name in kernels), "")
        if not kernel and not _is_extern(statement):
            continue
        source = " ".join(row.strip() for row in rows[statement.lineno - 1 : statement.end_lineno])
        used = tuple(dict.fromkeys(name for name in names if name in buffers))
        yield _Call(kernel, statement.lineno, statement.end_lineno or statement.lineno, source, used)


def wrapper_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of the wrapper, which calls the kernels, in order; those of blocks in place of the blocks."""
    inner = (method for each in tree.body if isinstance(each, ast.ClassDef) for method in each.body)
    for function in (*tree.body, *inner):
        if isinstance(function, ast.FunctionDef) and [a.arg for a in function.args.args] in WRAPPER_PARAMETERS:
            yield from _leaves(function.body)


def _leaves(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.With | ast.If | ast.For):
            yield from _leaves([*statement.body, *getattr(statement, "orelse", ())])
        else:
            yield statement


def _is_extern(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
    return isinstance(value, ast.Call) and bool(_EXTERN.search(ast.unparse(value.func)))


def _kernel(
    definition: Definition, spans: dict[str, tuple[int, int]], artifact_id: str, graph: str, text: str
) -> Kernel:
    first, last = spans[definition.name]
    opening = text.split("\n")[first - 1]
    language = next((made for made in ("cpp", "cuda", "cutedsl") if f"async_compile.{made}" in opening), "")
    language = language or ("triton" if "triton" in opening else "python")
    identity = f"{artifact_id}.{definition.name}"
    return Kernel(identity, definition.name, graph, artifact_id, language, definition.category, (first, last))


def _kernel_entity(kernel: Kernel) -> Entity:
    attrs = {"language": kernel.language, "category": kernel.category, "line": kernel.lines[0]}
    return Entity(kernel.id, "kernel", kernel.name, attrs, (), kernel.nodes)


def _call_entities(calls: list[_Call], definitions: list[Definition], known: _Fused, artifact_id: str) -> list[Entity]:
    """Entities of the wrapper's calls; launches of the same kernel are told apart by their buffers."""
    entities: list[Entity] = []
    written: dict[str, str] = {}
    done: set[str] = set()
    for call in calls:
        identity = f"{artifact_id}.call_L{call.first}"
        writers = {buffer: known.writers[buffer] for buffer in call.buffers}
        fresh = [node for node in writers.values() if node not in done]
        if call.kernel:
            candidates = known.nodes_of(call.kernel, definitions)
            left = [node for node in candidates if node not in done]
            origins = tuple([node for node in left if node in fresh] or left[:1]) or candidates
        else:  # the last extern node not yet called that writes one of these buffers
            origins = tuple([node for node in fresh if known.facts[node].kind in ("extern", "template")][-1:])
            if _waits(call):
                origins = tuple(known.waits[buffer] for buffer in call.buffers if buffer in known.waits)
            if not origins and _call_label(call).startswith(_COLLECTIVE):
                origins = tuple([node for node in known.updaters_of(call.buffers) if node not in done][:1])
        done.update(origins)
        inputs = dict.fromkeys(written[buffer] for buffer in call.buffers if buffer in written)
        moved = 0 if _waits(call) else known.bytes_of(origins)
        attrs = {"code": call.text, "line": call.first, "bytes": moved}
        kind = "call" if call.kernel else "extern"
        entities.append(Entity(identity, kind, _call_label(call), attrs, tuple(inputs), origins))
        written.update({buffer: identity for buffer, node in writers.items() if node in origins})
    return entities


def _waits(call: _Call) -> bool:
    """Whether a call waits for a collective."""
    return not call.kernel and _call_label(call).startswith(WAIT)


def _call_label(call: _Call) -> str:
    if call.kernel:
        return call.kernel
    match = _EXTERN.search(call.text)
    return match[0].removeprefix("torch.ops.") if match else call.text


def _lines(
    kernels: list[Kernel], calls: list[_Call], artifact_id: str, inner: dict[str, dict[int, Entity]]
) -> dict[int, tuple[str, ...]]:
    lines: dict[int, tuple[str, ...]] = {}
    for kernel in kernels:
        lines.update(dict.fromkeys(range(kernel.lines[0], kernel.lines[1] + 1), (kernel.id,)))
        lines.update({row: (kernel.id, entity.id) for row, entity in inner.get(kernel.id, {}).items()})
    for call in calls:
        lines.update(dict.fromkeys(range(call.first, call.last + 1), (f"{artifact_id}.call_L{call.first}",)))
    return lines


def _externs(calls: list[_Call], entities: list[Entity], graph: str, artifact: Artifact) -> Iterator[Kernel]:
    for call, entity in zip(calls, entities, strict=True):
        if not call.kernel:
            yield Kernel(
                entity.id, entity.label, graph, artifact.id, "aten", "extern", (call.first, call.last),
                entity.origins, 1, int(entity.attrs["bytes"]),
            )  # fmt: skip
