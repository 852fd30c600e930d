"""Steps of TorchDynamo's symbolic execution as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compiler.capture.bytecode import GeneratedNames
from compiler.capture.sources import SourceBook
from compiler.record import Problem, Step
from compiler.torch_api.stepping import StepFacts, observe_steps

MIB = 1 << 20
MOST_MIB = 128
"""Default memory limit for the steps of one exploration, in MiB: about 130,000 instructions."""


@contextmanager
def recorded_steps(
    keep: Callable[[tuple[Step, ...], Problem | None], None],
    *,
    frame_id: Callable[[tuple[int, int]], str],
    book: SourceBook,
    names: GeneratedNames,
    most: int,
) -> Iterator[None]:
    """Record every instruction that Dynamo traces in the block; at its end, `keep` is called with the steps.

    Steps beyond `most` bytes are dropped, and `keep` gets a Problem that says so. Source lines of steps are added to
    the book.
    """
    taken: list[StepFacts] = []
    watch = None
    try:
        with observe_steps(taken, most) as watch:
            yield
    finally:
        steps = tuple(_step(facts, frame_id, book, names) for facts in taken if facts.key[0] >= 0)
        keep(steps, _cut(len(steps), most) if watch is not None and watch.full else None)


def _cut(count: int, most: int) -> Problem:
    why = f"these are the first {count:,} instructions that Dynamo read: the rest takes more than {most / MIB:,.0f} MiB"
    return Problem("steps", why, f"explore with step={2 * most // MIB}, or step through one layer of the model")


def _step(
    facts: StepFacts, frame_id: Callable[[tuple[int, int]], str], book: SourceBook, names: GeneratedNames
) -> Step:
    code = facts.code
    if facts.line > 0:
        book.line(code.co_filename, facts.line)
    return Step(
        frame=frame_id(facts.key), attempt=facts.attempt, depth=facts.depth, function=names(code.co_name),
        file=book.name(code.co_filename), line=facts.line, offset=facts.offset, opcode=facts.opcode,
        argument=names(facts.argument), first=facts.first, kept=facts.kept, pushed=tuple(map(names, facts.pushed)),
        changed={name: names(value) for name, value in facts.changed.items()}, nodes=tuple(map(names, facts.nodes)),
        guards=tuple(map(names, facts.guards)), ended=names(facts.ended),
    )  # fmt: skip
