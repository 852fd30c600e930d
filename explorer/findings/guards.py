"""Guards by argument, as a tree for each compilation. Each guard is linked to the line that caused it and to the graph
input that it guards.
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
"""Maximum number of guards in a branch that are listed flat, without subbranches."""
FEW, FEW_IN_BRANCH = 24, 4
"""Maximum numbers of guards, of a compilation and of a branch, that the view shows unfolded."""
COSTLIEST = 200
WORDS_WIDTH = 72
_PART = re.compile(r"^builtin |^(?:global )?[\w']+|(?<=^builtin )\w+|\.\w+|\[[^\]]*\]")
_ABOUT_ALL = "torch and the process"
_OTHERS = "in classes and dictionaries: "
INSIDES = "on the insides of modules and of torch"


def guards_finding(record: Record) -> Finding | None:
    """Finding with the guards of all compilations; None without guards."""
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
    """Id of a guard's entity."""
    return f"guards.{guard.id}"


def guards_by_frame(record: Record) -> dict[str, list[Guard]]:
    found: dict[str, list[Guard]] = {}
    for guard in record.guards:
        found.setdefault(guard.frame, []).append(guard)
    return found


def graph_inputs(record: Record) -> dict[tuple[str, str], str]:
    """Frame (`0/0`) and source (`L['x']`) -> id of the captured graph's input with this source."""
    frames = {name: frame.id for frame in record.frames for name in frame.graphs}
    captured = [artifact for artifact in record.of_stage("captured") if artifact.id in frames]
    graphs = {entity.id: frames[artifact.id] for artifact in captured for entity in artifact.entities}
    return {(graphs[name], source): name for name, source in input_sources(record).items() if name in graphs}


def guard_entity(guard: Guard, lines: SourceLines, inputs: dict[tuple[str, str], str]) -> Entity:
    """Entity of a guard, linked to the line that caused it and to the graph input that it guards."""
    asked = lines.id_of(guard.file, guard.line)
    about = inputs.get((guard.frame, guard.source), "")
    attrs = {"argument": guard.argument, "frame": guard.frame, "check": guard.kind, "failed": guard.failed}
    return Entity(guard_id(guard), "guard", words(guard), attrs, (), tuple(name for name in (asked, about) if name))


def words(guard: Guard) -> str:
    return one_line(guard.words or " and ".join(guard.code))


# As lines


def frame_section(frame: Frame, guards: Sequence[Guard], *, insides: bool) -> Section:
    """Guards of one compilation, by argument. With `insides`, guards on the insides of modules come last; else they are
    only counted.
    """
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
    """Table of guards, one per line, grouped by argument in order of first occurrence."""
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
    """Bounds of a symbol: `2 <= s0 <= 64`; `any` without bounds."""
    low = "" if item.low is None else f"{item.low} <= "
    high = "" if item.high is None else f" <= {item.high}"
    return f"{low}{item.name}{high}" if low or high else "any"


# In the view


def _lists(guards: Sequence[Guard], lines: SourceLines) -> Iterator[tuple[str, Table]]:
    """Named tables of the most expensive guards and of the guards that failed, most failures first."""
    timed = sorted((guard for guard in guards if guard.seconds), key=lambda guard: -(guard.seconds or 0.0))
    failed = sorted((guard for guard in guards if guard.failed), key=lambda guard: -guard.failed)
    for name, found in (("By cost", timed[:COSTLIEST]), ("Failed", failed)):
        if found:
            yield name, Table((), tuple(_row(guard, lines, guard.frame) for guard in found), style="guards")


def _compilation(frame: Frame, guards: Sequence[Guard], record: Record, lines: SourceLines, is_open: bool) -> Fold:
    """Fold of one compilation: symbols with bounds, the tree of guards, and folded guards on the insides of modules."""
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
    """Sentence that compares the time of one check of all guards, caches cold, with the sum of single checks, warm."""
    timed = [guard.seconds for guard in guards if guard.seconds is not None]
    if not whole or not timed:
        return ""
    return (
        f"One check of all takes {seconds_text(whole)} with the CPU's caches emptied before. Each alone, caches warm: "
        f"{seconds_text(sum(timed))} in sum, of the {pluralize(len(timed), 'guard')} that could be timed."
    )


def symbol_lines(item: Symbol, lines: SourceLines) -> Iterator[Words]:
    """Lines on a symbol: its bounds and sources, then each constraint with the code line that caused it."""
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
    """A fact, with a link to the line that caused it if the line is known."""
    if not span.file:
        return Tag(told, "muted")
    return Tag(f"{told} ", "muted"), line_link(span.file, span.line, lines), f" `{one_line(span.code)}`"


@dataclass
class Branch:
    """Guards whose arguments share a prefix; `name` is the prefix."""

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
        """The branch's own guards, then its subbranches. A chain of branches without own guards is merged; a branch
        with few guards is listed flat.
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
        """Whether the branch's guards are listed without subbranches."""
        return bool(self.name) and (len(self.all()) <= TOGETHER or not self.skip_chain().branches)

    def skip_chain(self) -> Branch:
        if self.name and not self.guards and len(self.branches) == 1:
            return next(iter(self.branches.values())).skip_chain()
        return self

    def common(self, guards: Sequence[Guard]) -> str:
        """Longest common prefix of the guards' arguments; the branch's own name if they share none."""
        parts = [argument_parts(guard) for guard in guards]
        same = 0
        while all(len(some) > same and some[same] == parts[0][same] for some in parts):
            same += 1
        return "".join(parts[0][:same]) or self.name


def tree(guards: Iterable[Guard]) -> Branch:
    """Tree of guards by argument: guards on `self.drop` below `self`, guards on `self.drop.training` below `self.drop`.

    Guards on arguments come first, then guards on globals and builtins, then guards without an argument.
    """
    root = Branch("")
    for guard in sorted(guards, key=_distance):
        root.add(guard, argument_parts(guard))
    return root


def _distance(guard: Guard) -> int:
    return 2 if not guard.argument else int(guard.argument.startswith(("global ", "builtin ")))


def argument_parts(guard: Guard) -> tuple[str, ...]:
    """Path of a guard's argument: `self`, `.drop`, `.training`. Arguments that are not a path share one branch."""
    if not guard.argument:
        return (_ABOUT_ALL,)
    parts = tuple(_PART.findall(guard.argument))
    return parts if "".join(parts) == guard.argument else (_OTHERS, guard.argument)


def _row(guard: Guard, lines: SourceLines, frame: str = "") -> Row:
    """Row of a guard: its words, its code (folded), its cost, and the line that caused it."""
    told: tuple[Piece, ...] = (Tag(f"{frame} ", "place"), words(guard)) if frame else (words(guard),)
    asked = (" ", line_link(guard.file, guard.line, lines)) if guard.file else ()
    check = Fold("code", (Code(guard.code, language=""),))
    facts = tuple(_facts(guard.seconds, guard.failed, "this check"))
    return Row((told, (*facts, *asked)), (guard_id(guard),), title=f"Check: {guard.kind}", parts=(check,))
