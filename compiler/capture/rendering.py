"""Render TorchDynamo's bytecode as Python by symbolic execution, and describe the purpose of each step.

Instructions are executed on expressions instead of values (`compiler.capture.instructions`); this module adds control
flow: branches, loops, and `finally` blocks. Rendering stops at anything that has no Python equivalent, without
guessing.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

from compiler.capture.instructions import Instructions, StoppedError, Value, copy_values

MOST_INSTRUCTIONS = 20_000
_IGNORED = {"RESUME", "NOP", "PRECALL", "CACHE", "MAKE_CELL", "COPY_FREE_VARS", "EXTENDED_ARG", "NOT_TAKEN"}
_GENERATOR = 32  # co_flags
_ENDS = ("RETURN_VALUE", "RETURN_CONST")
_TESTS = {"IF_FALSE": "{}", "IF_TRUE": "not {}", "IF_NONE": "{} is not None", "IF_NOT_NONE": "{} is None"}


@dataclass(frozen=True, slots=True)
class Rendering:
    """Bytecode rendered as one Python function.

    `lines` are the lines of the function. `stands_for` are the offsets of the instructions that each line renders.
    `stopped` describes the instruction at which rendering stopped, "" if the rendering is complete.
    `says` describes the purpose of instructions, by offset. `constants` are objects without a literal, by their name
    in the text. `free` are the free variables of the code.
    """

    lines: tuple[str, ...]
    stands_for: tuple[tuple[int, ...], ...]
    stopped: str
    says: dict[int, str]
    constants: dict[str, Any]
    free: tuple[str, ...]


def render(code: CodeType, names: Callable[[str], str] = str) -> Rendering:
    """Render bytecode as Python, up to the first instruction without an exact rendering.

    `names` canonicalizes generated names.
    """
    taken = frozenset({*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars})
    machine = _Machine(taken, code=code, names=names)
    stopped = ""
    try:
        machine.begin()
        machine.run(0, [], 1)
    except StoppedError as stop:
        stopped = str(stop)
    lines, offsets = tuple(machine.lines), tuple(machine.stands_for)
    return Rendering(lines, offsets, stopped, machine.says, machine.constants, code.co_freevars)


@dataclass
class _Machine(Instructions):
    steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.instructions = list(dis.get_instructions(self.code))
        self.index = {instruction.offset: number for number, instruction in enumerate(self.instructions)}
        self.protected = {entry.start: entry for entry in getattr(dis.Bytecode(self.code), "exception_entries", ())}
        self.inside: list[Any] = []

    def begin(self) -> None:
        code = self.code
        if code.co_flags & _GENERATOR:
            raise StoppedError("RETURN_GENERATOR at 0: a generator's code is no plain function")
        for name in self.taken:
            if not all(part.isidentifier() for part in name.split(".")):
                raise StoppedError(f"the name {name!r} can't be written in Python")
        self.indent = 0
        cells = tuple(CellType() for _ in code.co_freevars)
        signature = inspect.signature(FunctionType(code, {}, closure=cells))
        name = re.sub(r"\W", "_", self.names(code.co_name)) or "function"
        self.emit(f"def {name}{signature}:", ())
        self.indent = 1
        stored = self._written_names("STORE_DEREF", "DELETE_DEREF")
        if rebound := sorted(stored & set(code.co_freevars)):
            self.emit(f"nonlocal {', '.join(rebound)}", ())
        if written := self._written_names("STORE_GLOBAL", "DELETE_GLOBAL"):
            self.emit(f"global {', '.join(sorted(written))}", ())
        for name in sorted(set(code.co_cellvars) - stored - signature.parameters.keys()):
            self.emit(f"{name}: object", ())  # the annotation makes it a local variable

    def _written_names(self, *opcodes: str) -> set[str]:
        return {each.argval for each in self.instructions if each.opname in opcodes}

    def run(self, start: int, stack: list[Value], indent: int) -> None:
        """Render from the instruction with index `start` to a return."""
        self.stack, self.indent = stack, indent
        number: int | None = start
        while number is not None:
            number = self._step(number)

    def _step(self, number: int) -> int | None:
        """Render one instruction; return the index of the next one, None after a return."""
        instruction = self.instructions[number]
        name, offset = instruction.opname, instruction.offset
        self.steps += 1
        if self.steps > MOST_INSTRUCTIONS:
            raise StoppedError(f"its branches have more than {MOST_INSTRUCTIONS:,} instructions")
        entry = self.protected.get(offset)
        if entry is not None and entry not in self.inside:
            return self._try(instruction, entry)
        self.begin_instruction(offset)
        if name in _IGNORED:
            return number + 1
        if name.startswith(("POP_JUMP", "JUMP_IF")):
            return self._branch(instruction, number)
        if name == "JUMP_FORWARD":
            return self.index[instruction.argval]
        if name in _ENDS:
            self._return(instruction)
            return None
        if name == "GET_ITER" and self.instructions[number + 1].opname == "FOR_ITER":
            return self._loop(number + 1)
        self.handle(instruction)
        return number + 1

    # Control flow.

    def _branch(self, instruction: dis.Instruction, number: int) -> int | None:
        """Render a branch; return the index at which its sides join, None if they do not."""
        name = instruction.opname
        if "BACKWARD" in name or instruction.argval <= instruction.offset:
            raise self.stop(instruction, "it jumps back: a loop")
        if self.inside:
            raise self.stop(instruction, "a branch inside of a block that is to be left")
        target = self.index[instruction.argval]
        end = self._find_meeting(instruction, number + 1, target)
        if end is not None and self._write_until_meeting(instruction, number + 1, target, end):
            return end
        kept = self._condition(instruction)  # a branch may rename values on its own stack
        stack, indent = self.stack, self.indent
        self.run(number + 1, copy_values(stack), indent + 1)
        self.indent = indent
        self.emit("else:", (instruction.offset,))
        self.run(target, [*stack, *kept], indent + 1)
        return None

    def _find_meeting(self, instruction: dis.Instruction, start: int, target: int) -> int | None:
        """Index at which both sides of a branch join; None if a side jumps elsewhere or returns."""
        last = self.instructions[target - 1]
        end = self.index[last.argval] if last.opname == "JUMP_FORWARD" else target
        sides = [each for each in self.instructions[start:end] if each is not last or end == target]
        turns = any("JUMP" in each.opname or each.opname in (*_ENDS, "FOR_ITER") for each in sides)
        is_plain = not turns and not any(each.offset in self.protected for each in sides)
        return end if is_plain and not instruction.opname.endswith("OR_POP") else None

    def _write_until_meeting(self, instruction: dis.Instruction, start: int, target: int, end: int) -> bool:
        """Render both sides of a branch; undo this and return False if they leave different values on the stack."""
        sides = self.instructions[start:end]
        written = {name for each in sides for name in self._names_written(each)}
        count, lines, made, indent = len(self.stack), len(self.lines), self.made, self.indent
        before = copy_values([*self.stack, *self.waiting])
        self._condition(instruction, written)
        stack = self.stack
        first = self._side(range(start, target - (end != target)), copy_values(stack))
        if len(self.lines) > lines and self.lines[-1].endswith(":"):
            self.emit("pass", ())
        self.indent = indent
        self.emit("else:", (instruction.offset,))
        second = self._side(range(target, end), copy_values(stack))
        if self.lines[-1].endswith("else:"):
            self.lines.pop()
            self.stands_for.pop()
        self.indent = indent
        if [value.text for value in first] != [value.text for value in second]:
            del self.lines[lines:], self.stands_for[lines:]
            self.made, self.stack, self.waiting = made, before[:count], before[count:]
            self.begin_instruction(instruction.offset)
            return False
        if any(str(each.argval).startswith("record_pregraph_bytecode_") for each in sides):
            self.says[instruction.offset] = "only while torch's profiler is on"
        for value, other in zip(first, second, strict=True):
            value.offsets += other.offsets
        self.stack = first
        return True

    def _side(self, numbers: Iterable[int], stack: list[Value]) -> list[Value]:
        """Render one side of a branch, indented; return the stack at its end."""
        self.stack = stack
        self.indent += 1
        for number in numbers:
            self._step(number)
        self.flush()
        return self.stack

    def _names_written(self, instruction: dis.Instruction) -> Iterator[str]:
        """Yield the local variables that an instruction stores or deletes."""
        if instruction.opname.startswith(("STORE_FAST", "DELETE_FAST")):
            names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            yield from map(self.names, names)

    def _condition(self, instruction: dis.Instruction, written: Collection[str] | None = None) -> list[Value]:
        """Render an `if`, after naming the stack values that read variables `written` in a side (None: any variables).

        Returns the value of the condition in a list if the jump keeps it on the stack, else [].
        """
        name = instruction.opname
        keeps = name.endswith("OR_POP")
        (value,) = self.pop(1)
        if keeps and value.waiting:
            self.flush()
        self.consume([value])
        self.flush()
        self.say("the value decides, in plain Python, which branch the function takes")
        self.name_reads(written)
        test = next(test for ending, test in _TESTS.items() if name.removesuffix("_OR_POP").endswith(ending))
        self.emit(f"if {test.format(value.truth or value.text)}:")
        return [value] if keeps else []

    def _return(self, instruction: dis.Instruction) -> None:
        if self.inside:
            raise self.stop(instruction, "it leaves a block")
        if instruction.opname == "RETURN_CONST":
            self._load_const(instruction)
        (value,) = self.pop(1)
        self.used.extend(value.offsets)
        self.flush(value)
        self.waiting = []
        self.emit(f"return {value.text}")

    # Blocks.

    def _block(self, header: str, offsets: Sequence[int], start: int, end: int) -> None:
        """Render the instructions of a block in order, up to `end`."""
        self.emit(header, offsets)
        self.indent += 1
        before = len(self.lines)
        number: int | None = start
        while number is not None and number < end:
            number = self._step(number)
        if number != end:
            raise self.stop(self.instructions[start], "its block is left on the way")
        self.flush()
        if len(self.lines) == before:
            self.emit("pass", ())
        self.indent -= 1

    def _try(self, instruction: dis.Instruction, entry: Any) -> int:
        """Render a block whose `finally` code occurs twice: at its end and in the exception handler."""
        start = self.index[entry.start]
        end = next(number for number, each in enumerate(self.instructions) if each.offset >= entry.end)
        again = self._of_handler(self.index[entry.target])
        finally_end = self._same(end, again)
        if finally_end is None:
            raise self.stop(instruction, "it is inside of a try or with block")
        self.flush()
        self.inside.append(entry)
        self._block("try:", (), start, end)
        stack, self.stack = self.stack, []
        self._block("finally:", (), end, finally_end)
        left, self.stack = self.stack, stack
        self.inside.pop()
        if left:
            raise self.stop(instruction, "its `finally` leaves something on the stack")
        return finally_end

    def _of_handler(self, number: int) -> list[tuple[str, Any]]:
        """Instructions of an exception handler before it reraises; [] if it does not reraise."""
        found: list[tuple[str, Any]] = []
        if self.instructions[number].opname != "PUSH_EXC_INFO":
            return found
        for each in self.instructions[number + 1 :]:
            if each.opname == "RERAISE":
                return found
            if each.opname not in _IGNORED:
                found.append((each.opname, each.argval))
        return []

    def _same(self, number: int, wanted: list[tuple[str, Any]]) -> int | None:
        """Index after the instructions equal to `wanted`; None if they differ, or `wanted` is empty or has stores."""
        rest = enumerate(self.instructions[number:], number + 1)
        found = [(after, each) for after, each in rest if each.opname not in _IGNORED][: len(wanted)]
        is_same = [(each.opname, each.argval) for _, each in found] == wanted
        writes = any(opcode.startswith(("STORE_FAST", "DELETE_FAST")) for opcode, _ in wanted)
        return found[-1][0] if wanted and is_same and not writes else None

    def _loop(self, number: int) -> int:
        """Render a `for` loop without branches in its body."""
        head = self.instructions[number]
        end = self.index[head.argval]
        back = self.instructions[end - 1]
        if not back.opname.startswith("JUMP_BACKWARD") or back.argval != head.offset:
            raise self.stop(head, "its loop ends in more than one way")
        (items,) = self.pop(1)
        self.consume([items])
        self.flush()
        self.name_reads()
        name, used = self.fresh_name(), (*self.used, head.offset, back.offset)
        stack, self.stack = self.stack, [Value(name)]
        self.inside.append(head)
        self._block(f"for {name} in {items.text}:", used, number + 1, end - 1)
        self.inside.pop()
        left, self.stack = self.stack, stack
        if left:
            raise self.stop(head, "its body leaves something on the stack")
        while self.instructions[end].opname in ("END_FOR", "POP_ITER") or (
            self.instructions[end].opname == "POP_TOP" and self.instructions[end - 1].opname == "END_FOR"
        ):
            end += 1
        return end
