"""FX graphs as artifacts: text, an entity for each node, and origins in the previous stage."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from torch.fx import GraphModule, Node

from compiler.capture.sources import SourceBook
from compiler.record import Artifact, Entity
from compiler.record.printed_code import first_block
from compiler.torch_api import fx

Origins = Callable[[Node], tuple[str, ...]]
PLACE = ("line", "file", "code")
MODULE = ("module", "module_type")
PLACEMENT = ("placements", "mesh", "from_placements", "cause")
"""Attributes of a local tensor of a DTensor, which the same node in a later graph keeps."""
KINDS = {"call_function": "call", "call_method": "call", "call_module": "call"}
SUBGRAPH = "subgraph"
INNER = {"placeholder": "input", "output": "output"}


def graph_artifact(
    module: GraphModule,
    *,
    artifact_id: str,
    stage: str,
    title: str,
    graph: str,
    book: SourceBook,
    origins: Origins,
    parent: Artifact | None = None,
    call_site: tuple[fx.SourceFrame, ...] = (),
) -> Artifact:
    """An FX graph as an artifact. `origins` returns the ids of a node's origins in the previous stage.

    A node without a stack or module of its own inherits them from its origin in `parent`. In the first stage, a call
    without a stack gets the place of the user's call. `attrs["inherited"]` marks these nodes.
    """
    source, names = fx.graph_code(module)
    known = {entity.id: entity for entity in parent.entities} if parent else {}
    own = list(_entities(module, _Printing(artifact_id, book, origins, fx.bodies(module)), None))
    if parent is None:
        own = _with_all_callers(own)
        own = [_with_call_site(entity, call_site[-1], book) for entity in own] if call_site else own
    placed = [_inherit_placement(_inherit_attrs(entity, known), known) for entity in own]
    entities = _put_in_modules(placed, _shared_modules(placed) if stage == "backward" else {})
    lines: dict[int, tuple[str, ...]] = {number: (f"{artifact_id}.{name}",) for number, name in names.items()}
    return Artifact(artifact_id, stage, title, "python", book.shorten(source), graph, lines, entities)


@dataclass(frozen=True, slots=True)
class _Printing:
    """Inputs shared by all entities of a graph. `bodies` are the bodies of all higher-order operators in the graph."""

    artifact_id: str
    book: SourceBook
    origins: Origins
    bodies: Sequence[fx.Body]

    def id_of(self, path: str, name: str) -> str:
        return f"{self.artifact_id}.{fx.qualified_name(path, name)}"


def _entities(module: GraphModule, printing: _Printing, body: fx.Body | None) -> Iterator[Entity]:
    """Yield entities of a graph's nodes; the nodes of a body come before the node that holds the body."""
    path = body.path if body is not None else ""
    for node in module.graph.nodes:
        for inner in printing.bodies:
            if inner.holder is node:
                yield from _entities(inner.module, printing, inner)
        yield _entity(node, module, printing, path)


def _entity(node: Node, module: GraphModule, printing: _Printing, path: str) -> Entity:
    """Convert a node to an entity. A higher-order operator has the outputs of its bodies among its inputs.

    In a body, inputs and outputs have kinds of their own, and `attrs["subgraph"]` is the id of the body's holder.
    """
    bodies = [body for body in printing.bodies if node in body.callers]
    inputs = [printing.id_of(path, source.name) for source in node.all_input_nodes if not fx.body_at(module, source)]
    for body in bodies:
        inputs += [printing.id_of(body.path, source.name) for source in fx.returned_nodes(body.module)]
    attrs = _attrs(node, printing.book)
    if bodies:
        attrs["subgraphs"] = [f"{printing.artifact_id}.{body.path}" for body in bodies]
    if path:
        attrs["subgraph"] = f"{printing.artifact_id}.{path}"
    holds = node.op == "get_attr" and fx.body_at(module, node) is not None
    kind = SUBGRAPH if holds else KINDS.get(node.op, node.op)
    return Entity(
        id=printing.id_of(path, node.name),
        kind=f"{SUBGRAPH}_{INNER[node.op]}" if path and node.op in INNER else kind,
        label=fx.qualified_name(path, node.name),
        attrs=attrs,
        inputs=tuple(dict.fromkeys(inputs)),
        origins=printing.origins(node),
    )


def _with_all_callers(entities: list[Entity]) -> list[Entity]:
    """Add the lines of all calls of a body to the body's nodes, as a body is traced only once."""
    lines: dict[str, dict[str, None]] = {}
    for entity in entities:
        for body in entity.attrs.get("subgraphs", ()):
            lines.setdefault(body, {}).update(dict.fromkeys(entity.origins))

    def add_callers(entity: Entity) -> Entity:
        from_calls = lines.get(entity.attrs.get("subgraph", ""), ()) if entity.kind == "call" else ()
        return replace(entity, origins=tuple(dict.fromkeys((*from_calls, *entity.origins)))) if from_calls else entity

    return list(map(add_callers, entities))


def _with_call_site(entity: Entity, frame: fx.SourceFrame, book: SourceBook) -> Entity:
    """If an operator call has no user stack, as in some torch.nn modules, use the place of the user's call."""
    if entity.kind != "call" or "line" in entity.attrs:
        return entity
    code = linecache.getline(frame.file, frame.line).strip()
    place = {"file": book.name(frame.file), "line": frame.line, "code": code, "inherited": True}
    return replace(entity, attrs=entity.attrs | place)


def _inherit_attrs(entity: Entity, known: dict[str, Entity]) -> Entity:
    if entity.kind != "call":
        return entity
    attrs = dict(entity.attrs)
    for names in (PLACE,) if "gradient_accumulation" in attrs else (PLACE, MODULE):
        giver = next((known[o] for o in entity.origins if o in known and names[0] in known[o].attrs), None)
        if names[0] not in attrs and giver is not None:
            attrs |= {name: giver.attrs[name] for name in names if name in giver.attrs} | {"inherited": True}
    return replace(entity, attrs=attrs)


def _inherit_placement(entity: Entity, known: dict[str, Entity]) -> Entity:
    """Give a copy of a node the placements of the original, if that is a local tensor too."""
    same = next((known[origin] for origin in entity.origins if origin in known), None)
    if same is None or same.label != entity.label or "local_shape" in same.attrs:
        return entity
    kept = {name: same.attrs[name] for name in PLACEMENT if name in same.attrs}
    return replace(entity, attrs=entity.attrs | kept) if kept else entity


def _shared_modules(entities: list[Entity]) -> dict[str, str]:
    """Module paths, by id, of recomputed forward nodes that several modules use: the modules' common prefix.

    A causal mask used by two blocks then belongs to neither, and causes no cycle between the blocks.
    """
    modules = {entity.id: str(entity.attrs["module"]) for entity in entities if "module" in entity.attrs}
    users: dict[str, set[str]] = {}
    shared = {}
    for entity in reversed(entities):
        own, using = modules.get(entity.id), users.get(entity.id)
        if own and using and not entity.attrs.get("backward"):
            parts = zip(*(path.split(".") for path in (own, *using)), strict=False)
            modules[entity.id] = ".".join(same[0] for same in takewhile(lambda same: len(set(same)) == 1, parts))
            if modules[entity.id] != own:
                shared[entity.id] = modules[entity.id]
        if entity.id in modules:
            for source in entity.inputs:
                users.setdefault(source, set()).add(modules[entity.id])
    return shared


def _put_in_modules(entities: list[Entity], shared: dict[str, str]) -> tuple[Entity, ...]:
    """Assign calls without a module (sums of gradients) to the parent of their last operand's module.

    Sums of a block are then inside the block, and a collapsed block causes no cycle. `shared` are module paths, by
    id, that override torch's.
    """
    modules = {entity.id: str(entity.attrs.get("module", "")) for entity in entities if entity.kind == "call"} | shared
    place = {identity: index for index, identity in enumerate(modules)}
    moved = dict(shared)
    for entity in entities:
        loose = entity.kind == "call" and "module" not in entity.attrs
        if loose and (makers := [source for source in entity.inputs if source in place]):
            maker = max(makers, key=place.__getitem__)
            modules[entity.id] = modules[maker] if maker in moved else modules[maker].rpartition(".")[0]
            moved[entity.id] = modules[entity.id]
    return tuple(_with_module(entity, moved[entity.id]) if entity.id in moved else entity for entity in entities)


def _with_module(entity: Entity, path: str) -> Entity:
    if not path and "module" not in entity.attrs:
        return entity
    attrs = {name: value for name, value in entity.attrs.items() if name not in MODULE}
    return replace(entity, attrs=attrs | ({"module": path} if path else {}) | {"inherited": True})


def _module_attrs(node: Node) -> dict[str, str]:
    """The module that made a call; `block` is the called module of a list, if it is not the first with a number."""
    path, kind = fx.module_path(node)
    if not path:
        return {}
    block = fx.called_block(node)
    return {"module": path, "module_type": kind} | ({"block": block} if block != first_block(path) else {})


def _attrs(node: Node, book: SourceBook) -> dict[str, Any]:
    value = fx.value_of(node)
    attrs: dict[str, Any] = {"op": node.op, "target": fx.target_name(node), **fx.tensor_attrs(value)}
    if isinstance(value, tuple | list) and node.op != "output":
        attrs["outputs"] = [fx.tensor_attrs(item) for item in value]
    accumulates = bool(node.meta.get("is_gradient_acc"))  # torch gives a sum the module of only one of its terms
    attrs |= {} if accumulates else _module_attrs(node)
    frames = fx.source_frames(node)
    if style := fx.parallel_style_of(node):
        attrs["parallel_style"] = style
    if frames:
        attrs |= {"file": book.name(frames[-1].file), "line": frames[-1].line, "code": frames[-1].code}
    for name, text in (("source", fx.input_source(node)), ("description", fx.input_description(node))):
        if text:
            attrs[name] = text
    if operator := fx.functionalized_operator(node):
        attrs["operator"] = operator
    if accumulates:
        attrs["gradient_accumulation"] = True
    if fx.is_backward(node):
        attrs["backward"] = True
    return attrs


def line_origins(book: SourceBook, call_site: Iterable[fx.SourceFrame]) -> Origins:
    """A function that returns a captured node's origins: the lines of the user's stack, outermost first."""
    outer = [book.line(frame.file, frame.line) for frame in call_site]

    def origins(node: Node) -> tuple[str, ...]:
        if node.op in ("placeholder", "output"):
            return ()
        stack = fx.source_frames(node)
        inner = [book.line(frame.file, frame.line) for frame in stack]
        for caller, add_callers in zip(stack, inner[1:], strict=False):
            book.call(caller.file, caller.line, add_callers)
        return tuple(dict.fromkeys([*outer, *inner]))

    return origins
