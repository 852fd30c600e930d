"""Python bytecode as artifacts: a frame's original code, and Dynamo's rewritten code."""

from __future__ import annotations

import dis
import re
from collections.abc import Mapping, Sequence
from types import CodeType

from compiler.capture.function_names import function_name
from compiler.capture.plain_lines import reachable_instructions
from compiler.capture.rendering import Rendering, render
from compiler.capture.sources import SourceBook
from compiler.record import Artifact, Entity
from compiler.record.break_facts import is_dynamo

_GENERATED = re.compile(
    r"__(compiled_fn)_\d+(?:_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})?|__(resume_at)_\d+_\d+"
    r"|__(builtins_dict)___\d+|___(context_manager)_\d+_\d+|___(module_\w+?)_\d+_c\d+"
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_JUMPING = frozenset(dis.hasjrel + dis.hasjabs)
MOST_CHARACTERS = 120  # shown of an argument: Dynamo's constants include the globals of whole modules


class GeneratedNames:
    """Renumbers generated functions within one exploration, as Dynamo's counters are process-wide."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        return _GENERATED.sub(self._canonical, text)

    def _canonical(self, match: re.Match[str]) -> str:
        if match[0] not in self._names:
            kind = match[match.lastindex or 0]
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
    says: Mapping[int, str],
) -> Artifact:
    """Artifact of a code object's instructions, each linked to its source line. Its `attrs` name the function and file.

    A jump has the attribute `jump`, its target's offset; the target has the jumps as `inputs`. `says` describes the
    purpose of instructions, by offset; each description becomes an attribute, and a comment in the text. Instructions
    inserted by Dynamo have no line. A resume function's code contains the whole function that broke; instructions that
    can't be reached are left out.
    """
    bytecode = dis.Bytecode(code)
    every = list(bytecode)
    instructions = reachable_instructions(bytecode, every) if function_name(code.co_name) != code.co_name else every
    rows = [_header(code, book)]
    if len(instructions) < len(every):
        rows[0] += f"  ({len(every) - len(instructions)} instructions that it never reaches are left out)"
    placed = _lines(instructions)
    known = set(filter(None, placed.values())) if not is_dynamo(code.co_filename) else set()
    origins = {line: (book.line(code.co_filename, line),) for line in known}
    jumps: dict[int, tuple[str, ...]] = {}
    for each in instructions:
        if each.opcode in _JUMPING:
            jumps[each.argval] = (*jumps.get(each.argval, ()), f"{artifact_id}.{each.offset}")
    entities: list[Entity] = []
    last_line: int | None = None
    for each in instructions:
        offset, line, argument = each.offset, placed[each.offset] or 0, _argument(each.argrepr, book, names)
        attrs = {"offset": offset, "opcode": each.opname, "argument": argument, "line": line}
        attrs |= {"jump": each.argval} if each.opcode in _JUMPING else {}
        attrs |= {"says": says[offset]} if offset in says else {}
        entities.append(
            Entity(f"{artifact_id}.{offset}", "instruction", each.opname, attrs, jumps.get(offset, ()),
                   origins.get(line, ()))
        )  # fmt: skip
        row = _row(each, argument, line if line != last_line else 0)
        rows.append(f"{row:<72}  # {says[offset]}" if offset in says else row)
        last_line = line
    attrs = {"function": names(code.co_qualname), "file": book.name(code.co_filename), "line": code.co_firstlineno}
    lines: dict[int, tuple[str, ...]] = {number: (entity.id,) for number, entity in enumerate(entities, 2)}
    body = "\n".join(rows) + "\n"
    return Artifact(artifact_id, "bytecode", title, "bytecode", body, graph, lines, tuple(entities), attrs)


def _argument(text: str, book: SourceBook, names: GeneratedNames) -> str:
    """An argument as `dis` shows it, without addresses, process-wide numbers and paths of this machine."""
    if "__" in text:
        text = names(text)
    if " at 0x" in text:
        text = book.shorten(_ADDRESS.sub("", text))
    return _short(text)


def bytecode_artifacts(
    original: CodeType, modified: CodeType, *, graph: str, function: str, book: SourceBook, names: GeneratedNames
) -> tuple[Artifact, ...]:
    """Artifacts of a frame's bytecode, of Dynamo's rewritten bytecode, and of the latter as Python."""

    def listing(code: CodeType, suffix: str, title: str, says: Mapping[int, str]) -> Artifact:
        return bytecode_artifact(
            code, artifact_id=f"bytecode[{graph}{suffix}]", title=f"{function}, {title}", graph=graph, book=book,
            names=names, says=says,
        )  # fmt: skip

    first = listing(original, "", "as written", {})
    python = render(modified, names)
    second = listing(modified, " modified", "as Dynamo rewrote it", python.says)
    return first, second, python_artifact(python, graph=graph, title=f"{function}, as Dynamo rewrote it, in Python")


def python_artifact(python: Rendering, *, graph: str, title: str) -> Artifact:
    """Artifact of a rendering: free variables, constants, the code, and the instruction at which rendering stopped.

    Each line rendered from instructions is an entity with these instructions as origins.
    """
    artifact_id = f"bytecode[{graph} as Python]"
    text = [f"# closes over: {', '.join(python.free)}"] if python.free else []
    for name, value in python.constants.items():
        text.append(f"# {name} is {_short(_ADDRESS.sub('', _describe(value)))}")
    entities: list[Entity] = []
    lines: dict[int, tuple[str, ...]] = {}
    for code, offsets in zip(python.lines, python.stands_for, strict=True):
        text.append(code)
        if offsets:
            identity = f"{artifact_id}.L{len(text)}"
            origins = tuple(f"bytecode[{graph} modified].{offset}" for offset in offsets)
            lines[len(text)] = (identity,)
            entities.append(Entity(identity, "statement", code.strip(), {}, (), origins))
    if python.stopped:
        text.append(f"# This is not all, and not to be run. Not written as Python: {python.stopped}")
    attrs = {"stopped": python.stopped}
    body = "\n".join(text) + "\n"
    return Artifact(artifact_id, "bytecode", title, "python", body, graph, lines, tuple(entities), attrs)


def _lines(instructions: Sequence[dis.Instruction]) -> dict[int, int | None]:
    """Line of each instruction, by offset; None for instructions that Dynamo inserted.

    Dynamo gives an inserted instruction the line of the previous one, without columns (`assemble` in
    `torch._dynamo.bytecode_transformation`); Python's compiler gives columns to every instruction with a line.
    """
    places = {each.offset: each.positions for each in instructions}
    columns = any(place and place.col_offset is not None for place in places.values())
    return {
        offset: None if place is None or (columns and place.col_offset is None) else place.lineno
        for offset, place in places.items()
    }


def _describe(value: object) -> str:
    if isinstance(value, CodeType):
        return f"the code of {value.co_name}"
    if isinstance(value, type):
        return f"the type {value.__qualname__}"
    if isinstance(value, dict) and "__name__" in value:
        return f"the globals of {value['__name__']}"
    return f"an object of type {type(value).__name__}"


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _header(code: CodeType, book: SourceBook) -> str:
    parameters = ", ".join(code.co_varnames[: code.co_argcount])
    return f"# {code.co_qualname}({parameters})  {book.name(code.co_filename)}:{code.co_firstlineno}"


def _row(instruction: dis.Instruction, argument: str, line: int) -> str:
    target = ">>" if instruction.is_jump_target else "  "
    number = "" if instruction.arg is None else str(instruction.arg)
    shown = f"({argument})" if argument else ""
    return f"{line or '':>5} {target} {instruction.offset:>5} {instruction.opname:<28}{number:>5} {shown}".rstrip()
