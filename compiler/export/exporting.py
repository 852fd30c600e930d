"""torch.export, strict and non-strict: the exported program as a graph, or a card for the failure.

Strict export traces the code with TorchDynamo, as torch.compile with `fullgraph=True` does; non-strict export runs it
in Python, on fake tensors (torch.export.export, `strict`).
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from compiler.autograd.roles import with_attrs
from compiler.calls.call import Call
from compiler.capture.breaks import graph_break
from compiler.capture.error_words import first_lines
from compiler.capture.graphs import graph_artifact, line_origins
from compiler.capture.sources import SourceBook, is_cell, is_installed
from compiler.capture.suggestions.rewrites import IS_OF_TENSOR
from compiler.capture.suggestions.values import BRANCH, UNKNOWN
from compiler.process import preserve_state
from compiler.record import Artifact, GraphBreak, Problem
from compiler.record.break_facts import BreakFacts, Place
from compiler.record.builder import Builder
from compiler.torch_api import dynamo
from compiler.torch_api.careful_export import careful_export
from compiler.torch_api.dtensor import is_dtensor
from compiler.torch_api.traced_lines import place_of, places_of, watch_restarts


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of torch.export in mode "strict" or "non-strict": the program, or its failure as a card or problem.

    `inputs` and `outputs` describe each input and output in the user's terms, by name in the graph. `ranges` are the
    ranges of symbolic sizes, `{"s77": "2 <= s77"}`.
    """

    mode: str
    program: ExportedProgram | None = None
    artifact: Artifact | None = None
    card: GraphBreak | None = None
    problem: Problem | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, str] = field(default_factory=dict)


def export_program(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    strict: bool = False,
    dynamic_shapes: Any = None,
    book: SourceBook | None = None,
) -> Exported:
    """Export a module, or a function as the forward of a module. Failures are returned in the result, not raised.

    The user's Python code runs once, on fake tensors; its output is printed.
    """
    module = fn if isinstance(fn, nn.Module) else _Called(fn)
    book, mode = book or SourceBook(), "strict" if strict else "non-strict"
    try:
        # Restarts are observed only to find the source places of errors.
        with preserve_state(), careful_export(), watch_restarts(lambda *_: None, lambda *_: None):
            program = torch.export.export(
                module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=strict
            )
    except Exception as error:  # noqa: BLE001 - any error of the user's code or of export is the result
        if why := _why_never(fn):
            return Exported(mode, problem=why)
        return _failed_export(error, mode, book)
    found = Exported(mode, program, inputs=_inputs(program), outputs=_outputs(program), ranges=_ranges(program))
    return replace(found, artifact=_artifact(program, found, book))


class _Called(nn.Module):
    """A module with a given function as its forward, as torch.export accepts only modules."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


def _artifact(program: ExportedProgram, found: Exported, book: SourceBook) -> Artifact:
    made = graph_artifact(
        program.graph_module, artifact_id=f"exported[{found.mode}]", stage="exported", graph="",
        title=f"torch.export, {found.mode}", book=book, origins=line_origins(book, ()),
    )  # fmt: skip
    told = with_attrs(made, {name: {"description": words} for name, words in found.inputs.items()})
    return replace(told, text=told.text + _appendix(found), attrs=told.attrs | {"mode": found.mode})


def _appendix(found: Exported) -> str:
    """The program's inputs, outputs and ranges of symbolic sizes, as comments to append to the graph's text."""
    lines = ["", "# inputs", *(f"#   {name}: {words}" for name, words in found.inputs.items())]
    lines += ["# outputs", *(f"#   {name}: {words}" for name, words in found.outputs.items())]
    lines += ["# symbolic sizes", *(f"#   {words}" for words in found.ranges.values())] if found.ranges else []
    return "\n".join(lines) + "\n"


def _inputs(program: ExportedProgram) -> dict[str, str]:
    words = {
        InputKind.PARAMETER: "parameter {target}",
        InputKind.BUFFER: "buffer {target}",
        InputKind.CONSTANT_TENSOR: "constant {target}",
        InputKind.USER_INPUT: "input of the call",
    }
    found = {}
    for spec in program.graph_signature.input_specs:
        form = words.get(spec.kind, spec.kind.name.lower())
        found[getattr(spec.arg, "name", str(spec.arg))] = form.format(target=spec.target)
    return found


def _outputs(program: ExportedProgram) -> dict[str, str]:
    found = {}
    for spec in program.graph_signature.output_specs:
        what = spec.kind.name.lower().replace("_", " ").replace("user output", "output of the call")
        name = str(getattr(spec.arg, "name", None) or getattr(spec.arg, "value", "None"))
        found[name] = f"{what} {spec.target}" if spec.target else what
    return found


def _ranges(program: ExportedProgram) -> dict[str, str]:
    return {
        str(symbol): f"{bounds.lower} <= {symbol}" + ("" if "oo" in str(bounds.upper) else f" <= {bounds.upper}")
        for symbol, bounds in program.range_constraints.items()
    }


def _why_never(fn: Any) -> Problem | None:
    """Why torch.export fails for a module, whatever its code is: DTensors as parameters. None for any other."""
    parameters = fn.named_parameters() if isinstance(fn, nn.Module) else ()
    name = next((name for name, value in parameters if is_dtensor(value)), None)
    if name is None:
        return None
    return Problem(
        "exported",
        f"torch.export can't hold the parameters of a split module: {name} is a DTensor",
        "export the module before parallelize_module, distribute_tensor or fully_shard splits it; what this rank "
        "computes is in the stages from captured on",
    )


def _failed_export(error: Exception, mode: str, book: SourceBook) -> Exported:
    found = places_of(error) if dynamo.is_dynamo_error(error) else _places(error)
    places = tuple(place for place in found if place.file != __file__ and _is_source(place.file))
    words = first_lines(error, 3)
    if not places:
        words = words.partition(_SUGGESTED)[0].rstrip()
        return Exported(mode, problem=Problem("exported", f"torch.export, {mode}: {words}", _export_hint(str(error))))
    if unknown := _UNKNOWN.search(words):
        is_branch = unknown["truth"] and IS_OF_TENSOR.search(str(error))
        kind = BRANCH[0] if is_branch else unknown["kind"]
    elif dynamo.is_dynamo_error(error):
        kind = words.splitlines()[0].rstrip(".")
    else:
        kind = f"{type(error).__name__} in torch.export"
    facts = BreakFacts(kind, words, (), places, str(error), raises=True)
    card = graph_break(
        f"export.{mode}", f"export {mode}", facts, book, registry=dynamo.break_registry(), fullgraph=True
    )
    return Exported(mode, card=replace(card, of_export=True))


_UNKNOWN = re.compile(rf"(?P<kind>{'|'.join(UNKNOWN)})(?P<truth> Eq\(u\d+, 1\) )?")
"""Where torch.export stops at a value that it does not know. A tensor's truth is a symbol that it compares with 1."""
_SUGGESTED = "Suggested fixes:"


def _export_hint(message: str) -> str:
    """What to change where no line is at fault: the dynamic shapes, by the lines that torch suggests."""
    suggested = message.partition(_SUGGESTED)[2].strip().partition("\n\n")[0]
    if suggested:
        return "change dynamic_shapes as torch suggests: " + "; ".join(map(str.strip, suggested.splitlines()))
    return "compile instead: torch.compile resumes after a graph break, torch.export does not"


def _places(error: BaseException) -> list[Place]:
    """Places in a traceback inside torch's call, except torch's own, up to the user's innermost; outermost first."""
    frames = list(traceback.extract_tb(error.__traceback__))
    inside = next((index for index, frame in enumerate(frames) if _is_torch(frame.filename)), len(frames))
    own = [frame for frame in frames[inside:] if not _is_torch(frame.filename)]
    last = max((index for index, frame in enumerate(own) if not is_installed(frame.filename)), default=-1)
    return [place_of(frame) for frame in own[: last + 1]]


def _is_source(file: str) -> bool:
    return is_cell(file) or not file.startswith("<")


def _is_torch(file: str) -> bool:
    return "/torch/" in file.replace("\\", "/")


def add_exported(builder: Builder, call: Call, book: SourceBook) -> None:
    """Add torch.export's view of a call to a record, strict and non-strict. A failure becomes a Problem."""
    builder.start("exported")
    for strict in (False, True):
        found = export_program(call.fn, call.args, call.kwargs, strict=strict, book=book)
        if found.artifact is not None:
            builder.add(found.artifact)
        if found.problem is not None:
            builder.problem(found.problem)
        if found.card is not None:
            where = f"{found.card.file}:{found.card.line}"
            hint = next((item.text for item in found.card.suggestions), "tcompile.export(...) shows the whole card")
            builder.problem(Problem("exported", f"torch.export, {found.mode}, {where}: {found.card.what}", hint))
