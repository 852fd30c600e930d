"""Replay TorchDynamo's analysis: the symbolic stack, locals, FX graph and guards at each instruction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from compiler.record import Record, Step

NODES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class State:
    """Dynamo's state just before step `index` of `steps`. Prints as text.

    `stack` (bottom first) and `locals` belong to the current call. `nodes` and `guards` were added by earlier steps of
    the same attempt.
    """

    index: int
    steps: int
    step: Step
    stack: tuple[str, ...]
    locals: dict[str, str]
    nodes: tuple[str, ...]
    guards: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    __repr__ = __str__


@dataclass(slots=True)
class _Call:
    stack: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)


class Replay:
    """Cursor over the recorded steps. Each move returns the `State` at the new position.

    Raises ValueError for a record made without `--step`.
    """

    def __init__(self, record: Record) -> None:
        if not record.steps:
            raise ValueError("nothing to replay: explore with step=True (--step) to record how TorchDynamo reads code")
        self._record = record
        self.index = 0

    def __len__(self) -> int:
        return len(self._record.steps)

    def at(self, index: int) -> State:
        """Move to step `index`, from 0; a negative index counts from the end. Raises IndexError if out of range."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no step {index}: steps are 0 to {len(self) - 1}")
        self.index = index % len(self)
        return self._state()

    def forward(self, steps: int = 1) -> State:
        """Move forward by `steps`, at most to the last step."""
        return self.at(max(0, min(self.index + steps, len(self) - 1)))

    def back(self, steps: int = 1) -> State:
        """Move back by `steps`, at most to the first step."""
        return self.forward(-steps)

    def before_break(self, number: int = 0) -> State:
        """Move to the instruction that caused graph break `number` of the record, before it runs.

        Raises IndexError if there is no such break, LookupError if its instruction was not recorded.
        """
        breaks = self._record.breaks
        if not 0 <= number < len(breaks):
            raise IndexError(f"there is no graph break {number}: the record has {len(breaks)}")
        index = break_step(self._record, number)
        if index is None:
            found = breaks[number]
            raise LookupError(f"the instruction of graph break {number} was not recorded: {found.file}:{found.line}")
        return self.at(index)

    def _state(self) -> State:
        steps = self._record.steps
        step = steps[self.index]
        calls: dict[int, _Call] = {}
        nodes: list[str] = []
        guards: list[str] = []
        for earlier in self._attempt():
            _apply(calls, earlier)
            if earlier is not step:
                nodes.extend(earlier.nodes)
                guards.extend(earlier.guards)
        call = calls[step.depth]
        return State(self.index, len(self), step, tuple(call.stack), dict(call.values), tuple(nodes), tuple(guards))

    def _attempt(self) -> Iterator[Step]:
        """Steps of the current attempt at the current frame, up to and including the current step."""
        here = self._record.steps[self.index]
        for step in self._record.steps[: self.index + 1]:
            if (step.frame, step.attempt) == (here.frame, here.attempt):
                yield step

    def __str__(self) -> str:
        return str(self._state())

    __repr__ = __str__


def break_step(record: Record, number: int) -> int | None:
    """Index of the step at which graph break `number` happened; None if that step was not recorded."""
    found = record.breaks[number]
    here = [
        index
        for index, step in enumerate(record.steps)
        if (step.frame, step.file, step.line) == (found.frame, found.file, found.line)
    ]
    return next((index for index in here if record.steps[index].ended), here[-1] if here else None)


def _apply(calls: dict[int, _Call], step: Step) -> None:
    if step.first:
        calls[step.depth] = _Call()
    call = calls.setdefault(step.depth, _Call())
    call.stack[step.kept :] = step.pushed
    for name, value in step.changed.items():
        if value:
            call.values[name] = value
        else:
            call.values.pop(name, None)


def _lines(state: State) -> Iterator[str]:
    step = state.step
    again = f", attempt {step.attempt}" if step.attempt > 1 else ""
    yield f"step {state.index} of {state.steps}  frame {step.frame}{again}  {step.file}:{step.line} in {step.function}"
    yield f"  {step.offset} {step.opcode} {step.argument}".rstrip()
    if step.ended:
        yield f"  ended in {step.ended}"
    yield "stack, top first:" if state.stack else "stack: empty"
    yield from (f"  {value}" for value in reversed(state.stack))
    yield "locals:" if state.locals else "locals: none"
    yield from (f"  {name} = {value}" for name, value in state.locals.items())
    left_out = len(state.nodes) - NODES_SHOWN
    yield f"graph: {len(state.nodes)} nodes" + (f", the last {NODES_SHOWN}:" if left_out > 0 else "")
    yield from (f"  {node}" for node in state.nodes[-NODES_SHOWN:])
    yield f"guards: {len(state.guards)}"
