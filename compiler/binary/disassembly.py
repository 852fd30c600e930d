"""Disassembled C++ kernels: each instruction with its chain of source lines, and a listing of them.

`objdump -d -r -l --inlines` of an object file is read, and not the compiler's own assembly: in that, `.loc` names the
line of an inlined header, such as ATen's vec512_float.h, and not the line of the kernel that called it. objdump comes
with the assembler that g++ needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

OBJDUMP_OPTIONS = ("-d", "-r", "-l", "-C", "--inlines", "--no-show-raw-insn", "-w")
_FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
_INSTRUCTION = re.compile(r"^\s+([0-9a-f]+):\t(.*)$")
_INLINED = re.compile(r"^inlined by (.*):(\d+)(?: \(.*)?$")
_PLACE = re.compile(r"^(\S.*):(\d+)(?: \(discriminator \d+\))?$")
_RELOCATED = re.compile(r"(.*?)\s+[0-9a-f]+: R_\w+\s+(.*)$")
_JUMP = re.compile(r"\b([0-9a-f]+) <(.*?)(?:\+0x[0-9a-f]+)?>$")
_NOTE = re.compile(r"\s+(?:#|//) .*$")
_ARGUMENTS = re.compile(r"\(.*\)(?: const)?$|-0x[0-9a-f]+$|\+0x[0-9a-f]+$|@\w+$")
_PADDING = re.compile(r"(?:data16|cs|nop\w*|xchg\s+ax,ax|int3)\b")
PLACE_MARK = {"x86": "##", "aarch64": "//##"}
NOTE_MARK = {"x86": "#", "aarch64": "//"}
"""How a comment begins that names the place of the next instructions, and any other comment."""

Place = tuple[str, int]
"""Base name of a file, and a line number."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its address, mnemonic and operands, and its places from the innermost inlined call outwards.

    `target` is the address that it jumps to in its own function, None for others.
    """

    address: int
    mnemonic: str
    operands: str
    places: tuple[Place, ...] = ()
    target: int | None = None

    @property
    def place(self) -> Place:
        """The place in the kernel's own source: the outermost one."""
        return self.places[-1] if self.places else ("", 0)


@dataclass(frozen=True, slots=True)
class Function:
    """One function of an object file; OpenMP's regions and lambdas are functions of their own."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[int, str] = field(default_factory=dict)

    def is_of(self, file: str) -> bool:
        """Whether most of its instructions come from this source file."""
        inside = sum(each.place[0] == file for each in self.instructions)
        return 2 * inside > len(self.instructions)

    def with_reductions(self, file: str, unit: str) -> Function:
        """The same, with the code of OpenMP reductions that `unit` declares at the line of `file` before it.

        The compiler says of such code only where the reduction is declared, not which loop it ends.
        """
        before: tuple[Place, ...] = ()
        found = []
        for each in self.instructions:
            before = each.places[-1:] if each.place[0] == file else before
            found.append(replace(each, places=(*each.places, *before)) if each.place[0] == unit else each)
        return replace(self, instructions=tuple(found))


def read_functions(disassembly: str) -> list[Function]:
    """The functions in objdump's output, without padding."""
    found, name = [], ""
    rows: list[str] = []
    for line in [*disassembly.split("\n"), "0 <>:"]:
        if opening := _FUNCTION.match(line):
            if name and (instructions := _without_padding(_instructions(name, rows))):
                found.append(Function(name, tuple(instructions), _labels(instructions)))
            name, rows = opening[1], []
        else:
            rows.append(line)
    return found


def _instructions(function: str, rows: Sequence[str]) -> Iterator[Instruction]:
    inner: Place = ("", 0)
    callers: list[Place] = []
    for row in rows:
        if code := _INSTRUCTION.match(row):
            yield _instruction(function, int(code[1], 16), code[2], (inner, *callers))
            callers = []
        elif inlined := _INLINED.match(row):
            callers.append((_base(inlined[1]), int(inlined[2])))
        elif place := _PLACE.match(row):
            inner = (_base(place[1]), int(place[2]))


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _instruction(function: str, address: int, row: str, places: tuple[Place, ...]) -> Instruction:
    relocated = _RELOCATED.match(row)
    code, symbol = (relocated[1], shorten(relocated[2])) if relocated else (row, "")
    mnemonic, _, operands = _NOTE.sub("", code).strip().replace("\t", " ").partition(" ")
    operands = operands.strip()
    jump = _JUMP.search(operands)
    is_inside = jump is not None and jump[2] == function and not symbol and not _calls(mnemonic)
    target = int(jump[1], 16) if jump and is_inside else None
    if symbol and jump:
        operands = _JUMP.sub(lambda _: symbol, operands)
    elif symbol:
        operands = operands.replace("[rip+0x0]", f"[rip+{symbol}]")
    elif jump and not is_inside:
        operands = _JUMP.sub(lambda found: shorten(found[2]), operands)
    return Instruction(address, mnemonic, operands, places, target)


def _calls(mnemonic: str) -> bool:
    return mnemonic in ("call", "bl", "blr")


def shorten(name: str) -> str:
    """The name of a symbol without its offset and arguments."""
    while name != (name := _ARGUMENTS.sub("", name)):
        pass
    return name


def _without_padding(instructions: Iterable[Instruction]) -> list[Instruction]:
    """The instructions that do something."""
    return [each for each in instructions if not _PADDING.match(f"{each.mnemonic} {each.operands}")]


def _labels(instructions: Sequence[Instruction]) -> dict[int, str]:
    """Labels of the addresses that are jumped to, in their order."""
    there = {each.address for each in instructions}
    targets = sorted({each.target for each in instructions if each.target is not None} & there)
    return {address: f".L{number}" for number, address in enumerate(targets, 1)}


def listing_of(
    functions: Sequence[Function], language: str, file: str, rows: Sequence[str], notes: Mapping[int, Sequence[str]]
) -> str:
    """The functions as text: before each run of instructions of one place, its line of the source.

    `rows` are the lines of the kernel's source. `notes` are comments to put before the instructions at these indices,
    counted through all functions.
    """
    mark, note_mark, lines, index = PLACE_MARK[language], NOTE_MARK[language], [], 0
    for function in functions:
        lines.append(f"{shorten(function.name)}:")
        before: Place | None = None
        for each in function.instructions:
            lines += [f"    {note_mark} {note}" for note in notes.get(index, ())]
            if each.address in function.labels:
                lines.append(f"{function.labels[each.address]}:")
            if each.place != before:
                lines.append(f"    {mark} {_place_words(each, file, rows)}".rstrip())
            before = each.place
            lines.append(f"        {each.mnemonic:<8} {operands_in(each, function)}".rstrip())
            index += 1
        lines.append("")
    return "\n".join(lines).strip("\n") + "\n"


def operands_in(each: Instruction, function: Function) -> str:
    """The operands as text, with a label for the address that is jumped to."""
    if each.target is None:
        return each.operands
    return _JUMP.sub(function.labels.get(each.target, hex(each.target)), each.operands)


def _place_words(each: Instruction, file: str, rows: Sequence[str]) -> str:
    name, line = each.place
    if name != file or not 0 < line <= len(rows):
        return f"({name}:{line})" if name and line else ""
    inner = f"  ({each.places[0][0]}:{each.places[0][1]})" if len(each.places) > 1 else ""
    return f"line {line}: {rows[line - 1].strip()}{inner}"
