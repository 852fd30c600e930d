"""Guards by what they are about: for each compilation a tree of arguments, each guard linked to the line that asked for
it and to the graph input that it guards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from compiler.capture.function_names import function_name
from compiler.record import Entity, Frame, Guard, Record, Span, Symbol
from compiler.record.plain_text import one_line, pluralize
from explorer.reading.plain_text import clip
from explorer.reading.provenance import input_sources, place_text
from explorer.reading.shapes import seconds_text
from explorer.reading.source_lines import SourceLines
from explorer.render.document import (
    Choice,
    Code,
    Fold,
    Items,
    Only,
    Parts,
    Piece,
    Row,
    Section,
    Table,
    Tag,
    Text,
    Words,
)
from explorer.render.finding import Finding
from explorer.render.places import line_link
from explorer.render.text import document_finding

TOGETHER = 8
"""So many guards stand together without being told apart by what follows in their argument's name."""
FEW, FEW_IN_BRANCH = 24, 4
"""So many guards of a compilation, and of a branch, the view shows unfolded."""
COSTLIEST = 200
WORDS_WIDTH = 72
_PART = re.compile(r"^builtin |^(?:global )?[\w']+|(?<=^builtin )\w+|\.\w+|\[[^\]]*\]")
_ABOUT_ALL = "torch and the process"
_OTHERS = "in classes and dictionaries: "
INSIDES = "on the insides of modules and of torch"


def guards_finding(record: Record) -> Finding | None:
    """The guards of all compilations; None where there are none."""
    if not record.guards:
        return None
    lines, inputs = SourceLines(record), graph_inputs(record)
    of_frame = guards_by_frame(record)
    frames = [frame for frame in record.frames if frame.id in of_frame]
    told = tuple(frame_section(frame, of_frame[frame.id], insides=True) for frame in frames)
    trees = tuple(_compilation(frame, of_frame[frame.id], record, lines, frame is frames[0]) for frame in frames)
    lists = ((name, (table,)) for name, table in _lists(record.guards, lines))
    drawn = Choice("Order of the guards", (("By argument", trees), *lists))
    entities = {guard_id(guard): guard_entity(guard, lines, inputs) for guard in record.guards}
    document = [Only(("text", "html"), told), Only(("view",), (drawn,))]
    return document_finding("guards", "guards", document, entities, is_open=False)


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


def guard_entity(guard: Guard, lines: SourceLines, inputs: dict[tuple[str, str], str]) -> Entity:
    """A guard as an entity; it comes from the line that asked for it, and is about an input of the graph."""
    asked = lines.id_of(guard.file, guard.line)
    about = inputs.get((guard.frame, guard.source), "")
    attrs = {"argument": guard.argument, "frame": guard.frame, "check": guard.kind, "failed": guard.failed}
    return Entity(guard_id(guard), "guard", words(guard), attrs, (), tuple(name for name in (asked, about) if name))


def words(guard: Guard) -> str:
    return one_line(guard.words or " and ".join(guard.code))


# As lines


def frame_section(frame: Frame, guards: Sequence[Guard], *, insides: bool) -> Section:
    """The guards of one compilation, those on one argument together, those on the insides of modules last if wanted."""
    own = [guard for guard in guards if not guard.internal]
    inside = [guard for guard in guards if guard.internal]
    counts = f"{pluralize(len(own), 'guard')}, and {len(inside)} {INSIDES}"
    took = frame.guard_seconds
    time = "" if took is None else f"; one check of all takes {seconds_text(took)} with cold caches; each alone, warm:"
    place = place_text(frame.file, frame.line)
    heading = f"{frame.id}  {function_name(frame.function)} ({place}): {counts}{time}"
    parts: list[Parts] = [_lines(own)] if own else []
    if inside and insides:
        parts += [Text(f"{INSIDES}:", "line"), _lines(inside)]
    return Section(tuple(parts), heading)


def _lines(guards: Sequence[Guard]) -> Table:
    """A line for each guard; those on one argument stand together, in the order of their first."""
    first = {guard.argument: index for index, guard in reversed(list(enumerate(guards)))}
    ordered = sorted(guards, key=lambda guard: first[guard.argument])
    return Table((), tuple(Row(guard_cells(guard), (guard_id(guard),)) for guard in ordered), right=(2,))


def guard_cells(guard: Guard) -> tuple[str, str, str, str]:
    place = place_text(guard.file, guard.line) if guard.file else ""
    cost = "" if guard.seconds is None else seconds_text(guard.seconds)
    return clip(words(guard), WORDS_WIDTH), place, cost, _failure_words(guard.failed)


def _failure_words(times: int) -> str:
    return f"failed {pluralize(times, 'time')}" if times else ""


def range_text(item: Symbol) -> str:
    """The bounds of a symbol: `2 <= s0 <= 64`."""
    low = "" if item.low is None else f"{item.low} <= "
    high = "" if item.high is None else f" <= {item.high}"
    return f"{low}{item.name}{high}" if low or high else "any"


# In the view


def _lists(guards: Sequence[Guard], lines: SourceLines) -> Iterator[tuple[str, Table]]:
    """Guards in one list: those that cost most, and those that failed most."""
    timed = sorted((guard for guard in guards if guard.seconds), key=lambda guard: -(guard.seconds or 0.0))
    failed = sorted((guard for guard in guards if guard.failed), key=lambda guard: -guard.failed)
    for name, found in (("By cost", timed[:COSTLIEST]), ("Failed", failed)):
        if found:
            yield name, Table((), tuple(_row(guard, lines, guard.frame) for guard in found), style="guards")


def _compilation(frame: Frame, guards: Sequence[Guard], record: Record, lines: SourceLines, is_open: bool) -> Fold:
    """One compilation: what is left open and within which bounds, and its guards as two trees."""
    own, inside = (tree(guard for guard in guards if guard.internal is internal) for internal in (False, True))
    count = len(own.all())
    title: Words = (Tag(function_name(frame.function), "strong"), " ", Tag(frame.id, "place"),
             Tag(f" {pluralize(count, 'guard')} + {len(inside.all()):,} inside", "muted"),
             *_facts(frame.guard_seconds, sum(guard.failed for guard in guards),
                     "one check of all of them, with cold caches"))  # fmt: skip
    where = line_link(frame.file, frame.line, lines)
    parts: list[Parts] = [Text(("Compiled from ", where, ". Used again only if all of this holds:"), "why")]
    parts += [Text(told, "why")] if (told := _both_times(frame.guard_seconds, guards)) else []
    symbols = [item for item in record.symbols if item.frame == frame.id]
    if symbols:
        items = Items(tuple(line for item in symbols for line in symbol_lines(item, lines)))
        parts.append(Section((items,), "left open", "symbols"))
    parts += own.parts(lines, count <= FEW)
    within = Fold(f"{pluralize(len(inside.all()), 'guard')} {INSIDES}", tuple(inside.parts(lines, False)))
    return Fold(title, (*parts, within), is_open, "compilation")


def _facts(seconds: float | None, failed: int, what: str) -> Iterator[Tag]:
    if failed:
        yield Tag(f" {_failure_words(failed)}", "failed")
    if seconds:
        yield Tag(f" {seconds_text(seconds)}", "muted", f"What {what} costs")


def _both_times(whole: float | None, guards: Sequence[Guard]) -> str:
    """Why the time of all is not the sum of the times of each: both are measured, in different ways."""
    timed = [guard.seconds for guard in guards if guard.seconds is not None]
    if not whole or not timed:
        return ""
    return (
        f"One check of all takes {seconds_text(whole)} with the CPU's caches emptied before. Each alone, caches warm: "
        f"{seconds_text(sum(timed))} in sum, of the {pluralize(len(timed), 'guard')} that could be timed."
    )


def symbol_lines(item: Symbol, lines: SourceLines) -> Iterator[Words]:
    """A symbol as one constraint, what it stands for, and the lines that bound it."""
    bounds = f"{item.name} = {item.became}" if item.became else range_text(item)
    hint = "" if item.hint is None else f", {item.hint} when it was compiled"
    yield Tag(bounds, "now"), f" `{', '.join((item.source, *item.also))}`{hint}"
    if item.specialized_by:
        yield _reason(f"became {item.became} because of", item.specialized_by, lines)
    for found in item.conditions:
        why = ": 0 and 1 have code of their own; first used at" if found.default else " because of"
        span = Span(found.file, found.line, code=found.code)
        yield _reason(f"{found.words}{why if found.file else ''}", span, lines)


def _reason(told: str, span: Span, lines: SourceLines) -> Words:
    """What is so, and the line that made it so."""
    if not span.file:
        return Tag(told, "muted")
    return Tag(f"{told} ", "muted"), line_link(span.file, span.line, lines), f" `{one_line(span.code)}`"


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

    def parts(self, lines: SourceLines, is_open: bool) -> list[Parts]:
        """Its own guards, then its branches. A chain of branches without guards of their own is one; few guards stand
        in one branch.
        """
        shown = self.skip_chain()
        guards = self.all() if self.is_flat() else shown.guards
        rows = (Table((), tuple(_row(guard, lines) for guard in guards), style="guards"),) if guards else ()
        below = () if self.is_flat() else shown.branches.values()
        return [*rows, *(part for branch in below for part in branch.as_folds(lines, is_open))]

    def as_folds(self, lines: SourceLines, is_open: bool) -> list[Parts]:
        """Fold the branch under its name; a single guard is not folded."""
        guards, inside = self.all(), self.parts(lines, is_open)
        if len(guards) == 1:
            return inside
        name = self.common(guards) if self.is_flat() else self.skip_chain().name
        failed = sum(guard.failed for guard in guards)
        facts = _facts(sum(guard.seconds or 0.0 for guard in guards), failed, "all of them, one by one")
        title: Words = (f"`{name}`", Tag(f" {len(guards)}", "muted"), *facts)
        return [Fold(title, tuple(inside), is_open or failed > 0 or len(guards) <= FEW_IN_BRANCH, "branch")]

    def is_flat(self) -> bool:
        """Whether its guards stand in one list."""
        return bool(self.name) and (len(self.all()) <= TOGETHER or not self.skip_chain().branches)

    def skip_chain(self) -> Branch:
        if self.name and not self.guards and len(self.branches) == 1:
            return next(iter(self.branches.values())).skip_chain()
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


def _row(guard: Guard, lines: SourceLines, frame: str = "") -> Row:
    """A guard in words, its check as code to unfold, its cost, and the line that asked for it."""
    told: tuple[Piece, ...] = (Tag(f"{frame} ", "place"), words(guard)) if frame else (words(guard),)
    asked = (" ", line_link(guard.file, guard.line, lines)) if guard.file else ()
    check = Fold("code", (Code(guard.code, language=""),))
    facts = tuple(_facts(guard.seconds, guard.failed, "this check"))
    return Row((told, (*facts, *asked)), (guard_id(guard),), title=f"Check: {guard.kind}", parts=(check,))
