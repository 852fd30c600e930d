"""Guards by what they are about: for each compilation a tree of arguments, each guard linked to the line that asked for
it and to the graph input that it guards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.capture.function_names import function_name
from compiler.record import Condition, Entity, Frame, Guard, Record, Symbol
from compiler.record.plain_text import one_line
from explorer.findings.capture_text import guard_cells, guards_head, range_text
from explorer.reading.plain_text import columns
from explorer.reading.provenance import input_sources
from explorer.reading.source_lines import SourceLines
from explorer.reading.spots import line_spot
from explorer.render.finding import Finding, LinkedText

#: So many guards stand together without being told apart by what follows in their argument's name.
TOGETHER = 8
_PART = re.compile(r"^builtin |^(?:global )?[\w']+|(?<=^builtin )\w+|\.\w+|\[[^\]]*\]")
_ABOUT_ALL = "torch and the process"
_OTHERS = "in classes and dictionaries: "


def guards_finding(record: Record) -> Finding | None:
    """The guards of all compilations; None where there are none."""
    if not record.guards:
        return None
    text, lines, inputs = LinkedText(), SourceLines(record), graph_inputs(record)
    of_frame = guards_by_frame(record)
    for frame in record.frames:
        if frame.id in of_frame:
            add_lines(text, frame, of_frame[frame.id], lines, inputs)
    frames = [frame_data(frame, of_frame[frame.id], record, lines) for frame in record.frames if frame.id in of_frame]
    return Finding(text.artifact("guards", "guards"), "view", "guards", {"frames": frames})


def guard_id(guard: Guard) -> str:
    """The id of a guard's entity."""
    return f"guards.{guard.id}"


def guards_by_frame(record: Record) -> dict[str, list[Guard]]:
    found: dict[str, list[Guard]] = {}
    for guard in record.guards:
        found.setdefault(guard.frame, []).append(guard)
    return found


def graph_inputs(record: Record) -> dict[tuple[str, str], str]:
    """Frame (`0/0`) and source (`L['x']`) -> the captured graph's input that is read from there."""
    frames = {name: frame.id for frame in record.frames for name in frame.graphs}
    captured = [artifact for artifact in record.of_stage("captured") if artifact.id in frames]
    graphs = {entity.id: frames[artifact.id] for artifact in captured for entity in artifact.entities}
    return {(graphs[name], source): name for name, source in input_sources(record).items() if name in graphs}


def add_lines(
    text: LinkedText, frame: Frame, guards: Sequence[Guard], lines: SourceLines, inputs: dict[tuple[str, str], str]
) -> None:
    """The guards of one compilation, those on one argument together, those on the insides of modules last."""
    if text.blocks:
        text.add("")
    text.add(guards_head(frame, guards))
    for internal in (False, True):
        some = by_argument(guard for guard in guards if guard.internal is internal)
        if internal and some:
            text.add("  on the insides of modules and of torch:")
        rows = columns([guard_cells(guard) for guard in some], right=(2,)) if some else []
        for guard, row in zip(some, rows, strict=True):
            text.add(f"  {row}", guard_entity(guard, lines, inputs))


def by_argument(guards: Iterable[Guard]) -> list[Guard]:
    """Those on one argument stand together, in the order of their first."""
    some = list(guards)
    first = {guard.argument: index for index, guard in reversed(list(enumerate(some)))}
    return sorted(some, key=lambda guard: first[guard.argument])


def guard_entity(guard: Guard, lines: SourceLines, inputs: dict[tuple[str, str], str]) -> Entity:
    """A guard as an entity; it comes from the line that asked for it, and is about an input of the graph."""
    asked = lines.id_of(guard.file, guard.line)
    about = inputs.get((guard.frame, guard.source), "")
    attrs = {"argument": guard.argument, "frame": guard.frame, "check": guard.kind, "failed": guard.failed}
    return Entity(guard_id(guard), "guard", words(guard), attrs, (), tuple(name for name in (asked, about) if name))


def words(guard: Guard) -> str:
    return one_line(guard.words or " and ".join(guard.code))


def frame_data(frame: Frame, guards: Sequence[Guard], record: Record, lines: SourceLines) -> dict[str, Any]:
    """One compilation: what is left open and within which bounds, and its guards as two trees."""
    own = [guard for guard in guards if not guard.internal]
    inside = [guard for guard in guards if guard.internal]
    return {
        "frame": frame.id,
        "function": function_name(frame.function),
        "at": line_spot(frame.file, frame.line, lines),
        "seconds": frame.guard_seconds,
        "failed": sum(guard.failed for guard in guards),
        "symbols": [symbol_data(item, lines) for item in record.symbols if item.frame == frame.id],
        "own": tree(own).data(lines),
        "inside": tree(inside).data(lines),
    }


def symbol_data(item: Symbol, lines: SourceLines) -> dict[str, Any]:
    """A symbol as one constraint, what it stands for, and the lines that bound it."""
    by = item.specialized_by
    fixed = [reason(f"became {item.became} because of", by.file, by.line, by.code, lines)] if by else []
    return {
        "range": f"{item.name} = {item.became}" if item.became else range_text(item),
        "source": ", ".join((item.source, *item.also)),
        "hint": item.hint,
        "whys": fixed + [condition_data(condition, lines) for condition in item.conditions],
    }


def condition_data(found: Condition, lines: SourceLines) -> dict[str, Any]:
    why = ": 0 and 1 have code of their own; first used at" if found.default else " because of"
    return reason(f"{found.words}{why if found.file else ''}", found.file, found.line, found.code, lines)


def reason(words: str, file: str, line: int, code: str, lines: SourceLines) -> dict[str, Any]:
    """What is so, and the line that made it so."""
    return {"words": words, "at": line_spot(file, line, lines) if file else None, "code": one_line(code)}


@dataclass
class Branch:
    """Guards whose arguments begin alike: `name` is what of it they share, from the start."""

    name: str
    guards: list[Guard] = field(default_factory=list)
    branches: dict[str, Branch] = field(default_factory=dict)

    def add(self, guard: Guard, parts: Sequence[str]) -> None:
        if not parts:
            self.guards.append(guard)
            return
        self.branches.setdefault(parts[0], Branch(self.name + parts[0])).add(guard, parts[1:])

    def all(self) -> list[Guard]:
        return [*self.guards, *(guard for branch in self.branches.values() for guard in branch.all())]

    def data(self, lines: SourceLines) -> dict[str, Any]:
        """As JSON. A chain of branches without guards of their own is one; few guards stand in one branch."""
        guards, shown = self.all(), self.merged()
        flat = bool(self.name) and (len(guards) <= TOGETHER or not shown.branches)
        return {
            "name": shown.name if not flat else self.common(guards),
            "count": len(guards),
            "failed": sum(guard.failed for guard in guards),
            "seconds": sum(guard.seconds or 0.0 for guard in guards),
            "guards": [guard_data(guard, lines) for guard in (guards if flat else shown.guards)],
            "branches": [] if flat else [branch.data(lines) for branch in shown.branches.values()],
        }

    def merged(self) -> Branch:
        if self.name and not self.guards and len(self.branches) == 1:
            return next(iter(self.branches.values())).merged()
        return self

    def common(self, guards: Sequence[Guard]) -> str:
        """The longest argument that all of some guards begin with."""
        parts = [argument_parts(guard) for guard in guards]
        same = 0
        while all(len(some) > same and some[same] == parts[0][same] for some in parts):
            same += 1
        return "".join(parts[0][:same]) or self.name


def tree(guards: Iterable[Guard]) -> Branch:
    """Guards by argument: below `self` those on `self.drop`, below that those on `self.drop.training`.

    Those on arguments come first, then those on globals, then those that are about no name.
    """
    root = Branch("")
    for guard in sorted(guards, key=_distance):
        root.add(guard, argument_parts(guard))
    return root


def _distance(guard: Guard) -> int:
    return 2 if not guard.argument else int(guard.argument.startswith(("global ", "builtin ")))


def argument_parts(guard: Guard) -> tuple[str, ...]:
    """`self`, `.drop`, `.training`; one that is no such path stands with others of that kind."""
    if not guard.argument:
        return (_ABOUT_ALL,)
    parts = tuple(_PART.findall(guard.argument))
    return parts if "".join(parts) == guard.argument else (_OTHERS, guard.argument)


def guard_data(guard: Guard, lines: SourceLines) -> dict[str, Any]:
    return {
        "id": guard_id(guard),
        "words": words(guard),
        "kind": guard.kind,
        "code": list(guard.code),
        "at": line_spot(guard.file, guard.line, lines) if guard.file else None,
        "seconds": guard.seconds,
        "failed": guard.failed,
    }
