"""Map of compiled code in execution order: a function, its graph, the break, the resume function, and so on.

Compilations of one code object are side by side, between the function and the break that ends all of them. An edge
leads from each call site (a break or plain code) to the called function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from compiler.capture.function_names import function_name
from compiler.record import Entity, Frame, GraphBreak, Record
from compiler.record.plain_text import one_line, pluralize, size_text
from explorer.findings.breaks import break_id
from explorer.findings.program_map import program_chart
from explorer.reading.cause import closest_failure, culprit_code, users_place
from explorer.reading.provenance import place_text
from explorer.reading.shapes import seconds_text
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Code as CodePart
from explorer.render.document import Only, payload
from explorer.render.finding import Finding, LinkedText
from explorer.render.text import add_part

STAGE = "frame_map"
MANY = 3
"""Minimum number of fully uncompiled functions, called from one place, that are drawn as one node."""
CODE_SHOWN = 40
"""Maximum number of characters of a break's code on its node."""
_ORDER = ("graph", "break", "plain")


def frame_map_finding(record: Record) -> Finding | None:
    """Finding with the map of a record's frames; None without frames, or for one compiled frame without breaks."""
    whole = len(record.frames) == 1 and record.frames[0].outcome == "compiled"
    if not record.frames or (whole and not record.breaks):
        return None
    text = FrameMap(record).as_text()
    tree = tuple("\n".join(text.blocks).splitlines())
    chart = program_chart(record, STAGE, {entity.id for entity in text.entities})
    text.add(f"\n{chart.table.caption}:\n")
    add_part(text, chart, {})
    document = (chart, Only(("html",), (CodePart(tree, language=""),)))
    return Finding(text.artifact(STAGE, "frame map"), "view", "program_map", payload(document), document)


@dataclass
class Part:
    """A node of the map. `label` and `about` are its text.

    `inputs` are ids of its predecessors, `calls` ids of the functions that it calls. `stands_for` are merged nodes.
    """

    id: str
    kind: str
    label: str
    about: str
    attrs: dict[str, Any] = field(default_factory=dict)
    origins: tuple[str, ...] = ()
    inputs: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    stands_for: list[Part] = field(default_factory=list)

    def entity(self) -> Entity:
        attrs = {"about": self.about, **self.attrs}
        return Entity(self.id, self.kind, self.label, attrs, tuple(self.inputs), tuple(dict.fromkeys(self.origins)))


@dataclass
class Code:
    """A code object. `head` is its function or resume function, `parts` are its other nodes in order.

    `goes_on` are ids of the resume functions after its breaks. `loops` is true if a break resumes earlier code.
    """

    head: Part
    name: str
    frames: list[Frame] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    goes_on: list[str] = field(default_factory=list)
    loops: bool = False


class FrameMap:
    """The parts of a record's map by code object, and the edges between them."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.lines = SourceLines(record)
        self.graphs = {artifact.id: artifact for artifact in record.of_stage("captured")}
        self.breaks = {found.id: found for found in record.breaks}
        self.triggers = {found.frame: _trigger(closest_failure(found), found.reasons) for found in record.recompiles}
        self.codes: dict[str, Code] = {}
        self.parts: dict[str, Part] = {}
        self.ends: dict[str, Part] = {}
        self.broken: dict[str, Part] = {}
        for frame in record.frames:
            self._add(frame)
        for frame in record.frames:
            self._connect(frame)
        for part in list(self.parts.values()):
            self._gather_plain(part)

    # The parts

    def _add(self, frame: Frame) -> None:
        code = self.codes.get(code_key(frame)) or self._new_code(frame)
        code.frames.append(frame)
        end = code.head
        for graph in frame.graphs:
            end = self._follow(end, code, self._graph(graph, frame))
        mine = [found for found in self.record.breaks if found.frame == frame.id]
        for found in mine:
            end = self.broken[found.id] = self._follow(end, code, self._break(found, code))
        if end.kind != "plain" and (frame.outcome != "compiled" or any(found.outcome == "plain" for found in mine)):
            end = self._follow(end, code, self._plain(frame, code, mine))
        self.ends[frame.id] = end

    def _follow(self, before: Part, code: Code, part: Part) -> Part:
        """Append a part after `before` and return it. Compilations of one code object share parts with the same id."""
        part = self.parts.setdefault(part.id, part)
        if part not in code.parts:
            code.parts.append(part)
        if before.id not in part.inputs:
            part.inputs.append(before.id)
        return part

    def _new_code(self, frame: Frame) -> Code:
        name, place = function_name(frame.function), place_text(frame.file, frame.line)
        goes_on = name != frame.function
        label = f"{name} resumes from line {frame.line}" if goes_on else name
        kind = "resume" if goes_on else "function"
        broke = any(found.frame == frame.id for found in self.record.breaks)
        if frame.outcome != "compiled" and not broke:
            kind, label = "plain", f"plain Python: {label}"
            place = f"{place}: {one_line(frame.reason)}" if frame.reason else place
        origins = (self.lines.id_of(frame.file, frame.line), *self._plain_lines([frame]))
        head = Part(f"{STAGE}.{code_key(frame)}", kind, label, place, origins=tuple(filter(None, origins)))
        self.parts[head.id] = head
        self.codes[code_key(frame)] = Code(head, name)
        return self.codes[code_key(frame)]

    def _graph(self, name: str, frame: Frame) -> Part:
        artifact = self.graphs.get(name)
        calls = [entity.id for entity in artifact.entities if entity.kind == "call"] if artifact else []
        seconds = sum(item.seconds for item in self.record.timings if (item.subject, item.what) == (name, "compile"))
        again = self.triggers.get(frame.id, "")
        took = f"captured in {seconds_text(seconds)}" if seconds else ""
        attrs: dict[str, Any] = {"ops": len(calls)} | ({"seconds": seconds} if seconds else {})
        about = f"recompiled: {again}" if again else took
        label = f"graph {artifact.graph}: {pluralize(len(calls), 'op')}" if artifact else f"graph {frame.id}"
        return Part(f"{STAGE}.{name}", "graph", label, about, attrs, tuple(calls))

    def _break(self, found: GraphBreak, code: Code) -> Part:
        """Part for a break. Compilations that break at the same place share a part."""
        for earlier, part in self.broken.items():
            if part in code.parts and _same_place(self.breaks[earlier], found):
                part.origins += self._break_origins(found)
                return part
        tensors = pluralize(found.crossing, "tensor")
        size = f" ({size_text(found.crossing_bytes)})" if found.crossing_bytes else ""
        crosses = f"; {tensors}{size} cross{'es' if found.crossing == 1 else ''}" if found.crossing else ""
        label = f"break: {_short(culprit_code(found) or found.kind)}"
        attrs = {"crossing": found.crossing, "crossing_bytes": found.crossing_bytes}
        about = f"{users_place(found)}{crosses}"
        return Part(f"{STAGE}.{found.id}", "break", label, about, attrs, self._break_origins(found))

    def _break_origins(self, found: GraphBreak) -> tuple[str, ...]:
        return (*self.lines.ids(found.chain), break_id(found))

    def _plain(self, frame: Frame, code: Code, breaks: Iterable[GraphBreak]) -> Part:
        rest = frame.outcome == "compiled"
        label = f"plain Python: {'the rest of ' if rest else ''}{code.name}"
        limit = frame.reason if not any(breaks) else ""
        origins = self._plain_lines(code.frames)
        return Part(f"{code.head.id} plain", "plain", label, one_line(limit), origins=origins)

    def _plain_lines(self, frames: Iterable[Frame]) -> tuple[str, ...]:
        found = (self.lines.id_of(frame.file, line) for frame in frames for line in frame.plain)
        return tuple(name for name in found if name)

    # Edges

    def _connect(self, frame: Frame) -> None:
        frames = {each.id: each for each in self.record.frames}
        known = [found for found in self.record.breaks if found.id in self.broken and found.frame in frames]
        after = [found for found in known if found.id == frame.resumes or frame.id in found.resumed_by]
        code = self.codes[code_key(frame)]
        for found in after:
            self._go_on(self.broken[found.id], self.codes[code_key(frames[found.frame])], code)
        if not after and frame.caller in self.ends:
            self._call(self._find_calling_part(frame), code)

    def _go_on(self, broken: Part, before: Code, code: Code) -> None:
        if self._comes_before(code.head, broken):
            before.loops = True
            return
        if broken.id not in code.head.inputs:
            code.head.inputs.append(broken.id)
        if code.head.id not in before.goes_on:
            before.goes_on.append(code.head.id)

    def _call(self, source: Part, code: Code) -> None:
        if source.id not in code.head.inputs and not self._comes_before(code.head, source):
            code.head.inputs.append(source.id)
            source.calls.append(code.head.id)

    def _find_calling_part(self, frame: Frame) -> Part:
        """Part of the caller that makes the call: the break on the calling line, else the end of the caller."""
        line = frame.called_at.line if frame.called_at else 0
        at = [self.broken[found.id] for found in self.record.breaks
              if found.frame == frame.caller and found.chain and found.chain[0].line == line]  # fmt: skip
        return at[-1] if at else self.ends[frame.caller]

    def _gather_plain(self, caller: Part) -> None:
        """Merge the uncompiled functions that a part calls into one node if there are many."""
        plain = [self.parts[name] for name in caller.calls if self._is_all_plain(name)]
        if len(plain) < MANY:
            return
        label, names = f"plain Python: {len(plain)} functions", [part.label.partition(": ")[2] for part in plain]
        origins = tuple(name for part in plain for name in part.origins)
        gathered = Part(f"{caller.id} calls", "plain", label, ", ".join(names), {}, origins, [caller.id], [], plain)
        for part in plain:
            del self.parts[part.id]
        caller.calls = [gathered.id, *(name for name in caller.calls if name in self.parts)]
        self.parts[gathered.id] = gathered

    def _is_all_plain(self, name: str) -> bool:
        code = next((code for code in self.codes.values() if code.head.id == name), None)
        part = self.parts[name]
        empty = code is not None and not (code.parts or code.goes_on)
        return part.kind == "plain" and empty and len(part.inputs) == 1 and not part.calls

    def _comes_before(self, part: Part, other: Part) -> bool:
        """Whether a path leads from `part` to `other`."""
        seen, todo = set[str](), [other.id]
        while todo:
            name = todo.pop()
            if name == part.id:
                return True
            if name not in seen:
                seen.add(name)
                todo.extend(self.parts[name].inputs)
        return False

    # As text

    def as_text(self) -> LinkedText:
        """The map as an indented tree. Called functions are below the call; resume functions are at the same level."""
        text = LinkedText()
        text.add(self._summary())
        by_head = {code.head.id: code for code in self.codes.values()}
        seen: set[str] = set()
        todo = [(code.head.id, 0) for code in reversed(self.codes.values()) if not code.head.inputs]
        while todo:
            name, depth = todo.pop()
            part = self.parts[name]
            if name in seen:
                text.add(f"{'  ' * depth}{part.label}, as above", within=[name])
                continue
            seen.add(name)
            rows = [_line(each, depth, by_head.get(name)) for each in part.stands_for or [part]]
            text.add("\n".join(rows), part.entity())
            todo += reversed(list(self._list_parts_below(part, by_head.get(name), depth)))
        return text

    def _list_parts_below(self, part: Part, code: Code | None, depth: int) -> Iterator[tuple[str, int]]:
        """Parts that follow a part in the tree, each with its depth."""
        yield from ((name, depth + 1) for name in part.calls)
        if code is not None:
            yield from (
                (inner.id, depth + 1) for inner in sorted(code.parts, key=lambda inner: _ORDER.index(inner.kind))
            )
            yield from ((name, depth) for name in code.goes_on)

    def _summary(self) -> str:
        kinds = [part.kind for part in self.parts.values()]
        ops = sum(part.attrs.get("ops", 0) for part in self.parts.values())
        words = [f"{pluralize(kinds.count('graph'), 'graph')} of {pluralize(ops, 'op')}"]
        words.append(pluralize(kinds.count("break"), "break"))
        words.append(pluralize(len({code.name for code in self.codes.values()}), "function"))
        if plain := sum(len(part.stands_for) or 1 for part in self.parts.values() if part.kind == "plain"):
            words.append(f"{plain} as plain Python")
        return ", ".join(words)


def code_key(frame: Frame) -> str:
    """Key shared by all compilations of a code object."""
    return frame.id if frame.code < 0 else str(frame.code)


def _same_place(one: GraphBreak, other: GraphBreak) -> bool:
    return (one.kind, one.chain) == (other.kind, other.chain)


def _trigger(failure: Any, reasons: tuple[str, ...]) -> str:
    return failure.words if failure is not None else one_line(reasons[0]) if reasons else ""


def _short(code: str) -> str:
    line = one_line(code)
    return line if len(line) <= CODE_SHOWN else f"{line[: CODE_SHOWN - 1]}…"


def _line(part: Part, depth: int, code: Code | None) -> str:
    loops = " (in a loop: goes back)" if code is not None and code.loops else ""
    about = f"  [{part.about}]" if part.about else ""
    return f"{'  ' * depth}{part.label}{about}{loops}"
