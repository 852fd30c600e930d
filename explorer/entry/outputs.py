"""What a `%%tcompile` cell shows while it runs and when it is done: static HTML and then the widget, or plain text."""

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
"""At most so often is a running view brought up to date: sending it takes time from the cell."""

LAST_STAGES = ("kernels", "bytecode")

_NOTE = "border-left:4px solid rgba(127,127,127,0.5);padding:0.2em 0.8em"


class Output:
    """Where an exploration is shown; `widget` is its live view, None where there is none (yet).

    By itself it is for a terminal: it shows a summary at the end.
    """

    widget: Any = None

    def begin(self) -> None:
        """The cell starts."""

    def hear(self, event: Event, known: Callable[[], Record]) -> None:
        """A stage has started or ended; `known` gives what is recorded so far."""

    def end(self, run: Run) -> None:
        """The cell is done, or has failed."""
        if run.record.artifacts or run.record.problems:
            display({"text/plain": _summary(run)}, raw=True)


class NotebookOutput(Output):
    """For a notebook: static HTML, which stays when the notebook is saved, and the widget: as soon as there is a graph,
    or at the end where there is none.

    `with_widget=False` shows the HTML only, `at_end` the widget when all is there: one of two sides can't grow.
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
        """Whether to update: at once after the last stage of a graph, as the user's code may run for long then."""
        is_last = event.kind == "artifact" and event.stage in LAST_STAGES
        return is_last or time.monotonic() - self._updated > UPDATE_SECONDS

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
        # It reads and joins the front end's files, which a terminal does without.
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
    """An output whose errors can't break the cell: the first is reported at the end, until then nothing is shown."""

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

    def end(self, run: Run) -> None:
        self._guard(lambda: self._output.end(run))
        if self._error is not None:
            trace = "".join(traceback.format_exception(self._error))
            told = f"tcompile could not show all of this exploration; what it found is kept.\n{trace}"
            warnings.warn(told, stacklevel=2)

    def _guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 told in `end`: here it would be raised inside torch.compile
            self._error = self._error or error


def _summary(run: Run) -> str:
    """A run as text; where nothing was compiled, the reason and what to do."""
    if run.record.artifacts:
        return str(run)
    told = [f"tcompile: {problem.reason}.\nWhat to do: {problem.hint}." for problem in run.record.problems]
    return "\n".join(told) or "tcompile: the cell ended before anything was compiled."


def _note(text: str) -> dict[str, str]:
    """A few lines of text, with `code` in backticks, as an output."""
    lines = [prose(line) for line in text.splitlines()]
    paragraphs = "".join(f'<p style="margin:0.2em 0">{line}</p>' for line in lines)
    return {"text/plain": text, "text/html": f'<div style="{_NOTE}">{paragraphs}</div>'}


class ShownWidgets:
    """The widgets that each notebook cell shows, which are closed when the cell runs again.

    Without this every run of a cell would leave a widget and its record in memory.
    """

    def __init__(self) -> None:
        self._of_cell: dict[str, list[tuple[int, Any, weakref.ref[Run]]]] = {}

    def add(self, cell: str, execution: int, run: Run, widget: Any) -> None:
        self._of_cell.setdefault(cell, []).append((execution, widget, weakref.ref(run)))

    def close_older(self, cell: str, execution: int) -> None:
        """Close what the cell showed in executions before this one."""
        shown = self._of_cell.pop(cell, [])
        self._of_cell[cell] = [entry for entry in shown if entry[0] == execution]
        for number, widget, of_run in shown:
            if number != execution:
                widget.close()
                if (run := of_run()) is not None:
                    run._widget = None  # kept under a name, it makes a new one when it is asked
