"""`run.overlap`: when a rank communicates, and the same step under Inductor's passes on communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from compiler.advise.communication import PASSES
from compiler.record import Record
from compiler.record.plain_text import did_you_mean
from explorer.findings.advice.adviser import NO_CALL
from explorer.findings.overlap import DEFAULT, Side, overlap_document, overlap_finding
from explorer.reading.data_frames import table_of
from explorer.render.finding import as_artifact
from explorer.run.subjects import Subject

if TYPE_CHECKING:
    import pandas as pd

    from compiler.calls.call import Call
    from explorer.run.run import Run


class Overlap(Subject):
    """Communication beside compute in one step of this rank, by estimates. Prints the report of all collectives."""

    stage, absent = "collectives", "this run has no collectives: torch.distributed was not used in a graph"

    def compare(self, *names: str) -> Overlaps:
        """Explore the call again with Inductor's passes on communication, and compare the schedules.

        `names` are some of "bucketing", "overlap scheduling", "reordering" and "async TP"; by default all of them. The
        result prints as text and shows both lanes of each side; `.table` is a DataFrame, and `["bucketing"]` the run of
        a side, for `run.diff`. It is then also the stage `overlap` of the run. Raises KeyError for an unknown name,
        ValueError for a run without a call.
        """
        for name in names:
            if name not in PASSES:
                raise KeyError(f"there is no pass {name!r}{did_you_mean(name, PASSES)}")
        call = self._run.call
        if call is None:
            raise ValueError(NO_CALL.replace("advice on", "passes on"))
        found = Overlaps(sides_of(self._run.record, call, names or tuple(PASSES)), type(self._run))
        artifact = as_artifact(overlap_finding(found.sides))
        self._run.compiler.grow(lambda record: with_artifact(record, artifact))
        return found


def with_artifact(record: Record, artifact: Any) -> Record:
    """The record with this artifact in place of an earlier one of its stage."""
    others = tuple(each for each in record.artifacts if each.id != artifact.id)
    return record.with_fields(artifacts=(*others, artifact))


def sides_of(record: Record, call: Call, names: tuple[str, ...]) -> tuple[Side, ...]:
    """The call as it is, and under each pass; a pass that fails has its problem."""
    from dataclasses import replace

    from compiler.advise.simulate import explore_with, traffic_of
    from compiler.advise.trial import CannotApplyError
    from compiler.engine import explore_again
    from compiler.torch_api.settings import known_options

    sides = [Side(DEFAULT, record.options.options, record, traffic_of(record))]
    for name in names:
        asked: Mapping[str, Any] = known_options(PASSES[name])
        options = replace(record.options, mode="default", options={**record.options.options, **asked})
        try:
            found = explore_with(record, call, options, explore_again)
        except CannotApplyError as error:
            sides.append(Side(name, asked, problem=str(error)))
        else:
            sides.append(Side(name, asked, found, traffic_of(found)))
    return tuple(sides)


class Overlaps:
    """The schedules of a step under several passes. Prints as text, displays as HTML; `table` is a DataFrame."""

    def __init__(self, sides: tuple[Side, ...], make_run: Callable[[Record], Run]) -> None:
        self.sides = sides
        self._make_run = make_run

    def __getitem__(self, name: str) -> Run:
        """The run of a side, by the name of its pass. Raises KeyError."""
        for side in self.sides:
            if side.name == name and side.record is not None:
                return self._make_run(side.record)
        known = [side.name for side in self.sides if side.record is not None]
        raise KeyError(f"there is no side {name!r}{did_you_mean(name, known)}")

    @property
    def table(self) -> pd.DataFrame:
        """One row per pass: collectives, exact bytes, and estimated times in microseconds; NA if unknown."""
        rows = []
        for side in self.sides:
            row: dict[str, Any] = {"pass": side.name, "problem": side.problem or None}
            if (sent := side.traffic) is not None:
                row |= {"collectives": sent.calls, "bytes": sent.bytes}
                times = {"communication_us": sent.seconds, "exposed_us": sent.exposed, "step_us": sent.whole}
                row |= {name: None if each is None else round(each * 1e6, 3) for name, each in times.items()}
            rows.append(row)
        return table_of("overlap", rows)

    def __str__(self) -> str:
        return overlap_finding(self.sides).artifact.text

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        from explorer.render.static import document_html

        return {"text/plain": str(self), "text/html": document_html(overlap_document(self.sides))}
