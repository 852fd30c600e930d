"""One run of a `%%tcompile` cell: an exploration around it, what it shows, and the `Run` that is left."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from compiler.engine import Event, Exploration
from compiler.options import Options
from compiler.record import Record
from explorer.cell import Cell
from explorer.choice import Choice
from explorer.nothing_compiled import nothing_compiled
from explorer.outputs import Output
from explorer.run import Run


class Session:
    """A context manager. `run_cell` runs the cell inside it; `keep` is given the `Run`, also when the cell fails."""

    def __init__(self, cell: Cell, options: Options, output: Output, keep: Callable[[Run], None]) -> None:
        self._cell = cell
        self._output = output
        self._keep = keep
        self._value: Any = None
        self._exploration = Exploration(options, listener=self._hear)
        self._choice: Choice = cell.choice(self._exploration.compile)

    def __enter__(self) -> Session:
        self._output.begin()
        self._exploration.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._exploration.__exit__(kind, error, traceback)
        finally:
            run = Run(self._record(failed=error is not None), self._value, self._output.widget)
            run.kept, run.call = self._exploration.kept, self._exploration.call
            self._keep(run)
            self._output.end(run)

    def run_cell(self) -> Any:
        """Run the cell; the value of its last expression, or None."""
        self._value = self._cell.run(self._choice)
        return self._value

    async def run_cell_async(self) -> Any:
        """As `run_cell`, for a cell that awaits."""
        self._value = await self._cell.run_async(self._choice)
        return self._value

    def _hear(self, event: Event) -> None:
        self._output.hear(event, lambda: self._exploration.record)

    def _record(self, *, failed: bool) -> Record:
        record = self._exploration.record
        if failed or any(frame.outcome != "skipped" for frame in record.frames):
            return record
        # The engine does not know the cell: its own word on why nothing was compiled gives way.
        return record.with_(problems=(nothing_compiled(self._cell, self._choice),))
