"""Graph breaks as a document of cards, each linked to the lines that led to the break and to the graph that it ended.

Skipped functions, failed compilations and restarted analyses are listed below the cards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.capture.function_names import function_name
from compiler.record import Entity, Frame, GraphBreak, Record
from compiler.record.plain_text import one_line, pluralize, size_text
from explorer.reading.cause import break_reason, culprit_code, users_place, users_span
from explorer.reading.plain_text import clip
from explorer.reading.shapes import seconds_text
from explorer.reading.sites import break_count, break_groups
from explorer.reading.source_lines import SourceLines
from explorer.render.document import (
    Card,
    Code,
    Flow,
    Fold,
    Items,
    Link,
    Make,
    Only,
    Parts,
    Section,
    Step,
    Tag,
    Text,
    Way,
    Words,
)
from explorer.render.finding import Finding
from explorer.render.places import change_part, line_link, way
from explorer.render.text import document_finding

ENDS = {"plain": "plain Python", "skipped": "plain Python, all of the function", "error": "an error"}
"""Outcome of a break -> name of the code after it, if no graph follows."""
TORCHS_WORDS = 1_000
MAP = "frame_map"
"""Id of the artifact with the map of the program."""
_ALL_SITES = Make(
    "xray",
    "X-ray: find all breaks, also behind these, and try fixes",
    "A break may hide others: `run.xray()` finds them all, and `run.patch()` has fixes that were tried. Call them "
    "before saving, and the page has them.",
)
_ALL_SITES_OF_A_LOG = Text(
    "A break may hide others: where the code is, `tcompile xray FILE.py:NAME` finds them all, and tries fixes.", "why"
)


def breaks_finding(record: Record) -> Finding | None:
    """Finding with cards of all graph breaks and notes on other uncompiled code; None without breaks and notes."""
    told = notes(record)
    if not record.breaks and not told:
        return None
    lines, graphs = SourceLines(record), Graphs(record)
    document: list[Parts] = [*break_cards(record)]
    if record.breaks and record.xray is None:
        document.insert(0, Only(("view",), (_ALL_SITES_OF_A_LOG if record.origin == "log" else _ALL_SITES,)))
    if told:
        title = notes_title(record)
        document.append(Section((Items(tuple(note_words(note, lines) for note in told)),), title, "notes"))
    entities = {break_id(found): break_entity(found, lines, graphs) for found in record.breaks}
    count = break_count(record.breaks, "break") if record.breaks else pluralize(len(told), "note")
    return document_finding("breaks", "graph breaks", document, entities, count)


def break_cards(record: Record) -> list[Card]:
    """A card for each break site of a record."""
    lines, graphs, groups = SourceLines(record), Graphs(record), break_groups(record.breaks)
    return [break_card(group, number, len(groups), lines, graphs) for number, group in enumerate(groups, 1)]


def break_card(group: Sequence[GraphBreak], number: int, total: int, lines: SourceLines, graphs: Graphs) -> Card:
    """Card of break site `number` of `total`, headed by the user's own line. The first break of the group is shown in
    full, the other breaks at this site are links.
    """
    found, *others = group
    times = f", {len(group)} times" if others else ""
    kind = found.kind + (f" ({found.gb_id})" if found.gb_id else "")
    users = users_span(found)
    place = users or found
    parts: list[Parts] = [way_there(found, lines)]
    if others:
        parts.append(Text(_again_words(others), "again"))
    parts.append(flow(found, graphs))
    parts += [Text(words, "why") for words in (first_call_words(found), cost_words(found)) if words]
    labels = ("change", *["or"] * len(found.suggestions))
    parts += [change_part(item, label, lines) for label, item in zip(labels, found.suggestions, strict=False)]
    parts.append(Only(("view",), (Text((Link("Show it on the map", open=MAP),), "again"),)))
    parts.append(torchs_words(found))
    return Card(
        title=f"Graph break {number} of {total}",
        ids=tuple(map(break_id, group)),
        lead=break_reason(found),
        parts=tuple(parts),
        kind="break",
        about=line_link(place.file, place.line, lines),
        aside=f"in {function_name(users.function)}" if users else "",
        line=f"graph break {number} of {total}{times}: {kind}",
        count=len(group),
        link=_page(found),
    )


def way_there(found: GraphBreak, lines: SourceLines) -> Way:
    """Chain of calls that leads to a break, with the user's line as the target; without a chain, the break's line."""
    users = users_span(found)
    if users is not None:
        return way(found.chain, users, lines)
    place = line_link(found.file, found.line, lines)
    return Way((Step(place, "", Code((found.code,)), f"{found.file}:{found.line}", found.code),))


def flow(found: GraphBreak, graphs: Graphs) -> Flow:
    """The graph before the break, the tensors that cross the break, and the code that runs after it."""
    goes_on = [graphs.resume_words(name) for name in found.resumed_by]
    before = graphs.link(found.ended) or Tag("no graph before", "muted")
    end = ENDS.get(found.outcome, "")
    after: tuple[Words, ...] = (Tag(end, "plain"),) if end else tuple(words for words, _ in goes_on)
    at_once = not goes_on or any(has_graph for _, has_graph in goes_on)
    size = f", {size_text(found.crossing_bytes)}" if found.crossing_bytes else ""
    across = f"{pluralize(found.crossing, 'tensor')}{size}" if found.ended else ""
    return Flow(before, across, after, outcome_words(found, at_once))


def _again_words(others: Sequence[GraphBreak]) -> Words:
    links = [Link(item.frame, id=break_id(item), title=break_id(item)) for item in others]
    between: list[str | Link | Tag] = ["and here again in "]
    for link in links:
        between += [link, ", "]
    return tuple(between[:-1])


def _page(found: GraphBreak) -> Link | None:
    """Link to torch's page on this kind of break; without a page only torch's id of this kind; None without either."""
    title = "What torch's documentation says of this kind of break"
    if found.link:
        return Link(found.gb_id or "documentation", url=found.link, title=title)
    return Link(found.gb_id) if found.gb_id else None


def torchs_words(found: GraphBreak) -> Fold:
    """Fold with torch's own explanation of a break."""
    parts: list[Parts] = [Text(words) for words in (found.explanation,) if words]
    if found.hints:
        parts.append(Items(found.hints))
    if found.consequence:
        parts.append(Text(f"It led to: {found.consequence}."))
    code = ["\n".join(found.stack), found.reason]
    parts.append(Only(("view",), tuple(Code(tuple(each.splitlines()), language="") for each in code if each)))
    if not found.explanation:
        parts.append(Only(("html",), (Text(clip(one_line(found.reason), TORCHS_WORDS)),)))
    return Fold(f"In torch's words: {found.kind}", tuple(parts))


def break_id(found: GraphBreak) -> str:
    """Id of a break's entity."""
    return f"breaks.{found.id}"


def break_entity(found: GraphBreak, lines: SourceLines, graphs: Graphs) -> Entity:
    """Entity of a break, linked to the lines of its call chain and to the end of its graph."""
    attrs = {"place": users_place(found), "code": culprit_code(found), "frame": found.frame}
    origins = (*lines.ids(found.chain), *graphs.end(found.ended))
    return Entity(break_id(found), "break", found.what or found.kind, attrs, (), origins)


class Graphs:
    """The captured graphs of a record, and links to them for cards."""

    def __init__(self, record: Record) -> None:
        self._graphs = {artifact.id: artifact for artifact in record.of_stage("captured")}
        self._frames = {frame.id: frame for frame in record.frames}

    def end(self, graph: str) -> tuple[str, ...]:
        """Id of a graph's output node; empty if the record lacks the graph."""
        artifact = self._graphs.get(graph)
        return tuple(entity.id for entity in artifact.entities if entity.kind == "output") if artifact else ()

    def link(self, name: str) -> Link | None:
        """Link that opens a graph, with its number of ops; None if the record lacks the graph."""
        artifact = self._graphs.get(name)
        if artifact is None:
            return None
        ops = sum(entity.kind == "call" for entity in artifact.entities)
        return Link(f"{self.title(name)} · {pluralize(ops, 'op')}", open=name, title=f"Open {name}")

    def title(self, name: str) -> str:
        return f"graph {self._graphs[name].graph}"

    def resume_words(self, name: str) -> tuple[Words, bool]:
        """Describe a frame that resumes after a break, with a link to its graph; also return whether it has a graph."""
        frame = self._frames.get(name)
        if frame is None:
            return name, True
        graph = self.link(frame.graphs[0]) if frame.graphs else None
        words = f" the rest of {function_name(frame.function)}, from line {frame.line}"
        return (graph or "no graph in", words), graph is not None


def outcome_words(found: GraphBreak, at_once: bool = True) -> str:
    """Outcome and cost of a break in words. `at_once` says whether a graph follows before the next break."""
    kinds = f" (a {found.consequence})" if found.consequence.startswith("graph break in") else ""
    if found.outcome == "error" and found.of_export:
        return "torch.export raises here: nothing is exported."
    if found.outcome == "error":
        return "torch.compile raises here: nothing is compiled."
    if found.outcome == "skipped":
        return f"The whole function runs as plain Python{kinds}.{unread_words(found)}"
    size = f" ({size_text(found.crossing_bytes)})" if found.crossing_bytes else ""
    cost = f"; {pluralize(found.crossing, 'tensor')}{size} handed back to Python" if found.ended else ""
    before = f"{pluralize(found.nodes[0], 'op')} in the graph before" if found.ended else "No graph before"
    ops = f"{before}, {pluralize(found.nodes[1], 'op')} after{cost}."
    if found.outcome == "plain":
        return f"The rest of the function runs as plain Python. {ops}{unread_words(found)}"
    following = (
        "The function resumes in a graph of its own." if at_once else "Its next graph comes after another break."
    )
    if found.unread is not None:
        return f"{ops}{unread_words(found)}"
    goes_on = following if found.nodes[1] else "What is left of the function has no ops of its own."
    return f"{goes_on} {ops}"


def unread_words(found: GraphBreak) -> str:
    """Sentence on the lines that torch did not analyse because of the break; "" if all were analysed."""
    if found.unread is None:
        return ""
    first, last = found.unread
    lines = f"Line {first}" if first == last else f"Lines {first} to {last}"
    where = function_name(found.chain[0].function) if found.chain else function_name(found.function)
    return (
        f" {lines} of `{where}` {'was' if first == last else 'were'} not analysed: more breaks may follow there. "
        "Functions that are called from there are compiled by themselves, if at all."
    )


def first_call_words(found: GraphBreak) -> str:
    """Sentence on a break that happens only in the first call; "" for other breaks."""
    if not found.first_call:
        return ""
    return (
        "Only the first call breaks here: captured once more after it, the call does not. Code that runs once (lazy "
        "initialisation, a lock around it) is the reason; a call in eager mode before torch.compile takes the break "
        "away."
    )


def cost_words(found: GraphBreak) -> str:
    """Sentence on the time that a break costs, or on why the time is unknown; "" if nothing was measured."""
    if found.lost_seconds is None:
        return f"Time lost is not known: {found.lost_note}." if found.lost_note else ""
    change = "costs" if found.lost_seconds >= 0 else "saves"
    return f"It {change} {seconds_text(abs(found.lost_seconds))} a call: {found.lost_note}."


Note = tuple[str, str, str, int]
"""A function that was left to Python without a break, or that was analysed again: name, reason, file, line."""


def note_words(note: Note, lines: SourceLines) -> Words:
    """A note as a sentence with a link to the function."""
    function, words, file, line = note
    where: tuple[str | Link | Tag, ...] = (" (", line_link(file, line, lines), ")") if file else ()
    return (Tag(function, "strong"), *where, f" {words}") if function else words


def notes_title(record: Record) -> str:
    if record.breaks:
        return "Not compiled, without a break:"
    return "No graph broke." if record.of_stage("captured") else "Nothing was compiled:"


def notes(record: Record) -> list[Note]:
    """Notes of a record. If nothing was captured and no function has a note, the notes say why nothing was captured."""
    broken = {found.frame for found in record.breaks}
    frames = [(function_name(frame.function), words, frame.file, frame.line)
              for frame in record.frames for words in _frame_words(frame, frame.id in broken)]  # fmt: skip
    none = () if record.breaks or record.of_stage("captured") else record.problems
    whole = [("", one_line(problem.reason), "", 0) for problem in none if problem.stage == "captured"]
    return list(dict.fromkeys(frames)) or whole


def _frame_words(frame: Frame, broke: bool) -> Iterator[str]:
    if frame.outcome == "skipped" and not broke and frame.reason:
        yield f"runs as plain Python: {one_line(frame.reason)}"
    if frame.outcome == "failed" and not broke:
        yield f"could not be compiled: {one_line(frame.reason)}"
    for why in () if broke else frame.restarts:
        yield f"was read anew: {one_line(why)}"
