"""One run of a `%%tcompile` cell: its exploration, its output, and the resulting `Run`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any

from IPython.core.error import UsageError

from compiler.calls.call import Call, call_again
from compiler.distributed.group import SimulatedGroup, simulate_asked
from compiler.distributed.ranks import Ranks, asks_several, explore_others, first_rank
from compiler.distributed.shared_graphs import SharedGraphs
from compiler.engine import Event, Exploration
from compiler.record import Problem, Record
from compiler.record.options import OptionError, Options
from compiler.torch_api.fx import SourceFrame
from explorer.entry.cell import Cell, StartOfCell
from explorer.entry.choice import Choice
from explorer.entry.nothing_compiled import explain_nothing_compiled, explain_second_call
from explorer.entry.outputs import Output, Silent
from explorer.run.run import Run


class Session:
    """Context manager for one run of a cell (`run_cell`); `keep` receives the `Run`, also if the cell fails.

    With `with_xray`, it finds all sites of graph breaks at the end, and tries fixes. If the options ask for ranks, the
    cell runs as the first of them, and again for each other rank, with silent output, on copies of the models and
    tensors that it uses. `rank` and `shared` are set for these.
    """

    def __init__(
        self,
        cell: Cell,
        options: Options,
        output: Output,
        keep: Callable[[Run], None],
        *,
        with_xray: bool = False,
        rank: int | None = None,
        shared: SharedGraphs | None = None,
    ) -> None:
        self._cell = cell
        self._output = output
        self._keep = keep
        self._options = options
        self._with_xray = with_xray
        self._value: Any = None
        self._job = ExitStack()
        self._rank = first_rank(options) if rank is None else rank
        if asks_several(options) and cell.awaits:
            raise UsageError("several ranks run the cell again, which can't await at its top level: name one --rank")
        self._start = StartOfCell(cell) if rank is None and asks_several(options) else None
        self._shared = SharedGraphs() if self._start is not None else shared
        self._exploration = self._new_exploration()
        self._choice: Choice = cell.choice(self._compile)
        self._has_compiled = False
        self._notes: tuple[Problem, ...] = ()

    def _new_exploration(self, site: tuple[SourceFrame, ...] | None = None) -> Exploration:
        return Exploration(self._options, listener=self._hear, site=site, shared=self._shared)

    def __enter__(self) -> Session:
        try:
            if self._options.ranks or self._options.fake:
                self._job.enter_context(simulate_asked(self._options, self._rank))
        except OptionError as error:
            raise UsageError(str(error)) from None
        self._output.begin()
        self._exploration.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        group, ranks = SimulatedGroup.active, None
        try:
            try:
                self._end_exploration(kind, error, traceback)
            finally:
                self._job.__exit__(kind, error, traceback)
            if kind is None and self._options.ranks:
                ranks = self._explore_other_ranks()
        finally:
            self._finish(group, ranks, failed=error is not None)

    def _end_exploration(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and not self._exploration.record.frames:
            self._call_again()
        self._exploration.__exit__(kind, error, traceback)
        if self._start is not None and self._shared is not None:
            self._shared.complete(self._exploration.record)

    def _explore_other_ranks(self) -> Ranks:
        """Run the cell again for each other rank that the options ask for; its output is discarded."""

        def explore_rank(rank: int) -> Record:
            assert self._start is not None  # only one rank is asked for without it
            found: list[Run] = []
            with (
                self._start.repeat_cell() as cell,
                Session(cell, self._options, Silent(), found.append, rank=rank, shared=self._shared) as session,
            ):
                session.run_cell()
            return found[0].record

        return explore_others(self._options, self._record(failed=False), self._exploration.shardings, explore_rank)

    def _finish(self, group: SimulatedGroup | None, ranks: Ranks | None, *, failed: bool) -> None:
        """Keep and show the run; x-ray it if that was asked for and the cell did not fail."""
        run = Run(
            ranks.records[self._rank] if ranks is not None else self._record(failed=failed),
            self._value,
            self._output.widget,
            kept=self._exploration.kept,
            call=self._exploration.call,
            calls={name: _in_group(call, group) for name, (_, call) in self._choice.calls.items()},
            ranks=(lambda: ranks) if ranks is not None else None,
        )
        self._choice.calls = {}
        self._keep(run)
        try:
            if self._with_xray and not failed:
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
        self._exploration = self._new_exploration(site)
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


def _in_group(call: Call, group: SimulatedGroup | None) -> Call:
    """The call, to be repeated in a simulated process group."""
    return replace(call, surroundings=replace(call.surroundings, group=group))
