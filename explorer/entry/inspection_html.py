"""Static HTML of `tcompile.open` for saved notebooks: a table of stages, with each stage's text folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compiler.record.plain_text import pluralize, size_text
from explorer.reading.plain_text import clip
from explorer.reading.shapes import error_text, seconds_text
from explorer.render.html import details, muted_html, note, pre, safe, table_html

if TYPE_CHECKING:
    from compiler.backend.inspect.bisect_passes import PassComparison
    from compiler.backend.inspect.inspection import Graph, Inspection, TextDiff

LINES_SHOWN = 80


def register(shell: Any) -> None:
    """Register HTML formatters with a shell, by type name, so that our backend is not imported."""
    for home, name, html in _SHOWN:
        shell.display_formatter.formatters["text/html"].for_type_by_name(home, name, html)


def unregister(shell: Any) -> None:
    """Remove the formatters that `register` added."""
    for home, name, _ in _SHOWN:
        shell.display_formatter.formatters["text/html"].pop(f"{home}.{name}", None)


def inspection_html(inspection: Inspection) -> str:
    """HTML of the call's graphs with their stages, and suggested next steps."""
    head = f"<div><b>{safe(inspection.asked.title)}</b> {muted_html(inspection.summary)}</div>"
    graphs = (graph_html(replace(inspection, selected=number)) for number in range(len(inspection.graphs)))
    return head + "".join(graphs) + "".join(map(note, inspection.next_steps()))


def graph_html(inspection: Inspection) -> str:
    """HTML of the selected graph: a table of its passes, and the program's text after each pass that changed it."""
    columns = ["stage", "pass", "kernels", "calls", "bytes", "time"]
    rows = [
        (*map(str, (stage, row["pass"], row["kernels"], row["calls"])), size_text(row["bytes"]), _time(row["seconds"]))
        for stage, row in inspection.stages.iterrows()
    ]
    return (
        f"<div><b>{safe(inspection.graph.name)}</b></div>{table_html(columns, rows)}{''.join(_texts(inspection.graph))}"
    )


def _time(seconds: Any) -> str:
    return seconds_text(seconds) if isinstance(seconds, float) else ""


def _texts(graph: Graph) -> Iterator[str]:
    """The program's text after each stage that changed the program, as folded HTML."""
    before = None
    for name, program in graph.programs.items():
        if program is not before:
            title = f"<b>{safe(name)}</b> {muted_html(pluralize(len(program.kernels), 'kernel'))}"
            yield details(title, pre(_first_lines(str(program).splitlines())))
        before = program


def _first_lines(lines: list[str]) -> list[str]:
    more = len(lines) - LINES_SHOWN
    left = [f"… {more:,} more lines: print it"] if more > 0 else []
    return [safe(clip(line, 400)) for line in [*lines[:LINES_SHOWN], *left]]


def comparison_html(found: PassComparison) -> str:
    """HTML of a comparison: the verdict, and a table with the errors of each stage."""
    head = ["graph", "stage", "pass", "dtype", "verdict", "largest error", "of the largest magnitude", "allowed"]
    rows = [
        (*row[:5], *map(error_text, row[5:]))
        for row in found.table.astype(object).where(found.table.notna(), None).itertuples(index=False, name=None)
    ]
    return f"<div>{safe(found.verdict)}</div>{table_html(head, rows)}"


def text_diff_html(diff: TextDiff) -> str:
    """HTML of a diff, with added and removed lines tinted."""
    from explorer.run.diff import diff_html  # it reads tables, which take time to load

    return diff_html(diff.lines) or f"<div>{safe(str(diff))}</div>"


_SHOWN: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("compiler.backend.inspect.inspection", "Inspection", inspection_html),
    ("compiler.backend.inspect.inspection", "TextDiff", text_diff_html),
    ("compiler.backend.inspect.bisect_passes", "PassComparison", comparison_html),
)
