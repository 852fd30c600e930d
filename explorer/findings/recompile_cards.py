"""Cards of recompilations, one for each cause: the cause, every failed guard, and suggested changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from compiler.capture.function_names import function_name
from compiler.capture.guard_words import quote
from compiler.record import Guard, GuardFailure, Recompile, Record, Span
from compiler.record.plain_text import pluralize
from explorer.findings.breaks import Graphs
from explorer.findings.timeline import recompile_id, runs_of
from explorer.reading.cause import closest_failure, recompile_reason
from explorer.reading.sites import recompile_groups
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Card, Change, Code, Fold, Link, Only, Parts, Row, Table, Tag, Text, Words
from explorer.render.places import line_link, span_code

MOST_ALIKE = 4


class Known:
    """Lookup tables for cards: the record's lines, graphs, and user guards by compilation and source."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.lines = SourceLines(record)
        self.graphs = Graphs(record)
        self._guards: dict[tuple[str, str], list[Guard]] = {}
        for guard in record.guards:
            if not guard.internal:
                self._guards.setdefault((guard.frame, guard.source), []).append(guard)

    def failed_guards(self, failure: GuardFailure) -> list[Guard]:
        """Guards behind a failure: failed guards on the same source, or all guards on this source if none failed."""
        same = self._guards.get((failure.entry, failure.source), []) if failure.source else []
        return [guard for guard in same if guard.failed] or same


def recompile_cards(record: Record) -> list[Card]:
    """A card for each cause of recompilation."""
    known, groups = Known(record), recompile_groups(record.recompiles)
    return [cause_card(group, number, len(groups), known) for number, group in enumerate(groups, 1)]


def cause_card(group: Sequence[Recompile], number: int, total: int, known: Known) -> Card:
    """Card of cause `number` of `total`: every guard that failed in its first recompilation, by cache entry, and the
    later recompilations.
    """
    found, *others = group
    last = group[-1]
    blamed = f", {_blame_words(found)}" if found.cause and found.argument else ""
    times = f", {len(group)} times" if others else ""
    parts: list[Parts] = [Only(("view",), (Text(blame(found), "lead"),)), *call_parts(found, known)]
    if last.limit:
        parts.append(Only(("view",), (Text(give_up_sentence(last, function_name(found.function)), "warning"),)))
    failures = failure_parts(found, known)
    parts.append(Only(("text", "html"), tuple(failures)))
    if found.graph_change:
        shows = f"{found.graph_change} (run.diff({found.frame!r}) shows it)"
        parts.append(Only(("text",), (Text(shows, label=f"graph, against {found.closest}: "),)))
    if others:
        again = Text("; ".join(map(again_words, others)), label="and again: ")
        rows = tuple(again_row(each, known) for each in others)
        parts += [Only(("text", "html"), (again,)), Only(("view",), (Table((), rows, "and again", style="failures"),))]
    parts += change_parts(last)
    if last.limit:
        parts.append(Only(("text", "html"), (Text(f"torch gave up on this function: {limit_words(last)}"),)))
    parts.append(Only(("view",), tuple(detail_parts(found, failures, known))))
    return Card(
        title=f"Recompilation, cause {number} of {total}",
        ids=tuple(map(recompile_id, group)),
        lead="",
        parts=tuple(parts),
        kind="recompile",
        about=Tag(", ".join(each.frame for each in group), "muted"),
        aside=(f"{function_name(found.function)} ", line_link(found.file, found.line, known.lines)),
        line=f"recompilation {number} of {total}{times}: {_name(found)} ({found.file}:{found.line}){blamed}",
        summary=recompile_reason(found),
        count=len(group),
    )


def detail_parts(found: Recompile, failures: Sequence[Parts], known: Known) -> Iterator[Parts]:
    """Details for the view: the failed guards, a comparison of the graphs, torch's own words."""
    yield from failures[:1]
    if others := failures[1:]:
        yield Fold(f"Why {pluralize(len(others), 'other compilation')} did not fit either", tuple(others))
    if link := comparison(found, known):
        yield Text((link, f" {found.graph_change}".rstrip()))
    if found.reasons:
        yield Fold("In torch's words", (Code(tuple("\n\n".join(found.reasons).splitlines()), language=""),))


def again_row(found: Recompile, known: Known) -> Row:
    """Row of a later recompilation for the same cause: compilation, call, old and new value, link to compare graphs."""
    call: Words = ""
    if found.call is not None:
        call = f"call {found.call_number}, " if found.call_number else "", call_link(found.call, known)
    link = comparison(found, known)
    return Row((Tag(found.frame, "muted"), call, blame(found), link or ""))


def blame(found: Recompile) -> Words:
    """Old and new value of the guard that caused a recompilation; torch's own reasons if the cause is unknown."""
    closest = closest_failure(found)
    if closest is None:
        return "; ".join(line for reason in found.reasons for line in reason.splitlines()[:1])
    if not closest.old and not closest.new:
        return closest.words
    return (f"{failure_subject(closest)} ", *was_is(closest), " ", Tag(closest.cause, "muted"))


def was_is(failure: GuardFailure) -> tuple[Tag, str, Tag]:
    return Tag(failure.old, "was"), " → ", Tag(failure.new, "now")


def call_parts(found: Recompile, known: Known) -> list[Parts]:
    """Parts that show the call that triggered a recompilation; empty if unknown."""
    if found.call is None:
        return []
    which = f"call {found.call_number}, " if found.call_number else ""
    full = f"{which}in {found.call.file}:{found.call.line}  {found.call.code}"
    link = call_link(found.call, known)
    words: Words = (f"Call {found.call_number}, " if found.call_number else "Called from ", link)
    shown = Only(("view",), (Text(words, "why"), span_code(found.call, known.lines)))
    return [Only(("text", "html"), (Text(full, "line"),)), shown]


def call_link(call: Span, known: Known) -> Link:
    return line_link(call.file, call.line, known.lines)


def change_parts(found: Recompile) -> list[Parts]:
    if not found.advice:
        return []
    return [Change("change", found.advice, found.applicability, settings=tuple(found.settings))]


def failure_parts(found: Recompile, known: Known) -> list[Parts]:
    """A table of failed guards for each cache entry, the closest entry first; torch's own words if none are known."""
    closest = closest_failure(found)
    entries: dict[str, list[GuardFailure]] = {}
    for failure in found.failures:
        entries.setdefault(failure.entry, []).append(failure)
    if not entries:
        reasons = [line for reason in found.reasons for line in reason.splitlines()[:1]]
        return [Only(("text", "html"), tuple(Text(line, "line") for line in reasons))]
    first = closest.entry if closest else next(iter(entries))
    order = sorted(entries, key=lambda entry: entry != first)
    return [entry_table(entry, entries[entry], known) for entry in order]


def entry_table(entry: str, failures: Sequence[GuardFailure], known: Known) -> Table:
    """Table of the failed guards of one cache entry."""
    words = folded_words(failures)
    rows = [failure_row(failure, words.get(id(failure), ""), known) for failure in failures]
    return Table((), tuple(rows), f"code of {entry} does not fit", style="failures")


def failure_row(failure: GuardFailure, words: str, known: Known) -> Row:
    """Row of a failed guard: old and new value, and the line that caused the guard."""
    asked = next((guard for guard in known.failed_guards(failure) if guard.file), None)
    differs: Words = was_is(failure) if failure.old or failure.new else failure.words
    by: tuple[str | Link, ...] = (" ", line_link(asked.file, asked.line, known.lines)) if asked else ()
    return Row(
        (failure_subject(failure), differs, (failure.cause, *by)), words=words, title=failure.code or failure.words
    )


def folded_words(failures: Iterable[GuardFailure]) -> dict[int, str]:
    """`id()` of a failure -> its words. Of many failures with the same change (`training` of each layer), only the
    first has words, and the second has the count of the rest.
    """
    alike: dict[tuple[str, str, str], list[GuardFailure]] = {}
    for failure in failures:
        alike.setdefault((failure.cause, failure.old, failure.new), []).append(failure)
    words: dict[int, str] = {}
    for group in alike.values():
        shown = group if len(group) <= MOST_ALIKE else group[:1]
        words |= {id(failure): failure.words for failure in shown}
        if len(group) > len(shown):
            words[id(group[1])] = f"  and so for {len(group) - 1} more: run.recompiles has all"
    return words


def comparison(found: Recompile, known: Known) -> Link | None:
    """Link that compares the graph of the closest compilation with the new graph; None unless both exist."""
    frames = {frame.id: frame for frame in known.record.frames if frame.id in (found.closest, found.frame)}
    pair = [frames.get(found.closest), frames.get(found.frame)]
    names = [frame.graphs[0] for frame in pair if frame and frame.graphs and known.graphs.link(frame.graphs[0])]
    if len(names) < 2:
        return None
    titles = [known.graphs.title(name) for name in names]
    return Link(f"Compare {titles[0]} with {titles[1]}", compare=(names[0], names[1]))


def give_up_sentence(found: Recompile, function: str) -> str:
    entries = len({failure.entry for failure in found.failures})
    none = f"none of the {entries} compilations that there are" if entries else "no compilation that there is"
    return (
        f"torch gave up on {function} here: {limit_words(found)}. From this call on, a call that fits {none} is not "
        "compiled."
    )


def failure_subject(failure: GuardFailure) -> str:
    """Subject of a failed guard: "size of `x` in dimension 0"."""
    subject, found, _ = failure.words.partition(f" was {failure.old}, is ")
    return subject if found else f"`{failure.argument}`"


def again_words(found: Recompile) -> str:
    """Later recompilation for the same cause in words: `0/2 in call 3, `n` was the int 4, is now the int 5`."""
    call = f" in call {found.call_number}" if found.call_number else ""
    closest = closest_failure(found)
    return f"{found.frame}{call}" + (f", {closest.words}" if closest else "")


def limit_words(found: Recompile) -> str:
    """The recompile limit that was reached, and the calls that ran as plain Python since."""
    plain = f"; {runs_of('call', found.plain_calls)} ran as plain Python" if found.plain_calls else ""
    return f"{found.limit} is reached{plain}"


def _blame_words(found: Recompile) -> str:
    """A cause and its argument in words; for a global only the argument, which names the cause itself."""
    return quote(found.argument) if found.cause == "global" else f"{found.cause} of {quote(found.argument)}"


def _name(found: Recompile) -> str:
    name = function_name(found.function)
    return name if name == found.function else f"the rest of {name}"
