"""One operator at each level as HTML that a saved notebook keeps: a table, and each level to open."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.decompose.levels import ABOUT
from compiler.decompose.one_op import Decomposition, Level
from compiler.record.plain_text import pluralize
from explorer.findings.decompose.text import call_text, numbers_text, sources_text, stays, tree_lines
from explorer.render.html import details, muted, note, pre, safe, table_html


def decomposition_html(found: Decomposition) -> str:
    """The call, a table of levels, and each level's trees, reasons and code."""
    head = f"<div><b>{safe(call_text(found))}</b></div>"
    where = note(str(found.source)) if found.source else ""
    about = note(found.note) if found.note else ""
    table = table_html(["level", "ops", "different", "against eager"], map(_row, found.levels))
    return (
        head
        + where
        + about
        + table
        + "".join(level_html(level, is_open=level.name == "Inductor") for level in found.levels)
    )


def _row(level: Level) -> tuple[str, str, str, str]:
    ops = level.ops()
    checks = "; ".join(dict.fromkeys(map(numbers_text, level.numbers))) or "nothing to compare"
    return level.name, str(len(ops)), str(len(set(ops))), checks


def level_html(level: Level, *, is_open: bool = True) -> str:
    """One level, to open and close."""
    about = f"{pluralize(len(level.ops()), 'op')}; {ABOUT[level.name]}"
    title = f"<b>{safe(level.name)}</b> {muted(about)}"
    return details(title, "".join(_body(level)), is_open=is_open)


def _body(level: Level) -> Iterator[str]:
    yield pre([safe(line) for root in level.roots for line in tree_lines(root)])
    if reasons := stays(level):
        yield table_html(["left as it is", "why"], reasons)
    sources = [pair for root in level.roots for pair in root.sources() if pair[1].text]
    if sources:
        yield details("code of the decompositions", pre(list(map(safe, sources_text(sources).splitlines()))))
    yield details("the graph", pre(list(map(safe, level.code.splitlines()))))
