"""Add times of the user's call to a record under construction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.calls.call import Call
from compiler.calls.explored import cannot_repeat
from compiler.record import Problem, Record
from compiler.record.builder import Builder
from compiler.record.measure_facts import Candidate
from compiler.timing.candidate_times import Measured, Plan, Progress, measure

NO_CALL = Problem(
    "timing",
    "there is no call to time: what the cell compiles with torch.compile itself can't be compiled in other ways here",
    "call the model or function itself, without torch.compile, in the cell",
)


def time_call(builder: Builder, call: Call | None) -> None:
    """Time the candidates in the options. A failure is a problem of the record; the user's cell goes on."""
    builder.start("timing")
    if call is None:
        builder.problem(NO_CALL)
        return

    def tell(progress: Progress) -> None:
        builder.progress("timing", str(progress))

    try:
        found = measure(call, builder.options, Plan(builder.options.time), tell)
    except Exception as error:  # noqa: BLE001 - whatever the user's call raises when it is repeated
        builder.problem(cannot_repeat(error))
        return
    builder.candidates[:] = found.candidates
    builder.measurement = found.measurement
    for problem in problems(found.candidates):
        builder.problem(problem)


def problems(candidates: Iterable[Candidate]) -> Iterator[Problem]:
    """Problems that say why candidates have no numbers."""
    for candidate in candidates:
        if candidate.problem:
            reason = f"{candidate.name} was not timed: {candidate.problem}"
            yield Problem("timing", reason, "the other candidates are not touched by this; leave it out of time=")


def with_times(record: Record, found: Measured) -> Record:
    """The record with its candidates replaced."""
    kept = [problem for problem in record.problems if problem.stage != "timing"]
    return record.with_fields(
        candidates=found.candidates,
        measurement=found.measurement,
        problems=(*kept, *problems(found.candidates)),
    )
