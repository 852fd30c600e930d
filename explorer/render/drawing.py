"""Draw one graph of a record as a `graphviz.Digraph` that is readable in print.

Nodes are grouped by `nn.Module` in nested frames. Inputs, parameters and outputs are chips inside the nodes that use or
make them: as nodes of their own they would cause most of the fan-in and the long edges. A graph too big to read is
drawn with its modules collapsed below a depth, which the caption states.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import takewhile
from textwrap import shorten

from graphviz import CalledProcessError, Digraph, ExecutableNotFound

from compiler.record import Artifact, Entity, Record
from explorer.reading.provenance import input_sources, saved_tensors
from explorer.reading.shapes import tensor_type
from explorer.reading.stages import counts
from explorer.render.html import details, picture, safe

READABLE = 80
"""Maximum number of boxes in a drawing; above it, modules are collapsed."""

CHIPS_SHOWN = 3
ABOUT_SHOWN = 70
"""Maximum length of a node's description from the frame map."""

Path = tuple[str, ...]

_INK, _GREY, _RULE = "#1a1a1a", "#5a5a5a", "#8a8a8a"
_OUTSIDE = "#7a7a7a"
"""Colour of text outside boxes, where the background is unknown: legible on white and on black."""
_WHITE = "#ffffff"
_KIND_FILLS = {"function": "#dfe6ee", "resume": "#eef2f6", "break": "#fbdcc8", "plain": "#ebebeb"}
_FRAMES = ("#7f7f7f14", "#7f7f7f24")
_CHIP = {"input": "#cfe4f5", "parameter": "#f6e3b8", "saved": "#e3d9f0", "output": "#cdebd8"}
_DARK = {
    _INK: "#e8ebee", _GREY: "#b7c0ca", _WHITE: "#2a2f36",
    "#dfe6ee": "#38424d", "#eef2f6": "#2f363e", "#fbdcc8": "#5c3420", "#ebebeb": "#333333",
    "#cfe4f5": "#1d3d56", "#f6e3b8": "#55431a", "#e3d9f0": "#43335c", "#cdebd8": "#1d4a31",
}  # fmt: skip
"""Light colour -> dark colour, of boxes and of their text."""
_MANY = {"input": "inputs", "parameter": "parameters", "saved": "saved", "output": "outputs"}
_ENDS = {"placeholder", "get_attr", "output", "subgraph", "subgraph_input", "subgraph_output"}
_OWN_TENSOR = re.compile(r"\._(?:parameters|buffers)\['(?P<name>\w+)'\]$")
_VARIABLE = re.compile(r"^[LG]\['(\w+)'\]")
_MOVES_NO_DATA = re.compile(
    r"(?:^|\.)(?:t|view|_?unsafe_view|reshape|permute|transpose|expand|unsqueeze|squeeze|slice|select|split\w*|alias|"
    r"detach|as_strided|getitem|chunk|unbind|contiguous)(?:\.|$)"
)


@dataclass(frozen=True)
class Chip:
    """A graph input, parameter or output, shown in the box that uses or makes it."""

    kind: str
    label: str
    type: str = ""


@dataclass
class Box:
    """A node of the drawing: an entity, or a collapsed module of `closed` entities.

    `module` is the path of the module around the box.
    """

    id: str
    title: str
    type: str
    module: Path
    note: str = ""
    light: bool = False
    closed: int = 0
    module_type: str = ""
    fill: str = _WHITE
    takes: dict[str, Chip] = field(default_factory=dict)
    gives: list[Chip] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """Content of a drawing: `boxes` by id, and `edges` between their ids.

    Modules are collapsed below `depth`, None if none is collapsed. `entities` is the number of entities drawn.
    """

    boxes: dict[str, Box]
    edges: tuple[tuple[str, str], ...]
    depth: int | None
    entities: int


def drawing(
    record: Record, artifact: Artifact, depth: int | None = None, readable: int = READABLE, direction: str = "TB"
) -> Digraph:
    """Draw one graph of a record (an FX graph or Inductor IR) for print.

    `depth` is the number of module levels that stay open; None opens as many as fit into `readable` boxes.
    `direction` is Graphviz's rankdir (`TB`, `LR`). Only rendering the drawing needs Graphviz's `dot`.
    Raises ValueError if the artifact is text without data flow.
    """
    if not has_flow(artifact):
        raise ValueError(f"{artifact.id} is text, not a graph; print it, or draw a stage such as 'captured'")
    layout = plan(record, artifact, depth, readable)
    graph = Digraph(artifact.stage, comment=artifact.id)
    graph.attr(rankdir=direction, fontname="Arial", fontsize="11", fontcolor=_OUTSIDE, nodesep="0.22", ranksep="0.32")
    graph.attr(label=_caption(artifact, layout), labelloc="b", labeljust="l", bgcolor="transparent")
    graph.attr("node", shape="plain", fontname="Arial", fontsize="11", fontcolor=_INK)
    graph.attr("edge", color=_RULE, arrowsize="0.6", penwidth="0.9")
    _add_boxes(graph, layout.boxes.values(), ())
    graph.edges((_quote(source), _quote(target)) for source, target in layout.edges)
    return graph


def dark_style() -> str:
    """CSS of an SVG drawing that darkens the boxes if the reader prefers a dark colour scheme.

    Boxes are opaque and text outside them is a middle grey, so that a drawing is legible on any background.
    """
    rules = "".join(f'[fill="{light}"]{{fill:{dark}}}' for light, dark in _DARK.items())
    return f"@media (prefers-color-scheme:dark){{{rules}}}"


def has_flow(artifact: Artifact) -> bool:
    """Whether an artifact is a graph: some of its entities have inputs."""
    return artifact.stage != "kernels" and any(entity.inputs for entity in artifact.entities)


def plan(record: Record, artifact: Artifact, depth: int | None = None, readable: int = READABLE) -> Plan:
    """Choose the boxes and edges of an artifact's drawing."""
    entities = {entity.id: entity for entity in artifact.entities}
    work = [entity for entity in artifact.entities if entity.kind not in _ENDS and "inside" not in entity.attrs]
    paths = {entity.id: _path(entity, entities) for entity in work}
    depth = _fitting_depth(paths, readable) if depth is None else depth
    home = {entity_id: _box_id(entity_id, path, depth) for entity_id, path in paths.items()}
    boxes: dict[str, Box] = {}
    for entity in work:
        box_id = home[entity.id]
        box = boxes.setdefault(box_id, _box(entity, box_id, paths[entity.id], depth))
        box.closed += box_id != entity.id
    _name_closed(work, boxes)
    _add_chips(artifact, home, boxes, _EdgeNames(input_sources(record), saved_tensors(record)))
    edges = _edges(work, home)
    _type_closed(work, entities, home, boxes)
    return Plan(boxes, edges, depth if any(box.closed for box in boxes.values()) else None, len(work))


def _fitting_depth(paths: Mapping[str, Path], readable: int) -> int:
    """Deepest level at which the drawing still fits; 0 (only outermost modules) if none does."""
    depths = range(max(map(len, paths.values()), default=0), -1, -1)
    return next((depth for depth in depths if len({_box_id(*item, depth) for item in paths.items()}) <= readable), 0)


def _path(entity: Entity, entities: Mapping[str, Entity]) -> Path:
    """Modules and operator bodies around an entity. In a body, the path of the operator's module is not repeated."""
    modules = _modules(entity)
    body = entities.get(str(entity.attrs.get("subgraph")))
    if body is None or not entity.label.startswith(f"{body.label}."):
        return modules
    outer = _modules(body)
    inner = modules[len(outer) :] if modules[: len(outer)] == outer else modules
    return (*_path(body, entities), body.label.rpartition(".")[2], *inner)


def _modules(entity: Entity) -> Path:
    return tuple(part for part in str(entity.attrs.get("module") or "").split(".") if part)


def _common_path(paths: list[Path]) -> Path:
    return tuple(parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))


def _box_id(entity_id: str, path: Path, depth: int) -> str:
    return "module " + ".".join(path[: depth + 1]) if len(path) > depth else entity_id


def _box(entity: Entity, box_id: str, path: Path, depth: int) -> Box:
    module = path[:depth]
    if box_id != entity.id:
        return Box(box_id, path[depth], "", module)
    if "about" in entity.attrs:
        about = shorten(str(entity.attrs["about"]), ABOUT_SHOWN, placeholder=" …")
        return Box(box_id, entity.label, about, module, fill=_KIND_FILLS.get(entity.kind, _WHITE))
    light = moves_no_data(entity)
    note = "" if "target" in entity.attrs else entity.label
    title = f"{entity.label}.grad" if entity.kind == "accumulate" else short_op(entity)
    return Box(box_id, title, tensor_type(entity.attrs), module, note, light)


def _name_closed(work: list[Entity], boxes: Mapping[str, Box]) -> None:
    """Set the class name of each collapsed module, if one of its own ops records the class."""
    types = {f"module {entity.attrs.get('module')}": str(entity.attrs.get("module_type") or "") for entity in work}
    for box in boxes.values():
        box.module_type = types.get(box.id, "")


def _type_closed(
    work: list[Entity], by_id: Mapping[str, Entity], home: Mapping[str, str], boxes: Mapping[str, Box]
) -> None:
    """Set the type of each collapsed module to that of the last tensor that leaves the module."""
    for entity in work:
        for source in entity.inputs:
            if source in home and home[source] != home[entity.id] and boxes[home[source]].closed:
                boxes[home[source]].type = tensor_type(by_id[source].attrs)


def moves_no_data(entity: Entity) -> bool:
    """Whether an op only makes a view of its input, or picks one of its results."""
    return bool(_MOVES_NO_DATA.search(str(entity.attrs.get("target") or "")))


def input_name(entity: Entity, source: str) -> str:
    """Name of a graph input in the user's code (`x`, `args[0]`), or a module's own `weight`; the label if unknown.

    `source` is TorchDynamo's source of the input, or "".
    """
    own = _OWN_TENSOR.search(source)
    return own["name"] if own else _VARIABLE.sub(r"\1", source) or entity.label


def short_op(entity: Entity) -> str:
    """Short name of an op: `aten.mm.default` is `mm`, `torch.nn.functional.relu` is `relu`."""
    target = str(entity.attrs.get("target") or entity.attrs.get("what") or entity.label)
    if match := re.fullmatch(r"<[\w -]*(?:function|method) '?([\w.]+)'?.*>", target):
        target = match[1]
    parts = target.removeprefix("torch.ops.").split(".")
    return parts[1] if len(parts) == 3 and parts[0] != "torch" else parts[-1]


def _edges(work: list[Entity], home: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = {
        (home[source], home[entity.id]): None
        for entity in work
        for source in entity.inputs
        if source in home and home[source] != home[entity.id]
    }
    return tuple(found)


@dataclass(frozen=True)
class _EdgeNames:
    """Names of a record's graph inputs, and its saved tensors: `input_sources` and `saved_tensors`."""

    sources: Mapping[str, str]
    saved: Mapping[str, str]

    def input_chip(self, entity: Entity) -> Chip:
        """Chip of an input, named as in the user's code: `x`, `args[0]`, or a module's own `weight`."""
        source = self.sources.get(entity.id, "")
        if _OWN_TENSOR.search(source) or entity.kind == "get_attr":
            return Chip("parameter", input_name(entity, source), tensor_type(entity.attrs))
        kind = "saved" if entity.id in self.saved.values() else "input"
        return Chip(kind, input_name(entity, source), tensor_type(entity.attrs))

    def result_chips(self, entity: Entity, first: bool) -> list[Chip]:
        """Chips of a graph output: returned, saved for the backward, or both. AOTAutograd puts returned values
        first.
        """
        kept = [Chip("saved", "saved")] if entity.id in self.saved else []
        return [Chip("output", "output"), *kept] if first or not kept else kept


def _add_chips(artifact: Artifact, home: Mapping[str, str], boxes: Mapping[str, Box], names: _EdgeNames) -> None:
    by_id = {entity.id: entity for entity in artifact.entities}
    for entity in artifact.entities:
        if entity.kind == "output":
            for place, source in enumerate(dict.fromkeys(entity.inputs)):
                if source in home:
                    boxes[home[source]].gives += names.result_chips(by_id[source], first=place == 0)
        elif entity.id in home:
            for source in entity.inputs:
                if source in by_id and by_id[source].kind in _ENDS:
                    boxes[home[entity.id]].takes[source] = names.input_chip(by_id[source])


def _add_boxes(graph: Digraph, boxes: Iterable[Box], path: Path) -> None:
    """Add the boxes of this module, and a frame for each inner module with several boxes.

    Nested modules share a frame if the outer one contains nothing else.
    """
    inner: dict[Path, list[Box]] = {}
    for box in boxes:
        inner.setdefault(box.module[: len(path) + 1], []).append(box)
    for module, members in inner.items():
        if module == path or len(members) == 1:
            for box in members:
                graph.node(_quote(box.id), label=_label(box, ".".join(box.module[len(path) :])), tooltip=box.id)
        else:
            _add_frame(graph, members, path, _common_path([box.module for box in members]))


def _add_frame(graph: Digraph, members: list[Box], path: Path, module: Path) -> None:
    with graph.subgraph(name=f"cluster {'.'.join(module)}") as frame:
        frame.attr(label=".".join(module[len(path) :]), labelloc="t", labeljust="l", style="rounded,filled")
        frame.attr(color=_RULE, fillcolor=_FRAMES[len(path) % 2], fontcolor=_OUTSIDE, fontsize="10", margin="9")
        _add_boxes(frame, members, module)


def _label(box: Box, module: str) -> str:
    """Graphviz HTML label of a box: chips of its inputs, its name, type and module, chips of its outputs."""
    rows = [_chip_row(_few(box.takes.values())), f"<TR><TD>{_name(box, module)}</TD></TR>"]
    ops = f"{box.closed} {'op' if box.closed == 1 else 'ops'}" if box.closed else ""
    detail = "   ".join(part for part in (box.type, ops) if part)
    if detail:
        rows.append(f"<TR><TD>{_small(detail)}</TD></TR>")
    rows.append(_chip_row(_few(box.gives)))
    return f"<{_table(box)}{''.join(rows)}</TABLE>>"


def _name(box: Box, module: str) -> str:
    """The op's name, or a collapsed module's name and class; then the module path, if no frame shows it."""
    name = f'<FONT POINT-SIZE="12"><B>{escape(box.title)}</B></FONT>'
    if box.closed:
        name, module = f"{name} {escape(box.module_type)}", f"in {module}" if module else ""
    note = "  ".join(part for part in (box.note, module) if part)
    return f"{name}  {_small(note)}" if note else name


def _table(box: Box) -> str:
    style = "ROUNDED,DASHED" if box.light else "ROUNDED"
    fill = "#dfe6ee" if box.closed else box.fill
    return (
        f'<TABLE BORDER="1" STYLE="{style}" COLOR="{_RULE}" BGCOLOR="{fill}" CELLBORDER="0" CELLSPACING="0"'
        ' CELLPADDING="3">'
    )


def _few(chips: Iterable[Chip]) -> list[Chip]:
    """Limit the chips of a box: more than `CHIPS_SHOWN` of a kind become one chip with their number."""
    kinds: dict[str, list[Chip]] = {}
    for chip in chips:
        kinds.setdefault(chip.kind, []).append(chip)
    return [
        chip
        for kind, members in kinds.items()
        for chip in (members if len(members) <= CHIPS_SHOWN else [Chip(kind, f"{len(members)} {_MANY[kind]}")])
    ]


def _chip_row(chips: list[Chip]) -> str:
    if not chips:
        return ""
    cells = "".join(
        f'<TD BGCOLOR="{_CHIP[chip.kind]}" STYLE="ROUNDED">{_small(f"{chip.label} {chip.type}".rstrip(), _INK)}</TD>'
        for chip in chips
    )
    return f'<TR><TD><TABLE BORDER="0" CELLSPACING="2" CELLPADDING="2"><TR>{cells}</TR></TABLE></TD></TR>'


def _small(text: str, colour: str = _GREY) -> str:
    return f'<FONT POINT-SIZE="9" COLOR="{colour}">{escape(text)}</FONT>'


def _caption(artifact: Artifact, layout: Plan) -> str:
    title = f"{artifact.title}  {artifact.graph}".rstrip()
    ops = f"{layout.entities} {'op' if layout.entities == 1 else 'ops'}"
    if artifact.stage == "autograd":
        ops = counts((artifact,))
    if artifact.stage == "frame_map":
        return f"{title}: {artifact.text.partition(chr(10))[0]}"
    if layout.depth is None:
        return f"{title}: {ops}"
    return f"{title}: {ops} in {len(layout.boxes)} boxes, modules closed below depth {layout.depth}"


def _quote(name: str) -> str:
    """Escape a Graphviz node name, as a colon would be read as a port."""
    return name.replace(":", "%3A")


PICTURE_BOXES, PICTURE_BYTES = 80, 90_000
"""Maximum number of boxes and bytes of a drawing in a saved notebook."""


def graph_picture(record: Record, artifact: Artifact, title: str) -> str:
    """HTML of one graph's drawing, unfolded; "" if Graphviz is not installed or the SVG exceeds PICTURE_BYTES."""
    try:
        svg = plain_svg(drawing(record, artifact, readable=PICTURE_BOXES).pipe(format="svg", encoding="utf-8"))
    except (ExecutableNotFound, CalledProcessError):
        return ""
    return details(safe(title), picture(artifact.title, svg), is_open=True) if len(svg) <= PICTURE_BYTES else ""


def plain_svg(svg: str) -> str:
    """Strip an SVG of parts that an image can't use (ids, tooltips, comments, repeated fonts); add `dark_style`."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->\s*|<title>.*?</title>\s*|</?a\b[^>]*>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:id|class|font-family)="[^"]*"', "", svg)
    svg = svg.replace("<svg ", '<svg font-family="Arial,Helvetica,sans-serif" ', 1)
    opening = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:opening]}<style>{dark_style()}</style>{svg[opening:]}"
