"""`tcompile.export` and `tcompile.save_and_load`: export a model, and save it to run without its Python code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from compiler.record import Problem, Record
from compiler.record.options import Options
from explorer.findings.breaks import outcome_words
from explorer.run.run import Run

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


def export(
    fn: Callable[..., Any], *args: Any, strict: bool | None = None, dynamic_shapes: Any = None, **kwargs: Any
) -> Run:
    """Export a call with torch.export, strict and non-strict side by side.

    >>> run = tcompile.export(model, x)
    >>> print(run["exported"])

    `strict=True` or `strict=False` exports only in that mode. `run["exported"]` is the program with its signature and
    the ranges of symbolic sizes. `run.value` is the `ExportedProgram`, non-strict if both succeeded; None if export
    failed: then `run.cards` has the line, the reason, and a fix. `dynamic_shapes` is that of `torch.export.export`.
    """
    from compiler.capture.function_names import title_of
    from compiler.capture.sources import SourceBook
    from compiler.export.exporting import export_program
    from compiler.process.environment import environment

    book, modes = SourceBook(), (False, True) if strict is None else (strict,)
    found = [export_program(fn, args, kwargs, strict=mode, dynamic_shapes=dynamic_shapes, book=book) for mode in modes]
    problems = [one.problem for one in found if one.problem]
    cards = [(one.mode, one.card) for one in found if one.card]
    problems += [Problem("exported", f"{mode}: {card.what} {outcome_words(card)}") for mode, card in cards]
    record = Record(
        title=title_of(fn),
        options=Options(),
        environment=environment(),
        artifacts=(*book.artifacts(), *(one.artifact for one in found if one.artifact)),
        breaks=tuple(card for _, card in cards),
        problems=tuple(problems),
    )
    return Run(record, next((one.program for one in found if one.program), None))


def save_and_load(model: nn.Module, *args: Any, backend: str = "aot_eager", **kwargs: Any) -> pd.DataFrame:
    """Try each way to save a compiled model, load it and call it; return a table.

    >>> tcompile.save_and_load(model, x)[["way", "outcome", "words"]]

    A copy of the model in eval mode is used. `outcome` compares outputs with the model's own ("equal" is bitwise).
    `words` explains each way: why names begin with `_orig_mod.`, the contents of the file, and its requirements.
    Raises TypeError if `model` is not an `nn.Module`, ValueError if it can't be copied.
    """
    from compiler.export.saving import ways_to_save
    from explorer.reading.data_frames import table_of

    ways = ways_to_save(model, args, kwargs, backend=backend)
    rows = [{"way": way.name, "outcome": way.outcome, "bytes": way.size or None, "difference": way.difference,
             "seconds": way.seconds, "code": way.code, "words": way.words} for way in ways]  # fmt: skip
    return table_of("saving", rows)
