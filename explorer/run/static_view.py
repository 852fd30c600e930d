"""Static HTML of a record without scripts, for saved notebooks on GitHub, on nbviewer and in JupyterLab.

These sites keep only some HTML, so the view has only basic text tags, `<details>`, tables, inline `style`, `class`,
`title` and `<img src="data:…">`. The view is also readable without styles. Text has the page's own colour and tints are
translucent, so it works on light and dark backgrounds. Every string from the record is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphviz import CalledProcessError, ExecutableNotFound
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, String

from compiler.record import MACHINE_STAGES, Artifact, GraphBreak, Problem, Record
from compiler.record.plain_text import pluralize
from explorer.findings import Finding, findings
from explorer.reading.plain_text import clip, text_lines
from explorer.reading.sites import break_count, card_number, graphs_of, problem_groups, recompile_count
from explorer.reading.source_marks import landed_lines
from explorer.reading.stages import counts, stage_title
from explorer.render.document import parts_for
from explorer.render.drawing import PICTURE_BOXES, PICTURE_BYTES, drawing, has_flow, plain_svg
from explorer.render.finding import COUNT
from explorer.render.html import details, left_out_note, muted_html, note, picture, pre, safe, table_html, tint
from explorer.render.static import ROWS, document_html
from explorer.run import tables, text
from explorer.run.text import stages_table

BUDGET = 165_000
"""Maximum characters of stage text in one static view, shared by the artifacts."""

TEXT_MOST, TEXT_LEAST = 7_000, 1_500
"""Maximum characters shown of one artifact, and the minimum if there are very many artifacts."""

FINDING_MOST = 12_000
"""Maximum characters of a folded finding's HTML."""

SOURCES, SOURCE_LINES = 12, 120
PICTURES = 4

GRAPH_COLOURS = ("#009e80", "#c750d9", "#1f3df5", "#7d1a12", "#949000", "#523063")
"""The graph colours of the front end's light theme, distinguishable with any colour vision."""


def twin(record: Record) -> str:
    """The record as static HTML in one `<div class="tcompile-twin" title="tcompile-static">`."""
    sections = (_heading, _summary, _sources, _findings, _pictures, _stages, _kernels, _ops, _problems)
    inside = "\n".join(filter(None, [*(section(record) for section in sections), _footer()]))
    return f'<div class="tcompile-twin" title="tcompile-static" style="max-width:100%;overflow:auto">\n{inside}\n</div>'


def _heading(record: Record) -> str:
    marks = [break_count(record.breaks)] if record.breaks else []
    marks += [recompile_count(record.recompiles)] if record.recompiles else []
    marks += [pluralize(len(record.problems), "problem")] if record.problems else []
    settings = " · ".join([text.settings(record), *marks])
    explored = text.explored_line(record)
    line = f"<div>{safe(explored)}</div>" if explored else ""
    return f"<div><b>{safe(record.full_title)}</b> {muted_html(settings)}</div>{line}"


def _summary(record: Record) -> str:
    return document_html([stages_table(record)]) if record.artifacts else "<div>No stage was recorded.</div>"


def _findings(record: Record) -> str:
    """Each finding's document as HTML; its text if it has no document or the document is too long."""
    return "\n".join(map(_finding_html, findings(record)))


def _finding_html(finding: Finding) -> str:
    artifact = finding.artifact
    amount = str(artifact.attrs.get(COUNT) or counts([artifact]))
    title = f"<b>{safe(artifact.title)}</b> {muted_html(amount)}"
    parts = list(parts_for(finding.document, "html"))
    body = document_html(parts[:ROWS]) + left_out_note(len(parts), ROWS, "parts", f"print(run[{artifact.stage!r}])")
    if not parts or (len(body) > FINDING_MOST and not finding.is_open):
        body = _clip_text(artifact, TEXT_LEAST)
    return details(title, body, finding.is_open)


def _sources(record: Record) -> str:
    """HTML of the source files: the user's files first and open, other files folded below."""
    sources = sorted(record.of_stage("source"), key=lambda artifact: bool(artifact.attrs.get("installed")))
    landed = landed_lines(record)
    graphs = list(dict.fromkeys(graph for found in landed.values() for graph in found))
    colours = {graph: GRAPH_COLOURS[index % len(GRAPH_COLOURS)] for index, graph in enumerate(graphs)}
    shown = []
    for index, artifact in enumerate(sources[:SOURCES]):
        body = _source(artifact, record.breaks, landed.get(artifact.id, {}), colours)
        shown.append(details(_source_title(artifact), body, is_open=index == 0 or not artifact.attrs.get("installed")))
    return "\n".join([*shown, left_out_note(len(sources), SOURCES, "files", "run.record.of_stage('source')")])


def _source_title(artifact: Artifact) -> str:
    return f"<b>{stage_title('source')}</b> {safe(artifact.title)}"


def _source(
    artifact: Artifact,
    breaks: Sequence[GraphBreak],
    landed: dict[str, list[int]],
    colours: dict[str, str],
) -> str:
    """HTML of the source lines, each with its number, and the name and colour of its graph, or "break".

    `landed` has the rows of this file that were captured, by graph.
    """
    lines = list(_highlight_lines(artifact) if artifact.language == "python" else map(safe, text_lines(artifact.text)))
    numbers = text.line_numbers(artifact, len(lines))
    broken = {str(found.line) for found in breaks if artifact.id == f"source[{found.file}]"}
    shown = _worth_showing(artifact, len(lines))
    rows: list[str] = []
    for before, line in zip([0, *shown], shown, strict=False):
        graphs = [graph for graph, rows_of_graph in landed.items() if line in rows_of_graph]
        note = "break" if numbers[line - 1] in broken else " ".join(graphs[:2])
        rows += ["     ⋮"] if line > before + 1 else []
        rows.append(_source_row(numbers[line - 1], note, colours.get(graphs[0], "") if graphs else "", lines[line - 1]))
    return pre(rows) + left_out_note(len(lines), len(shown), "lines", f"print(run[{artifact.id!r}])")


def _worth_showing(artifact: Artifact, count: int) -> list[int]:
    """Numbers of the lines to show: all of a short source; of a long source, the lines that compute, with context."""
    if count <= SOURCE_LINES // 2:
        return list(range(1, count + 1))
    near = {line + step for line in artifact.lines for step in range(-3, 3) if 1 <= line + step <= count}
    return sorted(near)[:SOURCE_LINES]


def _source_row(number: str, note: str, colour: str, code: str) -> str:
    gutter = safe(f"{number:>4} {note[:8]:<8}")
    if note == "break":
        gutter = f'<b style="background-color:{tint("#d55e00")}">{gutter}</b>'
    elif colour:
        gutter = f'<span style="background-color:{tint(colour)}">{gutter}</span>'
    return f"{gutter}  {code}"


def _highlight_lines(artifact: Artifact) -> Iterator[str]:
    """Lines of Python as HTML: keywords bold, comments and docstrings italic, readable on any background."""
    tokens = PythonLexer(stripnl=False, ensurenl=False).get_tokens(artifact.text.removesuffix("\n"))
    line = ""
    for kind, value in tokens:
        tag = "b" if kind in Keyword else "i" if kind in Comment or kind in String.Doc else ""
        first, *rest = value.split("\n")
        line += _wrap_in_tag(tag, first)
        for piece in rest:
            yield line
            line = _wrap_in_tag(tag, piece)
    yield line


def _wrap_in_tag(tag: str, code: str) -> str:
    return f"<{tag}>{safe(code)}</{tag}>" if tag and code.strip() else safe(code)


def _pictures(record: Record) -> str:
    """Drawings of the first captured graphs, if Graphviz is installed and they are small enough."""
    captured = [artifact for artifact in record.of_stage("captured") if has_flow(artifact)]
    shown: list[str] = []
    room = PICTURE_BYTES
    for artifact in captured[:PICTURES]:
        try:
            svg = plain_svg(drawing(record, artifact, readable=PICTURE_BOXES).pipe(format="svg", encoding="utf-8"))
        except ExecutableNotFound:
            return note("The captured graph is drawn here where Graphviz (`dot`) is installed; its text is below.")
        except CalledProcessError as error:
            return note(f"Graphviz could not draw {artifact.id}: {error}")
        room -= len(svg)
        if room < 0:
            shown.append(note(f"{artifact.id} is too big for a picture here: run.drawing({artifact.id!r}) draws it."))
            break
        shown.append(_picture(artifact, svg, is_open=not shown))
    return "\n".join([*shown, left_out_note(len(captured), PICTURES, "captured graphs", "run.drawing('captured[…]')")])


def _picture(artifact: Artifact, svg: str, is_open: bool) -> str:
    return details(f"<b>captured graph</b> {safe(artifact.graph)}, drawn", picture(artifact.title, svg), is_open)


def _stages(record: Record) -> str:
    """Each stage folded, with its size in the title; the graphs of a stage are folded inside it."""
    artifacts = [artifact for artifact in record.artifacts if artifact.stage not in ("source", *MACHINE_STAGES)]
    room = max(TEXT_LEAST, min(TEXT_MOST, BUDGET // max(1, len(artifacts))))
    fitting = artifacts[: BUDGET // room]
    stages: dict[str, list[Artifact]] = {}
    for artifact in fitting:
        stages.setdefault(artifact.stage, []).append(artifact)
    shown = [_stage(stage, members, room) for stage, members in stages.items()]
    more = left_out_note(len(artifacts), len(fitting), "stages and graphs", "print(run)")
    return "\n".join([*shown, more]) + _machine(record)


def _machine(record: Record) -> str:
    """A note on how to print machine code, which is too long for the static view; "" if there is none."""
    there = [stage for stage in MACHINE_STAGES if record.of_stage(stage)]
    calls = ", ".join(f"print(run[{stage!r}])" for stage in there)
    return note(f"{pluralize(len(record.binaries), 'kernel')} compiled to machine code: {calls}") if there else ""


def _stage(stage: str, artifacts: list[Artifact], room: int) -> str:
    if len(artifacts) == 1:
        return details(
            f"<b>{safe(stage_title(stage))}</b> {_artifact_title(artifacts[0])}", _clip_text(artifacts[0], room)
        )
    inside = "".join(details(_artifact_title(artifact), _clip_text(artifact, room)) for artifact in artifacts)
    return details(f"<b>{safe(stage_title(stage))}</b> {muted_html(counts(artifacts))}", inside)


def _artifact_title(artifact: Artifact) -> str:
    where = f" {artifact.graph}" if artifact.graph and artifact.graph not in artifact.title else ""
    return f"{safe(artifact.title + where)} {muted_html(counts([artifact]))}"


def _clip_text(artifact: Artifact, room: int) -> str:
    """HTML of as many whole lines as fit into `room` characters, and a note on how to print all lines."""
    lines = text_lines(artifact.text)
    shown: list[str] = []
    for line in lines:
        escaped = safe(clip(line, 400))
        room -= len(escaped) + 1
        if room < 0:
            break
        shown.append(escaped)
    more = left_out_note(len(lines), len(shown), "lines", f"print(run[{artifact.id!r}])")
    return pre(shown) + more


def _kernels(record: Record) -> str:
    totals = text.kernel_totals(record)
    table = table_html(("kernel", "kind", "calls", "bytes of all calls"), totals[:ROWS])
    return _facts("different kernel", len(totals), table, "run.kernels")


def _ops(record: Record) -> str:
    counts = tables.ops(record)
    rows = [(str(op), *map(str, row)) for op, row in zip(counts.index, counts.to_numpy(), strict=True)]
    table = table_html(("op", *counts.columns), rows[:ROWS])
    return _facts("different op", len(rows), table, "run.ops")


def _problems(record: Record) -> str:
    rows = [
        (
            f"{stage_title(problem.stage)} {graphs_of((problem, *others))}".strip(),
            problem.reason,
            problem.hint or _card(problem, record),
        )
        for problem, *others in problem_groups(record)[:ROWS]
    ]
    table = table_html(("stage", "why it could not be had", "what to do"), rows)
    return _facts("problem", len(record.problems), table, "run.tables.problems", is_open=True)


def _card(problem: Problem, record: Record) -> str:
    """A reference to the card of the graph break that a problem is about, or ""."""
    number = card_number(problem, record)
    return f"its card is number {number} under the graph breaks above" if number else ""


def _facts(name: str, count: int, table: str, where: str, is_open: bool = False) -> str:
    """A table of facts folded under its count; "" if there are none."""
    if not count:
        return ""
    return details(f"<b>{pluralize(count, name)}</b>", table + left_out_note(count, ROWS, "rows", where), is_open)


def _footer() -> str:
    return note(
        'Static view. To explore it, run the cell, or open the page that run.save("run.html") writes. If the cell ran '
        "and an error is below, reload the browser's page: it was opened before tcompile was installed."
    )
