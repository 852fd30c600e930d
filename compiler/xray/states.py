"""Capture the program with one more of its fixes each time, for the map of the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler.record import Artifact, Fix, GraphBreak, GraphLines, ProgramState, Record
from compiler.record.limits import MOST_STATES
from compiler.xray.causes import CauseSearch
from compiler.xray.fixes import change_of
from compiler.xray.substitution import Change
from compiler.xray.time_limit import TimeBudget


def capture_states(found: CauseSearch, fixes: Sequence[Fix], budget: TimeBudget) -> tuple[ProgramState, ...]:
    """Capture all calls with the first, the first two, … of the fixes that work together, and no other change.

    A state whose calls raise, or write outside of the process, is left out. The state with all fixes is captured first,
    and no further one when the time is over.
    """
    chosen = [fix for fix in fixes if fix.together]
    states: list[ProgramState] = []
    for count in sorted(_counts(len(chosen)), key=lambda count: count < len(chosen)):
        if budget.is_spent():
            break
        found.search.hear(f"capturing the program with {count} of {len(chosen)} fixes")
        parts = (change_of(found.search, each) for fix in chosen[:count] for each in fix.suggestions)
        record, _ = found.record_with(
            lambda call, _: (call.args, call.kwargs), as_it_is=True, change=sum(parts, Change())
        )
        if record is not None:
            states.append(_state_of(record, count))
    return tuple(sorted(states, key=lambda state: state.count))


def _counts(most: int) -> list[int]:
    """Numbers of fixes to capture: all from 1 to `most`, or `MOST_STATES` of them that are evenly spaced."""
    if most <= MOST_STATES:
        return list(range(1, most + 1))
    return sorted({round(most * step / MOST_STATES) for step in range(1, MOST_STATES + 1)})


def _state_of(record: Record, count: int) -> ProgramState:
    """The facts of a record that the map needs."""
    sources = {
        name: (artifact.title, _number_of(artifact, row))
        for artifact in record.of_stage("source")
        for row, names in artifact.lines.items()
        for name in names
    }
    graphs = tuple(_graph_lines(artifact, sources) for artifact in record.of_stage("captured"))
    frames = tuple(replace(frame, restarts=()) for frame in record.frames)
    return ProgramState(count, frames, tuple(map(_without_words, record.breaks)), graphs)


def _graph_lines(artifact: Artifact, sources: Mapping[str, tuple[str, int]]) -> GraphLines:
    stacks = Counter(
        tuple(sources[name] for name in entity.origins if name in sources)
        for entity in artifact.entities
        if entity.kind == "call"
    )
    return GraphLines(artifact.id, artifact.graph, tuple(stacks), tuple(stacks.values()))


def _number_of(artifact: Artifact, row: int) -> int:
    numbers = artifact.attrs.get("numbers")
    return int(numbers[row - 1]) if numbers else row


def _without_words(found: GraphBreak) -> GraphBreak:
    """A break without torch's long explanations, which the site has already."""
    return replace(found, reason="", explanation="", hints=(), stack=(), suggestions=())
