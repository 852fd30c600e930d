"""What each instruction does to a symbolic stack. Python's `dis` documents the instructions (3.11 to 3.13).

A method's name is the instruction's in small letters, with an underscore in front.
"""
# ruff: noqa: ARG002 - handlers of instructions have one signature

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from compiler.capture.symbolic_stack import NULL, StoppedError, SymbolicStack, Value, literal, tuple_text

_CLOSURE, _DEFAULTS = 8, 1  # what MAKE_FUNCTION is given, as flags
_INTRINSICS = {"INTRINSIC_LIST_TO_TUPLE": "(*{},)", "INTRINSIC_UNARY_POSITIVE": "(+{})"}
INSTALLED = re.compile(r"__(compiled_fn|resume_at|builtins_dict|import)_")
_ROLES: Mapping[str, str] = {
    "compiled_fn": "the compiled graph `{}`",
    "resume_at": "the function `{}`, which resumes after the graph break",
    "builtins_dict": "Python's builtins, as they were when Dynamo read the function",
    "import": "the module `{}`, under a name of Dynamo's own",
}


@dataclass
class Instructions(SymbolicStack):
    """The instructions that go on with the next one.

    `says` has what an instruction (by offset) is for; `constants` are the objects that have a name in the text because
    they have no literal. `names` gives generated names their canonical form.
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

    # Constants and variables.

    def _load_const(self, instruction: dis.Instruction) -> None:
        value = instruction.argval
        if (text := literal(value)) is not None:
            self.load(text, primary=not isinstance(value, int | float | complex))
        else:
            self.load(self.constant(value, f"constant_{len(self.constants)}"))

    def constant(self, value: Any, wanted: str) -> str:
        """The name of an object that has no literal."""
        name = next((known for known, kept in self.constants.items() if kept is value), "")
        if not name:
            name = wanted
            while name in self.taken:
                name += "_"
            self.constants[name] = value
        return name

    def _load_fast(self, instruction: dis.Instruction) -> None:
        if instruction.argval in self.cells:  # Python 3.13 has no instruction of its own for a cell
            self._load_closure(instruction)
        else:
            name = self.names(instruction.argval)
            self.load(name, local=name)

    _load_fast_check = _load_fast

    def _load_global(self, instruction: dis.Instruction) -> None:
        null = "NULL" in instruction.argrepr
        first = null and not instruction.argrepr.endswith("NULL")
        if first:
            self.stack.append(NULL)
        self._global(instruction.argval)
        if null and not first:
            self.stack.append(NULL)

    def _global(self, name: str) -> None:
        shown = self.names(name)
        if INSTALLED.match(name):
            self.say(describe_installed(shown))
            self.load(shown)
        else:
            self.push(shown)

    def _load_deref(self, instruction: dis.Instruction) -> None:
        self.push(instruction.argval)

    def _load_closure(self, instruction: dis.Instruction) -> None:
        """Load the cell of a variable, through a function that closes over it."""
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

    # Python 3.13 joins two of them.

    def _load_fast_load_fast(self, instruction: dis.Instruction) -> None:
        for name in instruction.argval:
            self._load_fast(instruction._replace(argval=name))

    def _store_fast_load_fast(self, instruction: dis.Instruction) -> None:
        stored, loaded = instruction.argval
        self._store_fast(instruction._replace(argval=stored))
        self._load_fast(instruction._replace(argval=loaded))

    def _store_fast_store_fast(self, instruction: dis.Instruction) -> None:
        for name in instruction.argval:
            self._store_fast(instruction._replace(argval=name))

    def _store_deref(self, instruction: dis.Instruction) -> None:
        self.say(f"write `{instruction.argval}`, which functions share")
        self.statement(self.pop(1), lambda value: f"{instruction.argval} = {value}")

    def _store_global(self, instruction: dis.Instruction) -> None:
        self.say(f"write back the global `{instruction.argval}`, which the function changes")
        self.statement(self.pop(1), lambda value: f"{instruction.argval} = {value}")

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
        operator = instruction.argrepr
        if operator.endswith("="):
            self._change(operator)
        else:
            self.compute(2, lambda left, right: f"({left} {operator} {right})")

    def _change(self, operator: str) -> None:
        """An operator that may change its left operand is a statement, on a variable of its own."""
        left, right = operands = self.pop(2)
        self.consume(operands)
        self.flush()
        name, used = self.fresh_name(), tuple(self.used)
        self.emit(f"{name} = {left.text}")
        self.emit(f"{name} {operator} {right.text}")
        self.stack.append(Value(name, offsets=used))

    def _compare_op(self, instruction: dis.Instruction) -> None:
        operator = str(instruction.argval)
        self.compute(2, lambda left, right: f"({left} {operator} {right})")
        if instruction.argrepr.startswith("bool("):  # Python 3.13
            self._to_bool(instruction)

    def _to_bool(self, instruction: dis.Instruction) -> None:
        (value,) = self.pop(1)
        self.consume([value])
        self.push(f"(not not {value.text})", truth=value.text)

    def _is_op(self, instruction: dis.Instruction) -> None:
        operator = "is not" if instruction.arg else "is"
        self.compute(2, lambda left, right: f"({left} {operator} {right})")

    def _contains_op(self, instruction: dis.Instruction) -> None:
        operator = "not in" if instruction.arg else "in"
        self.compute(2, lambda left, right: f"({left} {operator} {right})")

    def _unary_negative(self, instruction: dis.Instruction) -> None:
        self.compute(1, lambda value: f"(-{value})")

    def _unary_invert(self, instruction: dis.Instruction) -> None:
        self.compute(1, lambda value: f"(~{value})")

    def _unary_not(self, instruction: dis.Instruction) -> None:
        self.compute(1, lambda value: f"(not {value})")

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

    def _binary_slice(self, instruction: dis.Instruction) -> None:
        self.compute(3, lambda value, start, end: f"{value}[{start}:{end}]")

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
        self.say(f"write back: an item of `{owner.text}`" if not owner.waiting else "write back an item")
        between = key.key
        self.statement([value, owner, key], lambda value, owner, key: f"{owner}[{between or key}] = {value}")

    def _store_slice(self, instruction: dis.Instruction) -> None:
        value, owner, *ends = self.pop(4)
        self.say(f"write back: items of `{owner.text}`" if not owner.waiting else "write back items")
        self.statement([value, owner, *ends], lambda value, owner, start, end: f"{owner}[{start}:{end}] = {value}")

    def _delete_subscr(self, instruction: dis.Instruction) -> None:
        between = self.from_top(1).key
        self.statement(self.pop(2), lambda owner, key: f"del {owner}[{between or key}]")

    # Containers.

    def _build(self, instruction: dis.Instruction, text: Callable[..., str]) -> None:
        count = int(instruction.arg or 0)
        if any("graph_out_" in value.text for value in self.stack[len(self.stack) - count :]):
            self.say("rebuild a value of the function from what the graph returned")
        self.compute(count, text)

    def _build_list(self, instruction: dis.Instruction) -> None:
        self._build(instruction, lambda *items: f"[{', '.join(items)}]")

    def _build_tuple(self, instruction: dis.Instruction) -> None:
        self._build(instruction, tuple_text)

    def _build_set(self, instruction: dis.Instruction) -> None:
        if not instruction.arg:
            raise self.stop(instruction, "Python has no literal for an empty set")
        self._build(instruction, lambda *items: f"{{{', '.join(items)}}}")

    def _build_map(self, instruction: dis.Instruction) -> None:
        pairs = int(instruction.arg or 0)
        self.compute(2 * pairs, lambda *parts: _dict(parts[::2], parts[1::2]))

    def _build_const_key_map(self, instruction: dis.Instruction) -> None:
        keys = [literal(key) for key in ast.literal_eval(self.pop(1)[0].text)]
        self.compute(int(instruction.arg or 0), lambda *values: _dict(keys, values))

    def _list_extend(self, instruction: dis.Instruction) -> None:
        self._update_in_place(instruction, "extend")

    def _dict_update(self, instruction: dis.Instruction) -> None:
        self._update_in_place(instruction, "update")

    def _update_in_place(self, instruction: dis.Instruction, method: str) -> None:
        items = self.pop(1)
        owner = self.from_top(int(instruction.arg or 1))
        self.consume(items)
        self.flush()
        self.emit(f"{owner.text}.{method}({items[0].text})")

    def _list_to_tuple(self, instruction: dis.Instruction) -> None:
        self.compute(1, lambda value: f"(*{value},)")

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
            self._attribute(instruction.argval)

    def _attribute(self, name: str) -> None:
        number = not self.from_top(1).primary
        self.compute(1, lambda owner: f"({owner}).{name}" if number else f"{owner}.{name}")

    def _load_method(self, instruction: dis.Instruction) -> None:
        (owner,) = self.pop(1)
        self.stack.append(NULL)
        self.stack.append(owner)
        self._attribute(instruction.argval)

    def _store_attr(self, instruction: dis.Instruction) -> None:
        name = instruction.argval
        self.say(f"write back the attribute `{name}`, which the function changes")
        self.statement(self.pop(2), lambda value, owner: f"{owner}.{name} = {value}")

    def _delete_attr(self, instruction: dis.Instruction) -> None:
        self.statement(self.pop(1), lambda owner: f"del {owner}.{instruction.argval}")

    # Functions.

    def _kw_names(self, instruction: dis.Instruction) -> None:
        # `dis` of Python 3.11 knows the constants of LOAD_CONST alone.
        self.keywords = self.code.co_consts[int(instruction.arg or 0)]

    def _call_kw(self, instruction: dis.Instruction) -> None:
        self.keywords = ast.literal_eval(self.pop(1)[0].text)
        self._call(instruction)

    def _call(self, instruction: dis.Instruction) -> None:
        arguments = self.pop(int(instruction.arg or 0))
        first, second = self.pop(2)
        if NULL in (first, second):
            callee = second if first is NULL else first
        else:
            callee, arguments = first, [second, *arguments]
        keywords, self.keywords = self.keywords, ()
        self.consume([callee, *arguments])
        positional = len(arguments) - len(keywords)
        shown = [value.text for value in arguments[:positional]]
        named = zip(keywords, arguments[positional:], strict=True)
        self._push_call(callee, [*shown, *(f"{name}={value.text}" for name, value in named)])

    def _call_function_ex(self, instruction: dis.Instruction) -> None:
        parts = self.pop(2 if (instruction.arg or 0) & 1 else 1)
        first, second = self.pop(2)
        if NULL not in (first, second):
            raise self.stop(instruction, "it has no NULL beside the function")
        callee = second if first is NULL else first
        self.consume([callee, *parts])
        self._push_call(callee, [f"{star}{value.text}" for star, value in zip(("*", "**"), parts, strict=False)])

    def _push_call(self, callee: Value, shown: list[str]) -> None:
        arguments = ", ".join(shown)
        if words := describe_call(callee.text, arguments):
            self.say(words)
        self.push(f"{callee.text if callee.primary else f'({callee.text})'}({arguments})")

    def _make_function(self, instruction: dis.Instruction) -> None:
        """A function that is made of code, of this module's globals, and of cells."""
        flags = int(instruction.arg or 0)
        if flags & ~(_CLOSURE | _DEFAULTS):
            raise self.stop(instruction, "annotations and defaults of keywords are set in ways of their own")
        *given, code = self.pop(1 + flags.bit_count())
        self.consume([*given, code])
        texts = [value.text for value in given]
        defaults = texts.pop(0) if flags & _DEFAULTS else "None"
        self._function(code.text, defaults, texts[0] if texts else "None")

    def _set_function_attribute(self, instruction: dis.Instruction) -> None:
        """Python 3.13 adds a function's cells after making it; render both as one call."""
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
    """Describe the purpose of a call of Dynamo's; "" for the user's own."""
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
