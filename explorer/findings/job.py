"""The compilations of a job: by cost, by code location and by call stack, each with a link that opens its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from compiler.logs.compilations import STATUSES, Compilation, Status
from compiler.record import Span
from compiler.record.plain_text import file_name, one_line, pluralize
from explorer.findings.job_names import (
    Found,
    RankCompilations,
    all_compilations,
    change_words,
    failure_of_reason,
    opened_name,
    place_of,
    shown_name,
)
from explorer.reading.plain_text import clip
from explorer.reading.shapes import seconds_text
from explorer.render.document import (
    Choice,
    Document,
    Fold,
    Items,
    Link,
    Only,
    Parts,
    Piece,
    Row,
    Section,
    Table,
    Tag,
    Text,
    Words,
    plain,
)

PHASES = {
    "tracing": "tracing",
    "AOTAutograd": "AOT",
    "Inductor": "Inductor",
    "kernels": "codegen",
    "backward": "backward",
}
"""Headings of the phases of a compilation, by their names in `Compilation.seconds`."""
LABELS: dict[Status, str] = {
    "compiled": "compiled",
    "broken": "graph break",
    "cached": "cached",
    "exported": "exported",
    "empty": "no graph",
    "skipped": "runs eagerly",
    "limit": "recompile limit",
    "failed": "failed",
    "unfinished": "unfinished",
}
COUNTED: dict[Status, str] = LABELS | {
    "broken": "up to a graph break",
    "empty": "without a graph",
    "skipped": "given up",
    "limit": "at the recompile limit",
}
_STYLES: dict[Status, str] = {"compiled": "", "cached": "gain", "empty": "muted"}
TEXT_ROWS, LISTED, MOST_CALLS = 20, 6, 40
"""Maximum rows of a table in text, functions listed in a sentence, and calls above a function in the tree."""
_REASON = 110
_NOT_IN_LOGS = (
    "No log has Inductor's loops and fusion decisions, eager autograd graphs, or measured times: explore a function "
    "here, or put a profile of the job beside the log, to see them."
)
_HEAD = ("id", "function", "where", "outcome", "time", "why", "tries", "ops", "kernels", "caches", *PHASES.values())
_RIGHT = (4, 6, 7, 8, 10, 11, 12, 13, 14)
_ALWAYS = 6
"""The number of columns that the table always has."""
_ORDERS = ("most time", "first started", "most tries", "most operations", "most kernels")


def job_document(
    title: str, ranks: Sequence[RankCompilations], notes: Sequence[str] = (), differences: Document = ()
) -> Document:
    """The index of a job. `notes` say what of its logs could not be read, `differences` how its ranks differ."""
    found = list(all_compilations(ranks))
    parts: list[Parts] = [Text(f"{title}: {_counts(ranks, found)}" if title else _counts(ranks, found), "lead")]
    parts += [Text(words, "warning") for words in (*_warnings([one for _, one in found]), *notes)]
    parts += [Section(tuple(differences), "Ranks")] if differences else []
    if not found:
        return parts
    costly = sorted(found, key=lambda pair: -pair[1].total)
    by_location, by_stack = _by_location(found), _by_stack(found)
    parts.append(Only(("text",), (_text_table(costly), *_text_tree(by_location))))
    orders = (
        ("By time", (_table(costly),)),
        ("By code location", _folds(by_location)),
        ("By call stack", _folds(by_stack)),
    )
    static: tuple[Parts, ...] = (_table(costly), *(Fold(name, parts) for name, parts in orders[1:]))
    parts += [Only(("html",), static), Only(("view",), (Choice("Order of the compilations", orders),))]
    parts.append(Text((Tag(_NOT_IN_LOGS, "muted"),)))
    return parts


def _counts(ranks: Sequence[RankCompilations], found: Sequence[Found]) -> str:
    """`23 compilations of 11 functions, 14 s: 15 compiled, 3 graph breaks`."""
    if not found:
        return "no compilation"
    functions = {(one.file, one.line, one.function) for _, one in found}
    statuses = Counter(one.status for _, one in found)
    outcomes = ", ".join(f"{statuses[status]:,} {COUNTED[status]}" for status in STATUSES if statuses[status])
    seconds = sum(one.total for _, one in found)
    total = f", {seconds_text(seconds)} in all" if seconds else ""
    counts = f"{pluralize(len(found), 'compilation')} of {pluralize(len(functions), 'function')}{_processes(ranks)}"
    return f"{counts}{total}: {outcomes}"


def _processes(ranks: Sequence[RankCompilations]) -> str:
    """` on 8 ranks`, ` in 5 processes` if none has a rank; empty for one process."""
    if len(ranks) == 1:
        return ""
    count = sum(each.is_of_group for each in ranks)
    others = len(ranks) - count
    words = [f"on {pluralize(count, 'rank')}"] if count else []
    if others:
        other = "other " if count else ""
        words.append(f"in {pluralize(others, f'{other}process', f'{other}processes')}")
    return f" {' and '.join(words)}" if words else ""


def _warnings(found: Iterable[Compilation]) -> Iterable[str]:
    """What a reader must not miss: functions that run eagerly, and errors."""
    said: dict[Status, tuple[str, str]] = {
        "limit": ("reached the recompile limit: new inputs run eagerly",) * 2,
        "skipped": ("runs eagerly: torch.compile gave it up", "run eagerly: torch.compile gave them up"),
        "failed": ("failed to compile",) * 2,
        "unfinished": ("was being compiled when the log ends", "were being compiled when the log ends"),
    }
    found = list(found)
    for status, (single, many) in said.items():
        names = Counter(f"{shown_name(one) or 'a function'} ({place_of(one)})" for one in found if one.status == status)
        listed = ", ".join(list(names)[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
        if names:
            yield f"{listed} {many if len(names) > 1 else single}"


# As a table


def _table(found: Sequence[Found]) -> Table:
    """All compilations; facts that no compilation has, such as a cache outcome, have no column."""
    statuses = [status for status in STATUSES if any(one.status == status for _, one in found)]
    groups = ("all", *(LABELS[status] for status in statuses)) if len(statuses) > 1 else ()
    rows = tuple(_row(rank, one, 1 + statuses.index(one.status)) for rank, one in found)
    kept = [at for at in range(len(_HEAD)) if at < _ALWAYS or any(plain(row.cells[at]) for row in rows)]
    rows = tuple(replace(row, cells=tuple(row.cells[at] for at in kept)) for row in rows)
    right = tuple(place for place, at in enumerate(kept) if at in _RIGHT)
    head = tuple(_HEAD[at] for at in kept)
    return Table(head, rows, right=right, style="compilations", label="Outcome", orders=_ORDERS, groups=groups)


def _row(rank: int | None, one: Compilation, group: int) -> Row:
    phases = tuple(_seconds(one.seconds.get(name, 0.0)) for name in PHASES)
    cells: tuple[Words, ...] = (
        _link(rank, one), shown_name(one), place_of(one), _outcome(one), _seconds(one.total),
        clip(_reason(one), _REASON), str(one.attempts), "" if one.nodes is None else f"{one.nodes:,}",
        f"{one.kernels:,}" if one.kernels else "", _caches(one), *phases,
    )  # fmt: skip
    keys = (-one.first, one.attempts, one.nodes or 0, one.kernels)
    return Row(cells, title=f"{one.file}:{one.line}  {_reason(one)}", keys=tuple(map(float, keys)), group=group)


def _link(rank: int | None, one: Compilation) -> Link:
    name = opened_name(rank, one.id)
    return Link(name, open=name, title=f"Open {shown_name(one)} ({one.place}), compilation {name}")


def _outcome(one: Compilation) -> Piece:
    return Tag(LABELS[one.status], style) if (style := _STYLES.get(one.status, "strong")) else LABELS[one.status]


def _seconds(seconds: float) -> str:
    return seconds_text(seconds) if seconds >= 0.0005 else ""


def _caches(one: Compilation) -> str:
    """`hit`, if all caches agree, else `AOT miss, FX hit`."""
    names = {"fx_graph": "FX", "aotautograd": "AOT"}
    outcomes = set(one.cache.values())
    if len(outcomes) == 1:
        return clip(outcomes.pop(), 40)
    return ", ".join(f"{names.get(name, name)} {clip(outcome, 24)}" for name, outcome in sorted(one.cache.items()))


def _reason(one: Compilation) -> str:
    """Why it was compiled again, why its graph ends, or why there is none."""
    again = change_words(failure_of_reason(one.recompile_reasons[0])) if one.recompile_reasons else ""
    return one_line("; ".join(part for part in (again and f"again: {again}", one.reason) if part))


def _text_table(costly: Sequence[Found]) -> Section:
    head = ("id", "function", "where", "outcome", "time", "tries", "ops", "kernels", "why")
    rows = tuple(
        Row((
            opened_name(rank, one.id), shown_name(one), place_of(one), LABELS[one.status], _seconds(one.total),
            str(one.attempts), "" if one.nodes is None else str(one.nodes), str(one.kernels or ""),
            clip(_reason(one), 60),
        ))
        for rank, one in costly[:TEXT_ROWS]
    )  # fmt: skip
    more = f" (the first {TEXT_ROWS} of {len(costly):,})" if len(costly) > TEXT_ROWS else ""
    return Section((Table(head, rows, right=(4, 5, 6, 7)),), f"By time{more}")


# As trees


@dataclass
class _Branch:
    """A branch of a tree: the compilations at a place, and the branches below it by key."""

    title: Words
    found: list[Found] = field(default_factory=list)
    below: dict[object, _Branch] = field(default_factory=dict)

    def all_found(self) -> list[Found]:
        return [*self.found, *(pair for branch in self.below.values() for pair in branch.all_found())]


def _tree(found: Iterable[Found], path: Callable[[Compilation], Sequence[tuple[object, Words]]]) -> _Branch:
    """Sort compilations into a tree: `path` gives the key and the title of each branch, outermost first."""
    root = _Branch("")
    for rank, one in found:
        branch = root
        for key, title in path(one):
            branch = branch.below.setdefault(key, _Branch(title))
        branch.found.append((rank, one))
    return root


def _by_location(found: Iterable[Found]) -> _Branch:
    def path(one: Compilation) -> list[tuple[object, Words]]:
        function = (f"{shown_name(one)} ", Tag(place_of(one), "muted"))
        return [(one.file, one.file or "no file"), ((one.line, one.function), function)]

    return _tree(found, path)


def _by_stack(found: Iterable[Found]) -> _Branch:
    def path(one: Compilation) -> list[tuple[object, Words]]:
        function = (one.file, one.line, one.function), (f"{shown_name(one)} ", Tag(one.place, "muted"))
        return [*((_call_key(span), _call(span)) for span in one.callers[-MOST_CALLS:]), function]

    return _tree(found, path)


def _call_key(span: Span) -> object:
    return span.file, span.line, span.function


def _call(span: Span) -> Words:
    place = f"{file_name(span.file)}:{span.line}"
    code = (Tag(clip(one_line(span.code), 80), "code"),) if span.code else ()
    return (Tag(f"{place} in {span.function} ", "muted"), *code)


def _folds(root: _Branch) -> tuple[Parts, ...]:
    """Branches as folds, those that took most time first; a chain of single branches is one fold."""
    branches = sorted(root.below.values(), key=_total, reverse=True)
    is_small = len(root.all_found()) <= LISTED
    return tuple(_fold(branch, is_open=is_small or len(branches) == 1) for branch in branches)


def _fold(branch: _Branch, *, is_open: bool) -> Fold:
    found = branch.all_found()
    counts = f"  {pluralize(len(found), 'compilation')}, {seconds_text(_total(branch))}"
    title = branch.title if isinstance(branch.title, tuple) else (branch.title,)
    items = tuple(_item(rank, one) for rank, one in sorted(branch.found, key=lambda pair: -pair[1].total))
    parts = (*((Items(items),) if items else ()), *_folds(branch))
    return Fold((*title, Tag(counts, "muted")), parts, is_open, style="job-fold")


def _item(rank: int | None, one: Compilation) -> Words:
    facts = [seconds_text(one.total), *([] if one.nodes is None else [pluralize(one.nodes, "operation")]), _caches(one)]
    words = "  ".join(part for part in (", ".join(filter(None, facts)), clip(_reason(one), _REASON)) if part)
    return (_link(rank, one), " ", _outcome(one), f"  {words}")


def _total(branch: _Branch) -> float:
    return sum(one.total for _, one in branch.all_found())


def _text_tree(root: _Branch) -> tuple[Parts, ...]:
    """Functions by code location, those that took most time first."""
    functions = [(branch, inner) for branch in root.below.values() for inner in branch.below.values()]
    functions.sort(key=lambda pair: -_total(pair[1]))
    rows = tuple(_function_row(inner.all_found()) for _, inner in functions[:TEXT_ROWS])
    more = f" (the first {TEXT_ROWS} of {len(functions):,})" if len(functions) > TEXT_ROWS else ""
    head = ("function", "where", "compiled", "time", "outcomes")
    return (Section((Table(head, rows, right=(2, 3)),), f"By function{more}"),)


def _function_row(found: Sequence[Found]) -> Row:
    one = found[0][1]
    statuses = Counter(each.status for _, each in found)
    outcomes = ", ".join(f"{count} {LABELS[status]}" for status, count in statuses.most_common())
    total = _seconds(sum(each.total for _, each in found))
    times = pluralize(len(found), "time")
    return Row((shown_name(one), place_of(one), times, total, outcomes))
