"""What a user holds after an exploration: the record, as tables, texts, drawings, a widget and files."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.record import Artifact, Record
from explorer import files, text

if TYPE_CHECKING:
    import pandas as pd
    from graphviz import Digraph

    from explorer.diff import RunDiff


class Run:
    """One exploration. `record` is all that was found; `value` is what the explored call returned.

    `run["forward"]` is a stage: it prints as text. `print(run)` is a summary. The tables (`run.breaks`, `run.ops`, …)
    are DataFrames made anew at each access, so that changing one changes nothing here.
    """

    def __init__(self, record: Record, value: Any = None, widget: Any = None) -> None:
        self.record = record
        self.value = value
        self._widget = widget
        self._selection: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Artifact:
        """The artifact with this id (`forward[0/0]`), or the first of this stage (`forward`). Raises KeyError."""
        return self.record[name]

    def _ipython_key_completions_(self) -> list[str]:
        stages = dict.fromkeys(artifact.stage for artifact in self.record.artifacts)
        return [*stages, *(artifact.id for artifact in self.record.artifacts)]

    @property
    def breaks(self) -> pd.DataFrame:
        """One row a graph break: kind, reason, where, torch's explanation and hints."""
        return _tables().breaks(self.record)

    @property
    def guards(self) -> pd.DataFrame:
        """One row a guard: kind, what is guarded, the check as Python."""
        return _tables().guards(self.record)

    @property
    def recompiles(self) -> pd.DataFrame:
        """One row a recompilation, with the guards that failed."""
        return _tables().recompiles(self.record)

    @property
    def graphs(self) -> pd.DataFrame:
        """One row an FX graph: nodes, inputs, calls, different ops, outputs, bytes written."""
        return _tables().graphs(self.record)

    @property
    def ops(self) -> pd.DataFrame:
        """How often each op (rows) is called in each stage (columns)."""
        return _tables().ops(self.record)

    @property
    def kernels(self) -> pd.DataFrame:
        """One row a generated kernel: kind, calls, bytes a call reads and writes, its lines."""
        return _tables().kernels(self.record)

    @property
    def decisions(self) -> pd.DataFrame:
        """One row a decision of a pass: about what, the verdict, and why."""
        return _tables().decisions(self.record)

    @property
    def saved(self) -> pd.DataFrame:
        """One row a tensor that the forward keeps for the backward: dtype, shape, bytes, the line it comes from."""
        return _tables().saved(self.record)

    @property
    def timings(self) -> pd.DataFrame:
        """One row a measured duration, in seconds."""
        return _tables().timings(self.record)

    @property
    def checks(self) -> pd.DataFrame:
        """One row a result of the compiled code compared with eager's (`--check`)."""
        return _tables().checks(self.record)

    @property
    def problems(self) -> pd.DataFrame:
        """One row a stage that could not be had, why, and what to do about it."""
        return _tables().problems(self.record)

    @property
    def frames(self) -> pd.DataFrame:
        """One row a compilation of a code object by TorchDynamo: compiled, skipped or failed."""
        return _tables().frames(self.record)

    def drawing(self, name: str = "captured", depth: int | None = None, direction: str = "TB") -> Digraph:
        """A stage's graph for print, grouped by module: `run.drawing("forward").render("forward.pdf")`.

        `depth` is how many levels of modules stay open; None opens as many as can be read. `direction` is `TB` (top
        to bottom) or `LR`. Raises KeyError for a stage that is not there, ValueError for one that is not a graph.
        """
        from explorer.drawing import drawing

        return drawing(self.record, self[name], depth=depth, direction=direction)

    def diff(self, other: Run | Record) -> RunDiff:
        """What differs between this run (`-`) and another (`+`): each stage's text, and op counts."""
        from explorer.diff import RunDiff

        return RunDiff(self.record, other.record if isinstance(other, Run) else other)

    def save(self, path: str | Path) -> Path:
        """Save as `.html` (one page to explore, no network needed) or `.json` (data). The file is whole or untouched.

        Returns the path. Raises ValueError for another suffix, OSError when it can't be written.
        """
        return files.write(self.record, path)

    def widget(self) -> Any:
        """The live view of this run: made at the first call, the same one after."""
        if self._widget is None:
            from explorer.widget import Explorer

            self._widget = Explorer(self.record)
            self._widget.selection = list(self._selection)
        return self._widget

    @property
    def selection(self) -> tuple[str, ...]:
        """Ids of the selected entities, in the widget too; set it to select from Python.

        Setting raises ValueError for an id that the record does not have.
        """
        return tuple(self._widget.selection) if self._widget is not None else self._selection

    @selection.setter
    def selection(self, ids: str | Iterable[str]) -> None:
        chosen = (ids,) if isinstance(ids, str) else tuple(ids)
        known = {entity.id for entity in self.record.entities()}
        unknown = next((entity_id for entity_id in chosen if entity_id not in known), None)
        if unknown is not None:
            raise ValueError(f"no entity has the id {unknown!r}{_nearest(unknown, sorted(known))}")
        self._selection = chosen
        if self._widget is not None:
            self._widget.selection = list(chosen)

    def __str__(self) -> str:
        return text.summary(self.record)

    def __repr__(self) -> str:
        stages = len({artifact.stage for artifact in self.record.artifacts})
        return f"<Run {self.record.title or 'tcompile'}: {text.counted(stages, 'stage')}; print(run) for a summary>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Text always, and static HTML that needs no script. The widget is an output of its own."""
        from explorer.twin import twin

        return {"text/plain": str(self), "text/html": twin(self.record)}

    def _ipython_display_(self) -> None:
        """Static HTML first, then the widget, whose script hides it: a saved notebook shows the first without one."""
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
        if getattr(get_ipython(), "kernel", None) is not None:
            display(self.widget())


def load(path: str | Path) -> Run:
    """Read a run saved as `.json`, or as a page (`.html`). Nothing in the file is executed; `value` is None.

    Raises RecordError, naming the field that is wrong, ValueError for another suffix, OSError.
    """
    return Run(files.read(path))


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _tables() -> Any:
    """Imported at first use: pandas takes longer to import than a record to read."""
    from explorer import tables

    return tables
