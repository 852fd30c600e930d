"""The steps of TorchDynamo's reading as plain data: frames as this exploration numbers them, files by short names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compiler.capture.bytecode import GeneratedNames
from compiler.capture.sources import SourceBook
from compiler.record import Problem, Step
from compiler.torch_api.stepping import StepFacts, stepping

MOST_STEPS = 20_000


@contextmanager
def recorded_steps(
    keep: Callable[[tuple[Step, ...], Problem | None], None],
    *,
    frame_id: Callable[[tuple[int, int]], str],
    book: SourceBook,
    names: GeneratedNames,
    most: int = MOST_STEPS,
) -> Iterator[None]:
    """Record every instruction that Dynamo reads in the block; `keep` is given the steps when it ends, however it ends.

    Steps beyond `most` are left out, and a Problem says so.
    """
    taken: list[StepFacts] = []
    try:
        with stepping(taken, most):
            yield
    finally:
        steps = tuple(_step(facts, frame_id, book, names) for facts in taken if facts.key[0] >= 0)
        keep(steps, _cut(most) if len(taken) >= most else None)


def _cut(most: int) -> Problem:
    why = f"the replay has the first {most:,} instructions that Dynamo read; the rest was not recorded"
    return Problem("bytecode", why, "step through a smaller model, or one layer of it")


def _step(
    facts: StepFacts, frame_id: Callable[[tuple[int, int]], str], book: SourceBook, names: GeneratedNames
) -> Step:
    code = facts.code
    return Step(
        frame=frame_id(facts.key), attempt=facts.attempt, depth=facts.depth, function=names(code.co_name),
        file=book.name(code.co_filename), line=facts.line, offset=facts.offset, opcode=facts.opcode,
        argument=names(facts.argument), first=facts.first, kept=facts.kept, pushed=tuple(map(names, facts.pushed)),
        changed={name: names(value) for name, value in facts.changed.items()}, nodes=tuple(map(names, facts.nodes)),
        guards=tuple(map(names, facts.guards)), ended=names(facts.ended),
    )  # fmt: skip
