"""Observe TorchDynamo's bytecode interpreter (`InstructionTranslatorBase.step`).

Values are described without being realized, so this adds no guard and does not affect Dynamo's decisions.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from types import CodeType
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._guards import GuardsSet

from compiler.torch_api.compilations import CompileKey, current_key
from compiler.torch_api.fx import dtype_name, source_name
from compiler.torch_api.patching import Function, call_instead, replace_attributes

MOST_CHARACTERS = 80
MOST_ITEMS = 6
MOST_PUSHED = 32
MOST_LOCALS = 64
STEP_BYTES = 900
"""Approximate bytes of a step besides its texts: objects, lists, and their copy in a record."""
_SEEN = "_tcompile_seen"
_UNREAD = "not read yet"
_WRITES = ("STORE_FAST", "DELETE_FAST", "STORE_DEREF", "DELETE_DEREF")


@dataclass(slots=True)
class StepFacts:
    """One instruction, and Dynamo's state before it, as changes since the last instruction of the same call.

    `kept` counts the unchanged stack entries from the bottom; `pushed` are the new ones on top. `changed` maps
    changed locals to descriptions, "" if deleted. `nodes` and `guards` were added before the next step. `ended` is the
    step's error, or "".
    """

    key: CompileKey
    attempt: int
    depth: int
    code: CodeType
    first: bool
    offset: int
    opcode: str
    argument: str
    line: int
    kept: int
    pushed: tuple[str, ...]
    changed: dict[str, str]
    nodes: list[str] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    ended: str = ""


@dataclass(slots=True)
class _Seen:
    """The state of one (inlined) call at its last step: its stack, and the texts of locals that were not read yet."""

    attempt: int
    depth: int
    stack: list[tuple[Any, bool]] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    last: Any = None
    first: bool = True


@contextmanager
def observe_steps(taken: list[StepFacts], most: int) -> Iterator[Watch]:
    """Append every instruction that Dynamo traces in the block to `taken`, up to `most` bytes."""
    watch = Watch(taken, most)
    with replace_attributes([
        (InstructionTranslatorBase, "step", call_instead(watch.observe_step)),
        (GuardsSet, "add", call_instead(watch.observe_add)),
    ]):  # fmt: skip
        yield watch


class Watch:
    """The hooks of `observe_steps`. `full` is True once the byte limit is reached."""

    def __init__(self, taken: list[StepFacts], most: int) -> None:
        self.taken, self.most, self.held = taken, most, 0
        self.attempts: Counter[CompileKey] = Counter()
        self.graph: Any = None
        self.length = 0

    def observe_step(self, step: Function, translator: Any) -> bool:
        if self.full or translator.instruction_pointer is None:
            return step(translator)
        facts = self._facts(translator)
        self.taken.append(facts)
        self.held += STEP_BYTES + sum(map(len, (*facts.pushed, *facts.changed.values())))
        try:
            return step(translator)
        except BaseException as error:
            last = self.taken[-1]
            if not last.ended and last.key == facts.key:
                last.ended = _short(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            raise
        finally:
            self._nodes(translator.output.graph)

    def observe_add(self, add: Function, guards: Any, guard: Any, **options: Any) -> None:
        before = len(guards)
        options["skip"] = options.get("skip", 0) + 2  # `skip` counts callers: this hook and its wrapper add two
        add(guards, guard, **options)
        if len(guards) > before and self.taken and not self.full:
            name = _source_name(guard.originating_source)
            self._add(self.taken[-1].guards, [_short(f"{guard.create_fn_name()} {name}".rstrip())])

    @property
    def full(self) -> bool:
        return self.held >= self.most

    def _add(self, texts: list[str], new: list[str]) -> None:
        texts.extend(new)
        self.held += sum(map(len, new))

    def _facts(self, translator: Any) -> StepFacts:
        instruction = translator.instructions[translator.instruction_pointer]
        self._nodes(translator.output.graph)
        seen = getattr(translator, _SEEN, None) or self._begin(translator)
        stack = [(value, _is_unread(value)) for value in translator.stack]
        kept = _common(seen.stack, stack)
        pushed = tuple(describe(value) for value in translator.stack[kept:][-MOST_PUSHED:])
        positions = instruction.positions
        facts = StepFacts(
            key=current_key(), attempt=seen.attempt, depth=seen.depth, code=translator.f_code, first=seen.first,
            offset=instruction.offset if instruction.offset is not None else -1, opcode=instruction.opname,
            argument=_argument(instruction), line=(positions.lineno if positions else None) or translator.lineno,
            kept=kept, pushed=pushed, changed=_changes(translator, seen),
        )  # fmt: skip
        seen.stack, seen.last, seen.first = stack, instruction, False
        return facts

    def _begin(self, translator: Any) -> _Seen:
        above = getattr(getattr(translator, "parent", None), _SEEN, None)
        if above is None:
            self.attempts[current_key()] += 1
        seen = _Seen(above.attempt, above.depth + 1) if above else _Seen(self.attempts[current_key()], 0)
        setattr(translator, _SEEN, seen)
        return seen

    def _nodes(self, graph: Any) -> None:
        """Assign the graph's new nodes to the latest step."""
        if graph is not self.graph:
            self.graph, self.length = graph, 0
        added = len(graph.nodes) - self.length
        if added > 0 and self.taken:
            newest = [_node(node) for node in islice(reversed(graph.nodes), added)]
            self._add(self.taken[-1].nodes, newest[::-1])
        self.length = len(graph.nodes)


def _common(before: list[tuple[Any, bool]], now: list[tuple[Any, bool]]) -> int:
    """The number of identical entries at the bottom of two stacks."""
    same = [old[0] is new[0] and old[1] == new[1] for old, new in zip(before, now, strict=False)]
    return [*same, False].index(False)


def _changes(translator: Any, seen: _Seen) -> dict[str, str]:
    """The local that the call's last instruction wrote, and locals that were read since the call's last instruction.

    At the first instruction, all locals up to MOST_LOCALS.
    """
    values = translator.symbolic_locals
    if seen.first:
        names = [*islice(values, MOST_LOCALS)]
    else:
        names = [name for name in seen.unread if not _is_unread(values.get(name))]
        names += [seen.last.argval] if seen.last.opname in _WRITES else []
    texts = {name: describe(values[name]) if name in values else "" for name in names}
    changes = {name: text for name, text in texts.items() if text != seen.unread.get(name)}
    unread = {name: text for name, text in changes.items() if _UNREAD in text}
    seen.unread = {name: text for name, text in seen.unread.items() if name not in changes} | unread
    return changes


def _argument(instruction: Any) -> str:
    """An instruction's argument as a short text, without the repr of large values."""
    value = instruction.argval
    if instruction.target is not None:
        return f"to {instruction.target.offset}"
    if instruction.opname == "BINARY_OP":
        return _operators()[instruction.arg]
    if instruction.arg is None and value is None:
        return ""
    if isinstance(value, CodeType):
        return f"code of {value.co_name}"
    if isinstance(value, str):
        return _short(value)
    return _short(repr(value) if isinstance(value, int | float | bytes | type(None)) else type(value).__name__)


@cache
def _operators() -> dict[int, str]:
    """The operator sign for each argument of BINARY_OP."""
    signs = ("+", "-", "*", "/", "//", "%", "@", "**", "&", "|", "^", "<<", ">>")
    code = compile("\n".join(f"a {sign} b; a {sign}= b" for sign in signs) + "\na[b]", "", "exec")
    found = (each for each in dis.get_instructions(code) if each.opname == "BINARY_OP")
    return {each.arg: each.argrepr for each in found if each.arg is not None}


def _node(node: torch.fx.Node) -> str:
    inputs = ", ".join(each.name for each in node.all_input_nodes)
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return _short(f"{node.name} = {node.op} {target}({inputs})")


def describe(value: Any, depth: int = 0) -> str:
    """A symbolic value in words: `Tensor mul float32[4]`, `3`, `list[x, 2]`, `not read yet: x`."""
    if _is_unread(value):
        return _short(f"{_UNREAD}: {_source(value) or value.peek_type().__name__}")
    if isinstance(value, LazyVariableTracker):
        value = value.unwrap()
    kind = type(value).__name__.removesuffix("Variable")
    fields = vars(value)  # not properties: Dynamo's properties compute, and may add guards
    node = getattr(fields.get("proxy"), "node", None)
    if node is not None:
        return _short(f"{kind} {node.name}{_meta(node)}")
    items = fields.get("items")
    if isinstance(items, list | tuple):
        inner = [describe(item, depth + 1) for item in items[:MOST_ITEMS]] if depth < 2 else ["…"]
        return _short(f"{kind}[{', '.join(inner)}{', …' if len(items) > MOST_ITEMS else ''}]")
    if kind.endswith("Constant"):
        constant = fields.get("value")
        return _short(repr(constant[:MOST_CHARACTERS] if isinstance(constant, str | bytes) else constant))
    return _short(f"{kind} {_name(value)}".rstrip())


def _is_unread(value: Any) -> bool:
    return isinstance(value, LazyVariableTracker) and not value.is_realized()


def _meta(node: Any) -> str:
    """The dtype and shape of a node's example value. Printing a symbolic size adds no guard."""
    example = node.meta.get("example_value")
    if not isinstance(example, torch.Tensor):
        return ""
    return f" {dtype_name(example.dtype)}[{', '.join(map(str, example.shape))}]"


def _name(value: Any) -> str:
    for attribute in ("fn", "value", "name"):
        name = getattr(vars(value).get(attribute), "__name__", None)
        if isinstance(name, str):
            return name
    return _source(value)


def _source(value: Any) -> str:
    return _source_name(vars(value).get("source"))


def _source_name(source: Any) -> str:
    try:
        return source_name(source)
    except NotImplementedError:  # sources of values that Dynamo created have no name
        return ""


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
