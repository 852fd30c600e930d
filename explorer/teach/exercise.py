"""An exercise: a question about a small program. It has no solution: the program's exploration answers it."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import torch

from compiler.engine import Exploration
from compiler.option_checks import parse_options
from explorer.run.run import Run
from explorer.teach.ask import questions_of
from explorer.teach.backward_questions import gradients_artifact
from explorer.teach.gradients import gradients_of
from explorer.teach.listing import Listing
from explorer.teach.prediction import Outcome
from explorer.teach.sheet import Sheet


@dataclass(frozen=True)
class Program:
    """A program to ask about, as a learner would write it in a cell; the function `f` is compiled.

    `stages` are the stages that its exercises need: fewer are faster.
    """

    name: str
    code: str
    stages: tuple[str, ...] = ()

    @property
    def listing(self) -> Listing:
        return Listing(self.code)


@dataclass(frozen=True)
class Exercise:
    """Questions about a program. `ask` is written as for `%%predict`; `hints` help, one after the other."""

    name: str
    topic: str
    title: str
    program: Program
    ask: str
    hints: tuple[str, ...] = field(default=())

    def sheet(self) -> Sheet:
        """The questions, not yet answered."""
        return Sheet(self.title, self.program.listing, questions_of(self.ask), shows_code=True, hints=self.hints)


def solved_sheets(exercises: Sequence[Exercise]) -> list[Sheet]:
    """The questions of exercises, graded without answers. Each program is explored once; what it prints is dropped."""
    programs = {each.program.name: each.program for each in exercises}
    with redirect_stdout(StringIO()):
        records = {name: explore_program(program).record for name, program in programs.items()}
    return [each.sheet().grade_answers(record) for each in exercises if (record := records[each.program.name])]


def explore_program(program: Program) -> Outcome:
    """Run a program with its function `f` compiled, in a namespace of its own; the random state is as before."""
    file = f"{program.name}.py"
    linecache.cache[file] = (len(program.code), None, program.code.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": program.name, "torch": torch}
    definitions, calls = _split(program.code)
    options = parse_options(stages=",".join(program.stages)) if program.stages else parse_options()
    with torch.random.fork_rng(devices=[]), Exploration(options, title=program.name) as exploration:
        torch.manual_seed(0)
        exec(compile(definitions, file, "exec"), names)
        names["f"] = exploration.compile(names["f"])
        exec(compile(calls, file, "exec"), names)
    record = exploration.record
    gradients = gradients_artifact(gradients_of(names, program.code))
    run = Run(record, kept=exploration.kept, call=exploration.call)
    return Outcome(run, record.with_fields(artifacts=(*record.artifacts, gradients)))


def _split(code: str) -> tuple[ast.Module, ast.Module]:
    """The statements up to the definition of `f`, and those after it."""
    body = ast.parse(code).body
    end = 1 + next(index for index, node in enumerate(body) if isinstance(node, ast.FunctionDef) and node.name == "f")
    return ast.Module(body[:end], []), ast.Module(body[end:], [])
