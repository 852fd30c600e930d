"""One run of a `%%tcompile` cell: its exploration, its output, and the resulting `Run`."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from compiler.calls.call import call_again
from compiler.engine import Event, Exploration
from compiler.record import Problem, Record
from compiler.record.options import Options
from compiler.torch_api.fx import SourceFrame
from explorer.entry.cell import Cell
from explorer.entry.choice import Choice
from explorer.entry.nothing_compiled import explain_nothing_compiled, explain_second_call
from explorer.entry.outputs import Output
from explorer.run.run import Run


class Session:
    """Context manager for one run of a cell (`run_cell`); `keep` receives the `Run`, also if the cell fails.

    With `with_xray`, it finds all sites of graph breaks at the end, and tries fixes.
    """

    def __init__(
        self, cell: Cell, options: Options, output: Output, keep: Callable[[Run], None], *, with_xray: bool = False
    ) -> None:
        self._cell = cell
        self._output = output
        self._keep = keep
        self._options = options
        self._with_xray = with_xray
        self._value: Any = None
        self._exploration = Exploration(options, listener=self._hear)
        self._choice: Choice = cell.choice(self._compile)
        self._has_compiled = False
        self._notes: tuple[Problem, ...] = ()

    def __enter__(self) -> Session:
        self._output.begin()
        self._exploration.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._exploration.has_graphs:
                self._call_again()
            self._exploration.__exit__(kind, error, traceback)
        finally:
            run = Run(
                self._record(failed=error is not None),
                self._value,
                self._output.widget,
                kept=self._exploration.kept,
                call=self._exploration.call,
                calls={name: call for name, (_, call) in self._choice.calls.items()},
            )
            self._choice.calls = {}
            self._keep(run)
            try:
                if self._with_xray and error is None:
                    self._xray(run)
            finally:
                self._output.end(run)

    def _xray(self, run: Run) -> None:
        """X-ray the explored call. An error becomes a problem of the record, because the cell itself has run."""
        self._output.show(run)
        try:
            run.xray(self._output.hear_progress).try_fixes()
        except Exception as error:  # noqa: BLE001 - torch may raise anything for the repeated call
            reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            problem = Problem("xray", reason)
            run.compiler.grow(lambda record: record.with_fields(problems=(*record.problems, problem)))

    def run_cell(self) -> Any:
        """Run the cell; return the value of its last expression, or None."""
        self._value = self._cell.run(self._choice)
        return self._value

    async def run_cell_async(self) -> Any:
        """Run a cell that has a top-level await; return the value of its last expression, or None."""
        self._value = await self._cell.run_async(self._choice)
        return self._value

    def _compile(self, callee: Any) -> Any:
        """Compile `callee` for the exploration; discard an earlier exploration of another callee."""
        if self._has_compiled:
            self._start_again()
        self._has_compiled = True
        return self._exploration.compile(callee)

    def _start_again(self, site: tuple[SourceFrame, ...] | None = None) -> None:
        self._exploration.discard()
        self._exploration = Exploration(self._options, listener=self._hear, site=site)
        self._exploration.__enter__()

    def _call_again(self) -> None:
        """Repeat and explore the best call of a cell in which nothing was compiled, on copies of its arguments."""
        again = self._choice.choose_again()
        if again is None:
            return
        name, call = again
        self._notes = (explain_second_call(self._choice, name, call.fn),)
        self._start_again(call.site or None)
        try:
            call_again(call, self._exploration.compile)
        except Exception as error:  # noqa: BLE001 - whatever the user's call raises when it is repeated
            reason = f"{name} could not be called again: {type(error).__name__}: {error}"
            self._notes += (Problem("captured", reason, f"call {name} on inputs that can be used twice"),)

    def _hear(self, event: Event) -> None:
        self._output.hear(event, self._current_record)

    def _current_record(self) -> Record:
        return self._exploration.record.with_fields(explored=self._choice.explored)

    def _record(self, *, failed: bool) -> Record:
        record = self._current_record()
        if self._notes:
            return record.with_fields(problems=(*self._notes, *record.problems))
        if failed or any(frame.outcome != "skipped" for frame in record.frames):
            return record
        # The engine does not know the cell, so our explanation of why nothing was compiled replaces its own.
        return record.with_fields(problems=(explain_nothing_compiled(self._cell, self._choice),))
