"""Events outside of torch.compile: torch.export, draft_export and AOTInductor write them without an id of their own."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

from compiler.logs.events import Event
from compiler.record import Span

EXPORT = "export"
"""Id of a log's first export; the second is "export#2"."""
FAILED = "make_fx_fail_partial"
_AOT_GRAPHS = ("aot_joint_graph", "aot_inference_graph", "aot_forward_graph")
_FILE = re.compile(
    r"# File: (?P<file>.{1,999}?):(?P<line>\d{1,9}) in (?P<function>[^,\n]{1,999})(?:, code: (?P<code>.*))?$",
    re.MULTILINE,
)
_FRAME = re.compile(
    r'File "(?P<file>.{1,999}?)", line (?P<line>\d{1,9}), in (?P<function>.{1,999})\n[ \t]*(?P<code>.*)'
)
_CALL = re.compile(r"^ +\w+(?:: \"[^\"\n]*\")? = torch\.\w", re.MULTILINE)
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
MOST_TEXT = 8 * 2**20
"""Maximum characters of a graph that are searched."""


def is_of_export(event: Event) -> bool:
    """Whether an event without an id belongs to an export. Of metrics, only failures of strict exports do."""
    if event.kind == "compilation_metrics":
        return isinstance(event.fields, dict) and bool(event.fields.get("fail_type"))
    if event.kind == "graph_dump":
        return event.name.startswith("inductor_aot_")
    return event.kind != "artifact" or event.name == FAILED


def ends_export(event: Event) -> bool:
    """Whether an event is the last one of an export: its program, or its failure."""
    return event.kind in ("exported_program", "compilation_metrics") or event.name == FAILED


class ExportIds:
    """Numbers the exports of a log that have no id."""

    def __init__(self) -> None:
        self._count = 0
        self._has_graph = self._has_ended = False

    def id_of(self, event: Event) -> str:
        """The id of the export that an event belongs to. After a graph, only the program of that export can follow."""
        is_graph = event.kind in _AOT_GRAPHS
        is_other = is_graph or (ends_export(event) and event.kind != "exported_program")
        if not self._count or self._has_ended or (is_other and self._has_graph):
            self._count += 1
            self._has_graph = False
        self._has_graph |= is_graph
        self._has_ended = ends_export(event)
        return EXPORT if self._count == 1 else f"{EXPORT}#{self._count}"


def graph_of_program(text: str) -> str:
    """The graph in a printed `ExportedProgram`; its signature and constraints follow as comments."""
    graph, _, rest = text.partition("\nGraph signature:")
    graph = dedent(graph.removeprefix("ExportedProgram:\n"))
    lines = (
        [f"    # {line}".rstrip() for line in f"Graph signature:{rest}".splitlines() if line.strip()] if rest else []
    )
    return "\n".join([graph.rstrip(), *lines])


def exported_function(graph: str) -> tuple[Span, int]:
    """The first line of the user's code in an exported graph, and the number of the graph's operations."""
    places = [_span(found) for found in _FILE.finditer(graph, 0, MOST_TEXT)]
    own = [span for span in places if not span.installed] or places
    return own[0] if own else Span("", 0), sum(1 for _ in _CALL.finditer(graph, 0, MOST_TEXT))


def last_traced_line(event: Event) -> Span:
    """The last line of the user's code that was traced before an export failed."""
    fields: dict[str, Any] = event.fields if isinstance(event.fields, dict) else {}
    text, pattern = (event.payload, _FILE) if event.name == FAILED else (str(fields.get("fail_reason") or ""), _FRAME)
    places = [_span(found) for found in pattern.finditer(text, 0, MOST_TEXT)]
    own = [span for span in places if not span.installed] or places
    return own[-1] if own else Span("", 0)


def _span(found: re.Match[str]) -> Span:
    line, code = int(found["line"]), (found["code"] or "").strip()
    installed = bool(_PACKAGES.search(found["file"]))
    return Span(found["file"], line, function=found["function"].strip(), code=code, installed=installed)
