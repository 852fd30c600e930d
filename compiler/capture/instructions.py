"""A symbolic stack of Python expressions, and the effect of each bytecode instruction on it.

An expression with side effects stays pending on the stack until it is used. It is inlined only if Python then evaluates
everything in the order of the bytecode; otherwise it is assigned to a variable (`v1`). Python's `dis` documents the
instructions (3.11 to 3.13). The method for an instruction has its name in lower case, after an underscore.
"""
# ruff: noqa: ARG002 - all instruction handlers have the same signature

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any

_CLOSURE, _DEFAULTS = 8, 1  # flags of MAKE_FUNCTION's operands
_INTRINSICS = {"INTRINSIC_LIST_TO_TUPLE": "(*{},)", "INTRINSIC_UNARY_POSITIVE": "(+{})"}
EXPRESSIONS: Mapping[str, tuple[int, str]] = {
    "UNARY_NEGATIVE": (1, "(-{})"),
    "UNARY_INVERT": (1, "(~{})"),
    "UNARY_NOT": (1, "(not {})"),
    "LIST_TO_TUPLE": (1, "(*{},)"),
    "BINARY_SLICE": (3, "{}[{}:{}]"),
}
"""Instructions without effects: number of operands, and their Python expression."""
_HALF = re.compile("(?:load|store)_fast")
INSTALLED = re.compile(r"__(compiled_fn|resume_at|builtins_dict|import)_")
_ROLES: Mapping[str, str] = {
    "compiled_fn": "the compiled graph `{}`",
    "resume_at": "the function `{}`, which resumes after the graph break",
    "builtins_dict": "Python's builtins, as they were when Dynamo read the function",
    "import": "the module `{}`, under a name of Dynamo's own",
}


STATEMENTS: Mapping[str, tuple[int, str, str]] = {
    "STORE_DEREF": (1, "{name} = {}", "write `{}`, which functions share"),
    "STORE_GLOBAL": (1, "{name} = {}", "write back the global `{}`, which the function changes"),
    "STORE_ATTR": (2, "{1}.{name} = {0}", "write back the attribute `{}`, which the function changes"),
    "DELETE_ATTR": (1, "del {}.{name}", ""),
}
"""Instructions that store or delete by name: number of operands, their Python statement, and their purpose."""
CONTAINERS: Mapping[str, Callable[..., str]] = {
    "BUILD_LIST": lambda *items: f"[{', '.join(items)}]",
    "BUILD_TUPLE": lambda *items: f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})",
    "BUILD_SET": lambda *items: f"{{{', '.join(items)}}}",
}


class StoppedError(Exception):
    """An instruction that can't be rendered as Python; the message says why."""


@dataclass(eq=False, slots=True)
class Value:
    """A stack entry, as the text of a Python expression.

    `primary` is whether a dot may follow the text, `waiting` whether its evaluation is pending. `local` is the variable
    that the entry reads. `key` is its form as a subscript (`0:1` for a slice). `truth` is an expression with the same
    truth value. `offsets` are the instructions that the entry was rendered from.
    """

    text: str
    primary: bool = True
    waiting: bool = False
    local: str = ""
    key: str = ""
    truth: str = ""
    offsets: tuple[int, ...] = ()

    def become_variable(self, name: str) -> None:
        """Make this entry refer to a variable."""
        self.text, self.primary, self.waiting, self.local = name, True, False, ""
        self.key = self.truth = ""
        self.offsets = ()


NULL = Value("NULL")


def copy_values(values: Iterable[Value]) -> list[Value]:
    """Copy stack entries for one side of a branch; an entry that occurs twice is copied once."""
    known = {id(NULL): NULL}
    return [known.setdefault(id(value), replace(value)) for value in values]


@dataclass
class SymbolicStack:
    """The state of rendering: the stack, and the Python lines so far.

    `stands_for` are the offsets of the instructions behind each line. `waiting` are the entries with pending
    evaluation. `taken` are names used by the code itself. `offset` is the current instruction. `used` are the
    offsets of that instruction and of the instructions that produced its operands. `made` numbers new variables.
    """

    taken: frozenset[str]
    lines: list[str] = field(default_factory=list)
    stands_for: list[tuple[int, ...]] = field(default_factory=list)
    stack: list[Value] = field(default_factory=list)
    waiting: list[Value] = field(default_factory=list)
    indent: int = 1
    offset: int = 0
    used: list[int] = field(default_factory=list)
    made: int = 0

    def begin_instruction(self, offset: int) -> None:
        self.offset = offset
        self.used = [offset]

    def emit(self, text: str, offsets: Iterable[int] | None = None) -> None:
        self.lines.append("    " * self.indent + text)
        self.stands_for.append(tuple(sorted(set(self.used if offsets is None else offsets))))

    def fresh_name(self) -> str:
        self.made += 1
        while f"v{self.made}" in self.taken:
            self.made += 1
        return f"v{self.made}"

    def name_it(self, value: Value) -> None:
        name = self.fresh_name()
        self.emit(f"{name} = {value.text}", value.offsets)
        value.become_variable(name)

    def name_reads(self, variables: Collection[str] | None = None) -> None:
        """Assign stack values to new names if they read one of `variables` (None: any), as these may change."""
        for value in self.stack:
            if value.local and (variables is None or value.local in variables):
                self.name_it(value)

    def keep_reads_of(self, name: str, but: Value | None = None) -> None:
        for other in self.stack:
            if other.local == name and other is not but:
                self.name_it(other)

    def flush(self, but: Value | None = None) -> None:
        """Evaluate all pending values in order, but leave `but` to the next statement if it is the last."""
        last = self.waiting.pop() if but is not None and self.waiting and self.waiting[-1] is but else None
        for value in self.waiting:
            self.name_it(value)
        self.waiting = []
        if last is not None:
            last.waiting = False

    def pop(self, count: int) -> list[Value]:
        if count > len(self.stack):
            raise StoppedError(f"the instruction at {self.offset} takes more than there is")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def from_top(self, depth: int) -> Value:
        """The entry at this depth, 1 for the top; the entry stays on the stack. Raises StoppedError."""
        if not 0 < depth <= len(self.stack):
            raise StoppedError(f"the instruction at {self.offset} reaches further down than there is")
        return self.stack[-depth]

    def on_stack(self, value: Value) -> bool:
        return any(value is other for other in self.stack)

    def consume(self, operands: list[Value]) -> None:
        """Evaluate operands in this order; assign pending values to names if the bytecode's order differs."""
        inline = [value for value in operands if value.waiting]
        tail = self.waiting[len(self.waiting) - len(inline) :] if inline else []
        in_order = len(inline) == len(tail) and all(a is b for a, b in zip(inline, tail, strict=True))
        if any(map(self.on_stack, inline)) or not in_order:
            self.flush()
        elif inline:
            del self.waiting[len(self.waiting) - len(inline) :]
        for value in operands:
            self.used.extend(value.offsets)

    def load(self, text: str, *, primary: bool = True, local: str = "") -> None:
        """Push a constant or a variable."""
        self.stack.append(Value(text, primary, local=local, offsets=(self.offset,)))

    def push(self, text: str, *, primary: bool = True, truth: str = "") -> None:
        """Push an expression with pending evaluation."""
        value = Value(text, primary, waiting=True, truth=truth, offsets=tuple(self.used))
        self.waiting.append(value)
        self.stack.append(value)

    def compute(self, count: int, text: Callable[..., str], *, primary: bool = True) -> None:
        operands = self.pop(count)
        self.consume(operands)
        self.push(text(*(value.text for value in operands)), primary=primary)

    def statement(self, operands: list[Value], text: Callable[..., str]) -> None:
        """Write a statement that evaluates these operands in order, after all pending values."""
        self.consume(operands)
        self.flush()
        self.emit(text(*(value.text for value in operands)))


def literal(value: Any) -> str | None:
    """Exact Python literal for a constant; None if there is none."""
    if not isinstance(value, int | float | str | bytes | bool | tuple | frozenset | type(None) | type(...)):
        return None
    try:
        text = repr(value)
        read = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return text if type(read) is type(value) and repr(read) == text else None


@dataclass
class Instructions(SymbolicStack):
    """Renders instructions without control flow.

    `says` is the purpose of instructions, by offset. `constants` are objects without a literal, by their name in the
    text. `names` canonicalizes generated names.
    """

    code: CodeType = field(kw_only=True)
    names: Callable[[str], str] = str
    says: dict[int, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    keywords: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.cells = {*self.code.co_cellvars, *self.code.co_freevars}

    def stop(self, instruction: dis.Instruction, why: str) -> StoppedError:
        argument = self.names(instruction.argrepr)[:60]
        return StoppedError(f"{instruction.opname} {argument}".rstrip() + f" at {instruction.offset}: {why}")

    def say(self, words: str) -> None:
        self.says.setdefault(self.offset, words)

    def handle(self, instruction: dis.Instruction) -> None:
        """Render an instruction without control flow. Raises StoppedError."""
        name = instruction.opname
        if name in EXPRESSIONS:
            count, form = EXPRESSIONS[name]
            self.compute(count, form.format)
            return
        if name in STATEMENTS:
            count, form, words = STATEMENTS[name]
            if words:
                self.say(words.format(instruction.argval))
            self.statement(self.pop(count), partial(form.format, name=instruction.argval))
            return
        handler = getattr(self, f"_{name.lower()}", None)
        if handler is None:
            raise self.stop(instruction, "Python's own text for it needs a block or a statement of its own")
        handler(instruction)

    # Constants and variables.

    def _load_const(self, instruction: dis.Instruction) -> None:
        value = instruction.argval
        if (text := literal(value)) is not None:
            self.load(text, primary=not isinstance(value, int | float | complex))
        else:
            self.load(self.constant(value, f"constant_{len(self.constants)}"))

    def constant(self, value: Any, wanted: str) -> str:
        """Name of an object without a literal: a known name, or `wanted`, with underscores appended if it is taken."""
        name = next((known for known, kept in self.constants.items() if kept is value), "")
        if not name:
            name = wanted
            while name in self.taken:
                name += "_"
            self.constants[name] = value
        return name

    def _load_fast(self, instruction: dis.Instruction) -> None:
        if instruction.argval in self.cells:  # Python 3.13 has no separate instruction for a cell
            self._load_closure(instruction)
        else:
            name = self.names(instruction.argval)
            self.load(name, local=name)

    _load_fast_check = _load_fast

    def _load_global(self, instruction: dis.Instruction) -> None:
        before, after = instruction.argrepr.startswith("NULL"), instruction.argrepr.endswith("NULL")
        self.stack += [NULL] * before
        shown = self.names(instruction.argval)
        if INSTALLED.match(instruction.argval):
            self.say(describe_installed(shown))
            self.load(shown)
        else:
            self.push(shown)
        self.stack += [NULL] * (after and not before)

    def _load_deref(self, instruction: dis.Instruction) -> None:
        self.push(instruction.argval)

    def _load_closure(self, instruction: dis.Instruction) -> None:
        """Load the cell of a variable, from the closure of a lambda that reads it."""
        self.say(f"the cell of `{instruction.argval}`, shared with the functions that close over it")
        self.load(f"(lambda: {instruction.argval}).__closure__[0]")

    def _store_fast(self, instruction: dis.Instruction) -> None:
        (value,) = self.pop(1)
        name = self.names(instruction.argval)
        self.used.extend(value.offsets)
        self.flush(value)
        self.keep_reads_of(name, but=value)
        self.emit(f"{name} = {value.text}")
        if name.startswith("graph_out_"):
            self.say("keep the tuple that the graph returned")
        if self.on_stack(value):
            value.become_variable(name)
            value.local = name

    def _delete_fast(self, instruction: dis.Instruction) -> None:
        name = self.names(instruction.argval)
        self.flush()
        self.keep_reads_of(name)
        self.emit(f"del {name}")
        self.say(f"clean up: `{name}` is needed no more")

    # Python 3.13 joins two loads or stores into one instruction.

    def _load_fast_load_fast(self, instruction: dis.Instruction) -> None:
        for half, name in zip(_HALF.findall(instruction.opname.lower()), instruction.argval, strict=True):
            getattr(self, f"_{half}")(instruction._replace(argval=name))

    _store_fast_load_fast = _store_fast_store_fast = _load_fast_load_fast

    # The stack.

    def _push_null(self, instruction: dis.Instruction) -> None:
        self.stack.append(NULL)

    def _copy(self, instruction: dis.Instruction) -> None:
        self.stack.append(self.from_top(int(instruction.arg or 1)))

    def _swap(self, instruction: dis.Instruction) -> None:
        depth = int(instruction.arg or 1)
        self.stack[-1], self.stack[-depth] = self.from_top(depth), self.stack[-1]

    def _pop_top(self, instruction: dis.Instruction) -> None:
        (value,) = self.pop(1)
        if value.waiting and not self.on_stack(value):
            self.used.extend(value.offsets)
            self.flush(value)
            self.emit(value.text)

    # Operators.

    def _binary_op(self, instruction: dis.Instruction) -> None:
        if instruction.argrepr.endswith("="):
            self._change(instruction.argrepr)
        else:
            self._combine(instruction.argrepr)

    def _combine(self, operator: str) -> None:
        self.compute(2, f"({{}} {operator} {{}})".format)

    def _change(self, operator: str) -> None:
        """Render an in-place operator as a statement on a new variable, as it may mutate its left operand."""
        left, right = operands = self.pop(2)
        self.consume(operands)
        self.flush()
        name, used = self.fresh_name(), tuple(self.used)
        self.emit(f"{name} = {left.text}")
        self.emit(f"{name} {operator} {right.text}")
        self.stack.append(Value(name, offsets=used))

    def _compare_op(self, instruction: dis.Instruction) -> None:
        self._combine(str(instruction.argval))
        if instruction.argrepr.startswith("bool("):  # Python 3.13
            self._to_bool(instruction)

    def _to_bool(self, instruction: dis.Instruction) -> None:
        (value,) = self.pop(1)
        self.consume([value])
        self.push(f"(not not {value.text})", truth=value.text)

    def _is_op(self, instruction: dis.Instruction) -> None:
        self._combine("is not" if instruction.arg else "is")

    def _contains_op(self, instruction: dis.Instruction) -> None:
        self._combine("not in" if instruction.arg else "in")

    def _call_intrinsic_1(self, instruction: dis.Instruction) -> None:
        form = _INTRINSICS.get(instruction.argrepr)
        if form is None:
            raise self.stop(instruction, "Python has no expression for it")
        self.compute(1, form.format)

    # Items.

    def _binary_subscr(self, instruction: dis.Instruction) -> None:
        owner, key = self.from_top(2), self.from_top(1)
        if owner.text.startswith("graph_out_"):
            self.say(f"take output {key.text} of the graph")
        between = key.key
        self.compute(2, lambda value, key: f"{value}[{between or key}]")

    def _build_slice(self, instruction: dis.Instruction) -> None:
        if "slice" in self.taken:
            raise self.stop(instruction, "the code has another `slice`")
        parts = self.pop(int(instruction.arg or 2))
        self.consume(parts)
        texts = [part.text for part in parts]
        self.push(f"slice({', '.join(texts)})")
        if all(part.text.lstrip("-").isdigit() or part.text == "None" for part in parts):  # nothing to evaluate
            self.waiting.pop().waiting = False
            self.stack[-1].key = ":".join("" if text == "None" else text for text in texts)

    def _store_subscr(self, instruction: dis.Instruction) -> None:
        value, owner, key = self.pop(3)
        self._say_written("an item", owner)
        between = key.key
        self.statement([value, owner, key], lambda value, owner, key: f"{owner}[{between or key}] = {value}")

    def _store_slice(self, instruction: dis.Instruction) -> None:
        value, owner, *ends = self.pop(4)
        self._say_written("items", owner)
        self.statement([value, owner, *ends], "{1}[{2}:{3}] = {0}".format)

    def _say_written(self, what: str, owner: Value) -> None:
        self.say(f"write back {what}" if owner.waiting else f"write back: {what} of `{owner.text}`")

    def _delete_subscr(self, instruction: dis.Instruction) -> None:
        between = self.from_top(1).key
        self.statement(self.pop(2), lambda owner, key: f"del {owner}[{between or key}]")

    # Containers.

    def _build_list(self, instruction: dis.Instruction) -> None:
        count = int(instruction.arg or 0)
        if instruction.opname == "BUILD_SET" and not count:
            raise self.stop(instruction, "Python has no literal for an empty set")
        if any("graph_out_" in value.text for value in self.stack[len(self.stack) - count :]):
            self.say("rebuild a value of the function from what the graph returned")
        self.compute(count, CONTAINERS[instruction.opname])

    _build_tuple = _build_set = _build_list

    def _build_map(self, instruction: dis.Instruction) -> None:
        pairs = int(instruction.arg or 0)
        self.compute(2 * pairs, lambda *parts: _dict(parts[::2], parts[1::2]))

    def _build_const_key_map(self, instruction: dis.Instruction) -> None:
        keys = [literal(key) for key in ast.literal_eval(self.pop(1)[0].text)]
        self.compute(int(instruction.arg or 0), lambda *values: _dict(keys, values))

    def _list_extend(self, instruction: dis.Instruction) -> None:
        items = self.pop(1)
        owner = self.from_top(int(instruction.arg or 1))
        method = instruction.opname.rpartition("_")[2].lower()
        self.statement(items, lambda value: f"{owner.text}.{method}({value})")

    _dict_update = _list_extend

    def _unpack_sequence(self, instruction: dis.Instruction) -> None:
        operands = self.pop(1)
        parts = [self.fresh_name() for _ in range(int(instruction.arg or 0))]
        self.statement(operands, lambda value: f"[{', '.join(parts)}] = {value}")
        self.stack.extend(Value(part) for part in reversed(parts))

    # Attributes.

    def _load_attr(self, instruction: dis.Instruction) -> None:
        if "NULL" in instruction.argrepr:
            self._load_method(instruction)
        else:
            form = "{}.{}" if self.from_top(1).primary else "({}).{}"
            self.compute(1, lambda owner: form.format(owner, instruction.argval))

    def _load_method(self, instruction: dis.Instruction) -> None:
        self.stack += [NULL, *self.pop(1)]
        self._load_attr(instruction._replace(argrepr=""))

    # Functions.

    def _kw_names(self, instruction: dis.Instruction) -> None:
        # In Python 3.11, `dis` resolves constants only for LOAD_CONST.
        self.keywords = self.code.co_consts[int(instruction.arg or 0)]

    def _call_kw(self, instruction: dis.Instruction) -> None:
        self.keywords = ast.literal_eval(self.pop(1)[0].text)
        self._call(instruction)

    def _call(self, instruction: dis.Instruction) -> None:
        arguments = self.pop(int(instruction.arg or 0))
        callee, *bound = self._pop_callee()
        arguments = [*bound, *arguments]
        keywords, self.keywords = self.keywords, ()
        self.consume([callee, *arguments])
        positional = len(arguments) - len(keywords)
        shown = [value.text for value in arguments[:positional]]
        named = zip(keywords, arguments[positional:], strict=True)
        self._push_call(callee, [*shown, *(f"{name}={value.text}" for name, value in named)])

    def _pop_callee(self) -> list[Value]:
        """Pop the callee, and the object of a method call if it is on the stack in place of NULL."""
        return [value for value in self.pop(2) if value is not NULL]

    def _call_function_ex(self, instruction: dis.Instruction) -> None:
        parts = self.pop(2 if (instruction.arg or 0) & 1 else 1)
        callee, *bound = self._pop_callee()
        if bound:
            raise self.stop(instruction, "it has no NULL beside the function")
        self.consume([callee, *parts])
        self._push_call(callee, [f"{star}{value.text}" for star, value in zip(("*", "**"), parts, strict=False)])

    def _push_call(self, callee: Value, shown: list[str]) -> None:
        arguments = ", ".join(shown)
        if words := describe_call(callee.text, arguments):
            self.say(words)
        self.push(f"{callee.text if callee.primary else f'({callee.text})'}({arguments})")

    def _make_function(self, instruction: dis.Instruction) -> None:
        """Render the creation of a function from code, this module's globals, and cells."""
        flags = int(instruction.arg or 0)
        if flags & ~(_CLOSURE | _DEFAULTS):
            raise self.stop(instruction, "annotations and defaults of keywords are set in ways of their own")
        *given, code = self.pop(1 + flags.bit_count())
        self.consume([*given, code])
        texts = [value.text for value in given]
        defaults = texts.pop(0) if flags & _DEFAULTS else "None"
        self._function(code.text, defaults, texts[0] if texts else "None")

    def _set_function_attribute(self, instruction: dis.Instruction) -> None:
        """Render the creation of a function with its cells as one call; Python 3.13 has two instructions for this."""
        given, function = self.pop(2)
        if instruction.arg != _CLOSURE or not self.waiting or self.waiting[-1] is not function or not function.key:
            raise self.stop(instruction, "it changes a function that is there already")
        self.waiting.pop()
        self.used.extend(function.offsets)
        self.consume([given])
        self._function(function.key, "None", given.text)

    def _function(self, code: str, defaults: str, closure: str) -> None:
        self.say("make a function again, around its cells")
        make = self.constant(FunctionType, "FunctionType")
        self.push(f"{make}({code}, (lambda: None).__globals__, None, {defaults}, {closure})")
        self.stack[-1].key = code


def _dict(keys: Any, values: Any) -> str:
    return f"{{{', '.join(f'{key}: {value}' for key, value in zip(keys, values, strict=True))}}}"


def describe_installed(name: str) -> str:
    """Describe a global that Dynamo installed."""
    match = INSTALLED.match(name)
    kind = match[1] if match else ""
    shown = name.removeprefix("__import_").replace("_dot_", ".") if kind == "import" else name
    return _ROLES[kind].format(shown) if kind else shown


def describe_call(callee: str, arguments: str) -> str:
    """Describe the purpose of one of Dynamo's calls; "" for the user's own calls."""
    if callee.startswith("__compiled_fn_"):
        return f"call the compiled graph with {arguments or 'no inputs'}"
    if callee.startswith("__resume_at_"):
        return f"call the resume function `{callee}` with the values that it needs"
    if callee.endswith("_create_nested_fn"):
        return "make the inner function again, around its cells"
    for ending, verb in (("enter", "starts"), ("exit", "ends")):
        if callee.endswith(f"record_pregraph_bytecode_{ending}"):
            return f"tell torch's profiler that the work before the graph {verb}"
    return ""
