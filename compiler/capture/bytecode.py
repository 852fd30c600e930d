"""Python bytecode as artifacts: what a frame was, and what TorchDynamo made of it."""

from __future__ import annotations

import dis
import re
from types import CodeType

from compiler.capture.sources import SourceBook
from compiler.record import Artifact, Entity
from compiler.torch_api.fx import is_dynamo

_GENERATED = re.compile(r"__(compiled_fn)_\d+(?:_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})?|__(resume_at)_\d+_\d+")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class GeneratedNames:
    """Dynamo numbers generated functions for the whole process; here they are numbered for one exploration."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        return _GENERATED.sub(self._canonical, text)

    def _canonical(self, match: re.Match[str]) -> str:
        if match[0] not in self._names:
            kind = match[1] or match[2]
            count = self._counts.get(kind, 0)
            self._counts[kind] = count + 1
            self._names[match[0]] = f"__{kind}_{count}"
        return self._names[match[0]]


def bytecode_artifact(
    code: CodeType, *, artifact_id: str, title: str, graph: str, book: SourceBook, names: GeneratedNames
) -> Artifact:
    """The instructions of one code object, each linked to its source line. `attrs` has the function and its file."""
    instructions = list(dis.get_instructions(code))
    text, entities = [_header(code, book)], []
    lines: dict[int, tuple[str, ...]] = {}
    last_line: int | None = None
    internal = is_dynamo(code.co_filename)
    for number, instruction in enumerate(instructions, 2):
        line = instruction.positions.lineno if instruction.positions else None
        argument = names(_ADDRESS.sub("", instruction.argrepr))
        text.append(_row(instruction, book.shorten(argument), line if line != last_line else None))
        last_line = line
        identity = f"{artifact_id}.{instruction.offset}"
        lines[number] = (identity,)
        attrs = {"offset": instruction.offset, "opcode": instruction.opname, "argument": argument, "line": line or 0}
        origins = (book.line(code.co_filename, line),) if line and not internal else ()
        entities.append(Entity(identity, "instruction", instruction.opname, attrs, (), origins))
    attrs = {"function": names(code.co_qualname), "file": book.name(code.co_filename), "line": code.co_firstlineno}
    body = "\n".join(text) + "\n"
    return Artifact(artifact_id, "bytecode", title, "bytecode", body, graph, lines, tuple(entities), attrs)


def _header(code: CodeType, book: SourceBook) -> str:
    parameters = ", ".join(code.co_varnames[: code.co_argcount])
    return f"# {code.co_qualname}({parameters})  {book.name(code.co_filename)}:{code.co_firstlineno}"


def _row(instruction: dis.Instruction, argument: str, line: int | None) -> str:
    target = ">>" if instruction.is_jump_target else "  "
    number = "" if instruction.arg is None else str(instruction.arg)
    shown = f"({argument})" if argument else ""
    return f"{line or '':>5} {target} {instruction.offset:>5} {instruction.opname:<28}{number:>5} {shown}".rstrip()
