"""Bytecode that TorchDynamo wrote, read by a symbolic machine: the same thing as Python, and what each step is for.

The machine runs the instructions on expressions instead of values. An expression that does something waits on the
stack until it is used; it is written inline only where Python then evaluates everything in the order of the bytecode,
and gets a name (`v1`) of its own otherwise. An instruction that Python has no words for stops it: nothing is guessed.
Python's `dis` documents the instructions (3.11 to 3.13).
"""
# ruff: noqa: ARG002 - handlers of instructions have one signature

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

INSTALLED = re.compile(r"__(compiled_fn|resume_at|builtins_dict|import)_")
MOST_INSTRUCTIONS = 20_000
_IGNORED = {"RESUME", "NOP", "PRECALL", "CACHE", "MAKE_CELL", "COPY_FREE_VARS", "EXTENDED_ARG"}
_COPIED_CODE = 32  # co_flags of a generator


class StoppedError(Exception):
    """An instruction that can't be written as Python, with the reason in plain words."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """`lines` of Python (the body is one function), `stopped` says which instruction ended it ("" if none did).

    `says` has what an instruction (by offset) is for. `constants` are the objects that have a name in the text because
    they have no literal; `free` are the names of the enclosing function that it uses.
    """

    lines: tuple[str, ...]
    stopped: str
    says: dict[int, str]
    constants: dict[str, Any]
    free: tuple[str, ...]


@dataclass(eq=False)
class _Value:
    """What is on the stack: Python text, whether it may stand beside a dot, and whether it has still to be evaluated.

    `local` is the variable that it reads.
    """

    text: str
    primary: bool = True
    waiting: bool = False
    local: str = ""


_NULL = _Value("NULL")


def rendered(code: CodeType, names: Callable[[str], str] = str) -> Rendering:
    """The code as Python, as far as that can be done faithfully. `names` gives generated names their canonical form."""
    machine = _Machine(code, names)
    stopped = ""
    try:
        machine.begin()
        machine.run(0, [], 1)
    except StoppedError as stop:
        stopped = str(stop)
    stopped = stopped or machine.without_words
    return Rendering(tuple(machine.lines), stopped, machine.says, machine.constants, code.co_freevars)


@dataclass
class _Machine:
    code: CodeType
    names: Callable[[str], str]
    lines: list[str] = field(default_factory=list)
    says: dict[int, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    without_words: str = ""
    stack: list[_Value] = field(default_factory=list)
    waiting: list[_Value] = field(default_factory=list)
    indent: int = 1
    offset: int = 0
    keywords: tuple[str, ...] = ()
    steps: int = 0
    made: int = 0

    def __post_init__(self) -> None:
        code = self.code
        self.instructions = list(dis.get_instructions(code))
        self.index = {instruction.offset: number for number, instruction in enumerate(self.instructions)}
        self.guarded = [(entry.start, entry.end) for entry in getattr(dis.Bytecode(code), "exception_entries", ())]
        self.taken = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}

    def begin(self) -> None:
        code = self.code
        if code.co_flags & _COPIED_CODE:
            raise StoppedError("RETURN_GENERATOR at 0: a generator's code is no plain function")
        for name in self.taken:
            if not all(part.isidentifier() for part in name.split(".")):
                raise StoppedError(f"the name {name!r} can't be written in Python")
        self.lines.append(f"def {_identifier(self.names(code.co_name))}({', '.join(_parameters(code))}):")
        stored = {each.argval for each in self.instructions if each.opname in ("STORE_DEREF", "DELETE_DEREF")}
        if rebound := sorted(stored & set(code.co_freevars)):
            self.emit(f"nonlocal {', '.join(rebound)}")
        written = {each.argval for each in self.instructions if each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
        if written:
            self.emit(f"global {', '.join(sorted(written))}")

    def run(self, start: int, stack: list[_Value], indent: int) -> None:
        """Run from this instruction to a return, in a branch of its own."""
        self.stack, self.indent = stack, indent
        number: int | None = start
        while number is not None:
            instruction = self.instructions[number]
            self.steps += 1
            if self.steps > MOST_INSTRUCTIONS:
                raise StoppedError(f"its branches have more than {MOST_INSTRUCTIONS:,} instructions")
            self.offset = instruction.offset
            number = self._step(instruction, number)

    def _step(self, instruction: dis.Instruction, number: int) -> int | None:
        name = instruction.opname
        if any(start <= instruction.offset < end for start, end in self.guarded):
            raise self._stop(instruction, "it is inside of a try or with block")
        if name in _IGNORED:
            return number + 1
        if name.startswith("POP_JUMP"):
            self._branch(instruction, number)
            return None
        if name == "JUMP_FORWARD":
            return self.index[instruction.argval]
        if name in ("RETURN_VALUE", "RETURN_CONST"):
            self._return(instruction)
            return None
        handler = getattr(self, f"_{name.lower()}", None)
        if handler is None:
            raise self._stop(instruction, "Python's own text for it needs a loop, a block or a statement of its own")
        handler(instruction)
        return number + 1

    def _stop(self, instruction: dis.Instruction, why: str) -> StoppedError:
        argument = self.names(instruction.argrepr)[:60]
        return StoppedError(f"{instruction.opname} {argument}".rstrip() + f" at {instruction.offset}: {why}")

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def say(self, words: str) -> None:
        self.says.setdefault(self.offset, words)

    # Values.

    def _name_it(self, value: _Value) -> None:
        self.made += 1
        while f"v{self.made}" in self.taken:
            self.made += 1
        self.emit(f"v{self.made} = {value.text}")
        value.text, value.primary, value.waiting, value.local = f"v{self.made}", True, False, ""

    def flush(self, but: _Value | None = None) -> None:
        """Evaluate all that waits, in order. `but`, if it waits last, is left to the statement that comes."""
        last = self.waiting.pop() if but is not None and self.waiting and self.waiting[-1] is but else None
        for value in self.waiting:
            self._name_it(value)
        self.waiting = []
        if last is not None:
            last.waiting = False

    def pop(self, count: int) -> list[_Value]:
        if count > len(self.stack):
            raise StoppedError(f"the instruction at {self.offset} takes more than there is")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def consume(self, operands: list[_Value]) -> None:
        """Operands are about to be evaluated in this order: those that wait are the last that do, or get names."""
        inline = [value for value in operands if value.waiting]
        tail = self.waiting[len(self.waiting) - len(inline) :] if inline else []
        shared = any(value is other for value in inline for other in self.stack)
        in_order = len(inline) == len(tail) and all(a is b for a, b in zip(inline, tail, strict=True))
        if shared or not in_order:
            self.flush()
        elif inline:
            del self.waiting[len(self.waiting) - len(inline) :]

    def push(self, text: str, *, primary: bool = True) -> None:
        value = _Value(text, primary, waiting=True)
        self.waiting.append(value)
        self.stack.append(value)

    def compute(self, count: int, text: Callable[..., str], *, primary: bool = True) -> None:
        operands = self.pop(count)
        self.consume(operands)
        self.push(text(*(value.text for value in operands)), primary=primary)

    def statement(self, operands: list[_Value], text: Callable[..., str]) -> None:
        """A statement that evaluates these operands, in this order, once all before it is done."""
        self.consume(operands)
        self.flush()
        self.emit(text(*(value.text for value in operands)))

    # Constants and variables.

    def _load_const(self, instruction: dis.Instruction) -> None:
        value = instruction.argval
        if (literal := _literal(value)) is not None:
            self.stack.append(_Value(literal, primary=not isinstance(value, int | float | complex)))
            return
        name = next((known for known, kept in self.constants.items() if kept is value), "")
        if not name:
            name = f"constant_{len(self.constants)}"
            while name in self.taken:
                name += "_"
            self.constants[name] = value
        self.stack.append(_Value(name))

    def _load_fast(self, instruction: dis.Instruction) -> None:
        self.stack.append(_Value(instruction.argval, local=instruction.argval))

    _load_fast_check = _load_fast

    def _load_global(self, instruction: dis.Instruction) -> None:
        null = "NULL" in instruction.argrepr
        first = null and not instruction.argrepr.endswith("NULL")
        if first:
            self.stack.append(_NULL)
        self._global(instruction.argval)
        if null and not first:
            self.stack.append(_NULL)

    def _global(self, name: str) -> None:
        shown = self.names(name)
        if INSTALLED.match(name):
            self.say(_installed(shown))
            self.stack.append(_Value(shown))
        else:
            self.push(shown)

    def _load_deref(self, instruction: dis.Instruction) -> None:
        self.push(instruction.argval)

    def _load_closure(self, instruction: dis.Instruction) -> None:
        why = "Python has no expression for a variable's cell"
        self.without_words = self.without_words or str(self._stop(instruction, why))
        self.say(f"the cell of `{instruction.argval}`, shared with the functions that close over it")
        self.stack.append(_Value(f"<cell of {instruction.argval}>"))

    def _store_fast(self, instruction: dis.Instruction) -> None:
        (value,) = self.pop(1)
        name = instruction.argval
        self.flush(value)
        self._keep_reads_of(name, but=value)
        self.emit(f"{name} = {value.text}")
        if name.startswith("graph_out_"):
            self.say("keep the tuple that the graph returned")
        if any(value is other for other in self.stack):
            value.text, value.primary, value.local = name, True, name

    def _keep_reads_of(self, name: str, but: _Value | None = None) -> None:
        for other in self.stack:
            if other.local == name and other is not but:
                self._name_it(other)

    def _delete_fast(self, instruction: dis.Instruction) -> None:
        self.flush()
        self._keep_reads_of(instruction.argval)
        self.emit(f"del {instruction.argval}")
        self.say(f"clean up: `{instruction.argval}` is needed no more")

    def _store_deref(self, instruction: dis.Instruction) -> None:
        self.say(f"write `{instruction.argval}`, which functions share")
        self.statement(self.pop(1), lambda value: f"{instruction.argval} = {value}")

    def _store_global(self, instruction: dis.Instruction) -> None:
        self.say(f"write back the global `{instruction.argval}`, which the function changes")
        self.statement(self.pop(1), lambda value: f"{instruction.argval} = {value}")

    # The stack.

    def _push_null(self, instruction: dis.Instruction) -> None:
        self.stack.append(_NULL)

    def _copy(self, instruction: dis.Instruction) -> None:
        self.stack.append(self.stack[-int(instruction.arg or 1)])

    def _swap(self, instruction: dis.Instruction) -> None:
        depth = int(instruction.arg or 1)
        self.stack[-1], self.stack[-depth] = self.stack[-depth], self.stack[-1]

    def _pop_top(self, instruction: dis.Instruction) -> None:
        (value,) = self.pop(1)
        if value.waiting and not any(value is other for other in self.stack):
            self.flush(value)
            self.emit(value.text)

    # Operators.

    def _binary_op(self, instruction: dis.Instruction) -> None:
        operator = instruction.argrepr
        if operator.endswith("="):
            raise self._stop(instruction, "an operator that changes its operand is a statement")
        self.compute(2, lambda left, right: f"({left} {operator} {right})")

    def _compare_op(self, instruction: dis.Instruction) -> None:
        operator = str(instruction.argval)
        self.compute(2, lambda left, right: f"({left} {operator} {right})")

    def _is_op(self, instruction: dis.Instruction) -> None:
        operator = "is not" if instruction.arg else "is"
        self.compute(2, lambda left, right: f"({left} {operator} {right})")

    def _contains_op(self, instruction: dis.Instruction) -> None:
        operator = "not in" if instruction.arg else "in"
        self.compute(2, lambda left, right: f"({left} {operator} {right})")

    def _unary_negative(self, instruction: dis.Instruction) -> None:
        self.compute(1, lambda value: f"(-{value})")

    def _unary_not(self, instruction: dis.Instruction) -> None:
        self.compute(1, lambda value: f"(not {value})")

    def _binary_subscr(self, instruction: dis.Instruction) -> None:
        owner = self.stack[-2]
        if owner.text.startswith("graph_out_"):
            self.say(f"take output {self.stack[-1].text} of the graph")
        self.compute(2, lambda value, key: f"{value}[{key}]")

    def _build_slice(self, instruction: dis.Instruction) -> None:
        if "slice" in self.taken:
            raise self._stop(instruction, "the code has another `slice`")
        self.compute(int(instruction.arg or 2), lambda *parts: f"slice({', '.join(parts)})")

    # Containers.

    def _build(self, instruction: dis.Instruction, text: Callable[..., str]) -> None:
        count = int(instruction.arg or 0)
        if any("graph_out_" in value.text for value in self.stack[len(self.stack) - count :]):
            self.say("rebuild a value of the function from what the graph returned")
        self.compute(count, text)

    def _build_list(self, instruction: dis.Instruction) -> None:
        self._build(instruction, lambda *items: f"[{', '.join(items)}]")

    def _build_tuple(self, instruction: dis.Instruction) -> None:
        self._build(instruction, _tuple)

    def _build_set(self, instruction: dis.Instruction) -> None:
        if not instruction.arg:
            raise self._stop(instruction, "Python has no literal for an empty set")
        self._build(instruction, lambda *items: f"{{{', '.join(items)}}}")

    def _build_map(self, instruction: dis.Instruction) -> None:
        pairs = int(instruction.arg or 0)
        shown = lambda *parts: f"{{{', '.join(f'{k}: {v}' for k, v in zip(parts[::2], parts[1::2], strict=True))}}}"  # noqa: E731
        self.compute(2 * pairs, shown)

    def _list_extend(self, instruction: dis.Instruction) -> None:
        (items,) = self.pop(1)
        owner = self.stack[-int(instruction.arg or 1)]
        self.flush()
        self.emit(f"{owner.text}.extend({items.text})")

    def _list_to_tuple(self, instruction: dis.Instruction) -> None:
        self.compute(1, lambda value: f"(*{value},)")

    def _dict_update(self, instruction: dis.Instruction) -> None:
        (items,) = self.pop(1)
        owner = self.stack[-int(instruction.arg or 1)]
        self.flush()
        self.emit(f"{owner.text}.update({items.text})")

    def _unpack_sequence(self, instruction: dis.Instruction) -> None:
        operands = self.pop(1)
        self.consume(operands)
        self.flush()
        parts = []
        for _ in range(int(instruction.arg or 0)):
            self.made += 1
            parts.append(_Value(f"v{self.made}"))
        if any(part.text in self.taken for part in parts):
            raise self._stop(instruction, "the code has variables of such names")
        self.emit(f"[{', '.join(part.text for part in parts)}] = {operands[0].text}")
        self.stack.extend(reversed(parts))

    # Writes.

    def _store_subscr(self, instruction: dis.Instruction) -> None:
        value, owner, key = self.pop(3)
        self.say(f"write back: an item of `{owner.text}`" if not owner.waiting else "write back an item")
        self.statement([value, owner, key], lambda value, owner, key: f"{owner}[{key}] = {value}")

    def _delete_subscr(self, instruction: dis.Instruction) -> None:
        self.statement(self.pop(2), lambda owner, key: f"del {owner}[{key}]")

    def _store_attr(self, instruction: dis.Instruction) -> None:
        name = instruction.argval
        self.say(f"write back the attribute `{name}`, which the function changes")
        self.statement(self.pop(2), lambda value, owner: f"{owner}.{name} = {value}")

    # Calls.

    def _load_attr(self, instruction: dis.Instruction) -> None:
        name = instruction.argval
        if "NULL" in instruction.argrepr:
            self._load_method(instruction)
            return
        self._attribute(name)

    def _attribute(self, name: str) -> None:
        number = not self.stack[-1].primary
        self.compute(1, lambda owner: f"({owner}).{name}" if number else f"{owner}.{name}")

    def _load_method(self, instruction: dis.Instruction) -> None:
        (owner,) = self.pop(1)
        self.stack.append(_NULL)
        self.stack.append(owner)
        self._attribute(instruction.argval)

    def _kw_names(self, instruction: dis.Instruction) -> None:
        # `dis` of Python 3.11 knows the constants of LOAD_CONST alone.
        self.keywords = self.code.co_consts[int(instruction.arg or 0)]

    def _call(self, instruction: dis.Instruction) -> None:
        arguments = self.pop(int(instruction.arg or 0))
        first, second = self.pop(2)
        if _NULL in (first, second):
            callee = second if first is _NULL else first
        else:
            callee, arguments = first, [second, *arguments]
        keywords, self.keywords = self.keywords, ()
        operands = [callee, *arguments]
        self.consume(operands)
        positional = len(arguments) - len(keywords)
        shown = [value.text for value in arguments[:positional]]
        named = zip(keywords, arguments[positional:], strict=True)
        shown += [f"{name}={value.text}" for name, value in named]
        if words := _called(callee.text, ", ".join(shown)):
            self.say(words)
        self.push(f"{_plain(callee)}({', '.join(shown)})")

    def _call_function_ex(self, instruction: dis.Instruction) -> None:
        parts = self.pop(2 if (instruction.arg or 0) & 1 else 1)
        first, second = self.pop(2)
        if _NULL not in (first, second):
            raise self._stop(instruction, "it has no NULL beside the function")
        callee = second if first is _NULL else first
        self.consume([callee, *parts])
        stars = [f"{star}{value.text}" for star, value in zip(("*", "**"), parts, strict=False)]
        if words := _called(callee.text, ", ".join(stars)):
            self.say(words)
        self.push(f"{_plain(callee)}({', '.join(stars)})")

    # Where it goes on.

    def _branch(self, instruction: dis.Instruction, number: int) -> None:
        name = instruction.opname
        if "BACKWARD" in name or instruction.argval <= instruction.offset:
            raise self._stop(instruction, "it jumps back: a loop")
        (value,) = self.pop(1)
        self.consume([value])
        self.flush()
        self.say("the value decides, in plain Python, which way the function goes on")
        tests = {"IF_FALSE": "{}", "IF_TRUE": "not {}", "IF_NONE": "{} is not None", "IF_NOT_NONE": "{} is None"}
        ending = next(ending for ending in sorted(tests, key=len, reverse=True) if name.endswith(ending))
        for other in self.stack:
            if other.local:  # a branch may rename what is on its own stack
                self._name_it(other)
        self.emit(f"if {tests[ending].format(value.text)}:")
        stack, indent = list(self.stack), self.indent
        self.run(number + 1, list(stack), indent + 1)
        self.indent = indent
        self.emit("else:")
        self.run(self.index[instruction.argval], list(stack), indent + 1)

    def _return(self, instruction: dis.Instruction) -> None:
        if instruction.opname == "RETURN_CONST":
            self._load_const(instruction)
        (value,) = self.pop(1)
        self.flush(value)
        self.waiting = []
        self.emit(f"return {value.text}")


def _plain(value: _Value) -> str:
    return value.text if value.primary else f"({value.text})"


def _tuple(*items: str) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _literal(value: Any) -> str | None:
    """The text that spells a constant exactly, or None."""
    if not isinstance(value, int | float | str | bytes | bool | tuple | frozenset | type(None) | type(...)):
        return None
    try:
        text = repr(value)
        read = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return text if type(read) is type(value) and repr(read) == text else None


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name) or "function"


def _parameters(code: CodeType) -> Iterator[str]:
    """The parameters as in a `def`; defaults belong to the function, not to its code."""
    names = list(code.co_varnames)
    for number, name in enumerate(names[: code.co_argcount], 1):
        yield name
        if number == code.co_posonlyargcount:
            yield "/"
    only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = names[code.co_argcount + code.co_kwonlyargcount :]
    if code.co_flags & 4:
        yield f"*{rest.pop(0)}"
    elif only:
        yield "*"
    yield from only
    if code.co_flags & 8:
        yield f"**{rest.pop(0)}"


_ROLES: Mapping[str, str] = {
    "compiled_fn": "the compiled graph `{}`",
    "resume_at": "the function `{}`, which goes on after the graph break",
    "builtins_dict": "Python's builtins, as they were when Dynamo read the function",
    "import": "the module `{}`, under a name of Dynamo's own",
}


def _installed(name: str) -> str:
    """What a global is that Dynamo installed."""
    match = INSTALLED.match(name)
    kind = match[1] if match else ""
    shown = name.removeprefix("__import_").replace("_dot_", ".") if kind == "import" else name
    return _ROLES[kind].format(shown) if kind else shown


def _called(callee: str, arguments: str) -> str:
    """What a call is for, "" where it is the user's own."""
    if callee.startswith("__compiled_fn_"):
        return f"call the compiled graph with {arguments or 'no inputs'}"
    if callee.startswith("__resume_at_"):
        return f"call the resume function `{callee}` with what it needs to go on"
    if callee.endswith("_create_nested_fn"):
        return "make the inner function again, around its cells"
    for ending, verb in (("enter", "starts"), ("exit", "ends")):
        if callee.endswith(f"record_pregraph_bytecode_{ending}"):
            return f"tell torch's profiler that the work before the graph {verb}"
    return ""
