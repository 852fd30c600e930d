"""Python bytecode as artifacts: what a frame was, and what TorchDynamo made of it."""

from __future__ import annotations

import dis
import re
from collections.abc import Mapping, Sequence
from types import CodeType

from compiler.capture.rendering import Rendering, rendered
from compiler.capture.sources import SourceBook
from compiler.record import Artifact, Entity
from compiler.torch_api.fx import is_dynamo

_GENERATED = re.compile(
    r"__(compiled_fn)_\d+(?:_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})?|__(resume_at)_\d+_\d+|__(builtins_dict)___\d+"
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
MOST_CHARACTERS = 120  # of an argument: Dynamo puts whole modules' globals among the constants


class GeneratedNames:
    """Dynamo numbers generated functions for the whole process; here they are numbered for one exploration."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        return _GENERATED.sub(self._canonical, text)

    def _canonical(self, match: re.Match[str]) -> str:
        if match[0] not in self._names:
            kind = match[1] or match[2] or match[3]
            count = self._counts.get(kind, 0)
            self._counts[kind] = count + 1
            self._names[match[0]] = f"__{kind}_{count}"
        return self._names[match[0]]


def bytecode_artifact(
    code: CodeType,
    *,
    artifact_id: str,
    title: str,
    graph: str,
    book: SourceBook,
    names: GeneratedNames,
    says: Mapping[int, str] | None = None,
) -> Artifact:
    """The instructions of one code object, each linked to its source line. `attrs` has the function and its file.

    An instruction that jumps has `jump`, the offset it jumps to, and one that is jumped to has the jumps as `inputs`.
    `says` has, by offset, what an instruction is for: an attribute, and a comment in the text. Instructions that Dynamo
    inserted are on no line.
    """
    instructions = list(dis.get_instructions(code))
    placed = _lines(instructions)
    jumps = {each.offset: each.argval for each in instructions if each.opcode in dis.hasjrel + dis.hasjabs}
    text, entities = [_header(code, book)], []
    lines: dict[int, tuple[str, ...]] = {}
    last_line: int | None = None
    internal = is_dynamo(code.co_filename)
    for number, instruction in enumerate(instructions, 2):
        line = placed[instruction.offset]
        argument = _short(names(_ADDRESS.sub("", instruction.argrepr)))
        words = (says or {}).get(instruction.offset, "")
        row = _row(instruction, book.shorten(argument), line if line != last_line else None)
        text.append(f"{row:<72}  # {words}" if words else row)
        last_line = line
        identity = f"{artifact_id}.{instruction.offset}"
        lines[number] = (identity,)
        attrs = {"offset": instruction.offset, "opcode": instruction.opname, "argument": argument, "line": line or 0}
        attrs |= ({"jump": jumps[instruction.offset]} if instruction.offset in jumps else {}) | (
            {"says": words} if words else {}
        )
        origins = (book.line(code.co_filename, line),) if line and not internal else ()
        came = tuple(f"{artifact_id}.{start}" for start, end in jumps.items() if end == instruction.offset)
        entities.append(Entity(identity, "instruction", instruction.opname, attrs, came, origins))
    attrs = {"function": names(code.co_qualname), "file": book.name(code.co_filename), "line": code.co_firstlineno}
    body = "\n".join(text) + "\n"
    return Artifact(artifact_id, "bytecode", title, "bytecode", body, graph, lines, tuple(entities), attrs)


def bytecode_artifacts(
    original: CodeType, modified: CodeType, *, graph: str, function: str, book: SourceBook, names: GeneratedNames
) -> tuple[Artifact, ...]:
    """What a frame was, what Dynamo made of it, and that as Python."""

    def listing(code: CodeType, suffix: str, title: str, says: Mapping[int, str]) -> Artifact:
        return bytecode_artifact(
            code, artifact_id=f"bytecode[{graph}{suffix}]", title=f"{function}, {title}", graph=graph, book=book,
            names=names, says=says,
        )  # fmt: skip

    first = listing(original, "", "as written", {})
    python = rendered(modified, names)
    second = listing(modified, " modified", "as Dynamo rewrote it", python.says)
    return first, second, python_artifact(python, graph=graph, title=f"{function}, as Dynamo rewrote it, in Python")


def python_artifact(python: Rendering, *, graph: str, title: str) -> Artifact:
    """The rendering as text: what it closes over and its constants first; where it stops, the instruction that did."""
    text = [f"# closes over: {', '.join(python.free)}"] if python.free else []
    for name, value in python.constants.items():
        text.append(f"# {name} is {_short(_ADDRESS.sub('', _described(value)))}")
    text.extend(python.lines)
    if python.stopped:
        text.append(f"# This is not all, and not to be run. Not written as Python: {python.stopped}")
    attrs = {"stopped": python.stopped}
    return Artifact(
        f"bytecode[{graph} as Python]", "bytecode", title, "python", "\n".join(text) + "\n", graph, {}, (), attrs
    )


def _lines(instructions: Sequence[dis.Instruction]) -> dict[int, int | None]:
    """The line of each instruction by offset: None for those that Dynamo inserted.

    Dynamo writes those on the line of the instruction before, without columns (`assemble` in
    `torch._dynamo.bytecode_transformation`); Python's own compiler gives columns to all that have a line.
    """
    places = {each.offset: each.positions for each in instructions}
    columns = any(place and place.col_offset is not None for place in places.values())
    return {
        offset: None if place is None or (columns and place.col_offset is None) else place.lineno
        for offset, place in places.items()
    }


def _described(value: object) -> str:
    if isinstance(value, CodeType):
        return f"the code of {value.co_name}"
    if isinstance(value, dict) and "__name__" in value:
        return f"the globals of {value['__name__']}"
    return f"an object of type {type(value).__name__}"


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _header(code: CodeType, book: SourceBook) -> str:
    parameters = ", ".join(code.co_varnames[: code.co_argcount])
    return f"# {code.co_qualname}({parameters})  {book.name(code.co_filename)}:{code.co_firstlineno}"


def _row(instruction: dis.Instruction, argument: str, line: int | None) -> str:
    target = ">>" if instruction.is_jump_target else "  "
    number = "" if instruction.arg is None else str(instruction.arg)
    shown = f"({argument})" if argument else ""
    return f"{line or '':>5} {target} {instruction.offset:>5} {instruction.opname:<28}{number:>5} {shown}".rstrip()
