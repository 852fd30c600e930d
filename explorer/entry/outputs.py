"""Output of a `%%tcompile` cell while and after it runs: static HTML and then the widget, or plain text."""

from __future__ import annotations

import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from IPython.display import DisplayHandle, display

from compiler.engine import Event
from compiler.record import Record
from explorer.render.html import prose
from explorer.run.run import Run

UPDATE_SECONDS = 0.25
"""Minimum time between updates of a live view, because sending takes time from the cell."""

LAST_STAGES = ("kernels", "bytecode")

_NOTE = "border-left:4px solid rgba(127,127,127,0.5);padding:0.2em 0.8em"


class Output:
    """Output of an exploration; `widget` is its live view, None if there is none (yet).

    This base class is for a terminal: it prints a summary at the end.
    """

    widget: Any = None

    def begin(self) -> None:
        """Called when the cell starts."""

    def hear(self, event: Event, known: Callable[[], Record]) -> None:
        """Called when a stage starts, makes progress or ends; `known` returns the record so far."""

    def show(self, run: Run) -> None:
        """Called with the finished exploration, if an x-ray follows."""

    def hear_progress(self, words: str) -> None:
        """Called with the progress of an x-ray."""

    def end(self, run: Run) -> None:
        """Called when the cell has finished or failed."""
        if run.record.artifacts or run.record.problems:
            display({"text/plain": _summary(run)}, raw=True)


class Silent(Output):
    """Output that shows nothing."""

    def end(self, run: Run) -> None:
        """Show nothing."""


class NotebookOutput(Output):
    """Output in a notebook: static HTML, which the saved notebook keeps, and the widget.

    The widget appears with the first graph, or at the end. `with_widget=False` shows only the HTML. `at_end` shows the
    widget only at the end, because a view of two backends can't grow.
    """

    def __init__(self, *, with_widget: bool = True, at_end: bool = False) -> None:
        self._with_widget = with_widget
        self._at_end = at_end
        self._static: DisplayHandle | None = None
        self._updated = 0.0

    def begin(self) -> None:
        self._static = display(_note("Exploring…"), raw=True, display_id=True)

    def hear(self, event: Event, known: Callable[[], Record]) -> None:
        if self.widget is None and event.kind == "artifact" and event.stage == "captured" and self._grows:
            self._show_widget(known(), event.stage)
        elif event.kind == "progress" or (event.kind != "finished" and self._is_due(event)):
            self._bring_up_to_date(event, known)
            self._updated = time.monotonic()

    @property
    def _grows(self) -> bool:
        return self._with_widget and not self._at_end

    def _is_due(self, event: Event) -> bool:
        """Whether an update is due: always after a graph's last stage, because a long run of user code may follow."""
        is_last = event.kind == "artifact" and event.stage in LAST_STAGES
        return is_last or time.monotonic() - self._updated > UPDATE_SECONDS

    def show(self, run: Run) -> None:
        if self.widget is not None:
            self.widget.update(run.record)

    def hear_progress(self, words: str) -> None:
        if self.widget is not None:
            self.widget.hear_progress(words, "xray")
        elif self._static is not None:
            self._static.update(_note(f"X-ray: {words}…"), raw=True)

    def end(self, run: Run) -> None:
        if self._static is not None:
            self._static.update(run._repr_mimebundle_() if run.record.artifacts else _note(_summary(run)), raw=True)
        if self.widget is not None:
            self.widget.update(run.record)
        elif run.record.artifacts and self._at_end and self._with_widget:
            self.widget = run.widget()
            display(self.widget)
        elif run.record.artifacts and self._with_widget:
            self._show_widget(run.record)

    def _show_widget(self, record: Record, running: str = "") -> None:
        # Imported here because it reads and joins the front end's files, which a terminal does not need.
        from explorer.run.widget import Explorer

        self.widget = Explorer(record, running)
        display(self.widget)
        self._updated = time.monotonic()

    def _bring_up_to_date(self, event: Event, known: Callable[[], Record]) -> None:
        if self.widget is not None:
            self.widget.update(known(), event.stage, event.words)
        elif self._static is not None:
            self._static.update(_note(f"Exploring… {event.stage} {event.words}".rstrip()), raw=True)


class GuardedOutput(Output):
    """Wraps an output so that its errors can't break the cell.

    The first error stops further updates, and is reported as a warning at the end.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._error: Exception | None = None

    @property
    def widget(self) -> Any:
        return self._output.widget

    def begin(self) -> None:
        self._guard(self._output.begin)

    def hear(self, event: Event, known: Callable[[], Record]) -> None:
        if self._error is None:
            self._guard(lambda: self._output.hear(event, known))

    def show(self, run: Run) -> None:
        self._guard(lambda: self._output.show(run))

    def hear_progress(self, words: str) -> None:
        self._guard(lambda: self._output.hear_progress(words))

    def end(self, run: Run) -> None:
        self._guard(lambda: self._output.end(run))
        if self._error is not None:
            trace = "".join(traceback.format_exception(self._error))
            told = f"tcompile could not show all of this exploration; what it found is kept.\n{trace}"
            warnings.warn(told, stacklevel=2)

    def _guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 reported in `end`; here it would be raised inside torch.compile
            self._error = self._error or error


def _summary(run: Run) -> str:
    """A run as text; if nothing was compiled, the reason and a hint."""
    if run.record.artifacts:
        return str(run)
    told = [f"tcompile: {problem.reason}.\nWhat to do: {problem.hint}." for problem in run.record.problems]
    return "\n".join(told) or "tcompile: the cell ended before anything was compiled."


def _note(text: str) -> dict[str, str]:
    """Display data for a few lines of text with `code` in backticks."""
    lines = [prose(line) for line in text.splitlines()]
    paragraphs = "".join(f'<p style="margin:0.2em 0">{line}</p>' for line in lines)
    return {"text/plain": text, "text/html": f'<div style="{_NOTE}">{paragraphs}</div>'}


class ShownWidgets:
    """The widgets of each notebook cell, to be closed when the cell runs again.

    Otherwise every run of a cell would leave a widget and its record in memory.
    """

    def __init__(self) -> None:
        self._of_cell: dict[str, list[tuple[int, Any, weakref.ref[Run]]]] = {}

    def add(self, cell: str, execution: int, run: Run, widget: Any) -> None:
        self._of_cell.setdefault(cell, []).append((execution, widget, weakref.ref(run)))

    def close_older(self, cell: str, execution: int) -> None:
        """Close the cell's widgets from earlier executions."""
        shown = self._of_cell.pop(cell, [])
        self._of_cell[cell] = [entry for entry in shown if entry[0] == execution]
        for number, widget, of_run in shown:
            if number != execution:
                widget.close()
                if (run := of_run()) is not None:
                    run._widget = None  # a run that the user kept makes a new widget when it is displayed
