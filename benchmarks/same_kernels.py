"""Compare two output codes of Inductor, kernel by kernel: which are equal, and how the rest differ."""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.inductor.kernels import canonical

_HASH = re.compile(r"'(backend_hash|device_hash)': '\w*'")
_ATEN = re.compile(r"(?:extern_kernels|torch\.ops|aten)\b[\w.]*")
_NUMBER = re.compile(r"\b(triton_\w+?)_\d+\b")

Identity = tuple[int, str]
"""The graph of an output code: its number, and forward, backward or inference."""


@dataclass(frozen=True, slots=True)
class Code:
    """An output code: its Triton kernels in order of definition (name, source), and the ATen calls in order."""

    text: str
    kernels: tuple[tuple[str, str], ...]
    calls: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Code:
        """Parse an output code, without paths and hashes of the machine and of Triton's installation."""
        text = _HASH.sub(r"'\1': ''", canonical(text, "graph"))
        tree = ast.parse(text)
        return cls(text, tuple(_kernels(tree)), tuple(_calls(tree)))


@dataclass(frozen=True, slots=True)
class Difference:
    """Kernels of one graph that only one side has, paired by similarity; "" if there is no counterpart."""

    graph: str
    real: str
    virtual: str
    diff: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The common kernels and ATen calls of two sets of output codes.

    `total` counts the kernels of the side with more, and likewise for `calls`. `renumbered` kernels are equal except
    for the number in their name; they do not count as equal.
    """

    equal: int = 0
    total: int = 0
    renumbered: int = 0
    equal_calls: int = 0
    calls: int = 0
    same_order: bool = True
    same_text: bool = True
    differences: tuple[Difference, ...] = ()
    other_calls: dict[str, list[str]] = field(default_factory=dict)

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.equal + other.equal, self.total + other.total, self.renumbered + other.renumbered,
            self.equal_calls + other.equal_calls, self.calls + other.calls,
            self.same_order and other.same_order, self.same_text and other.same_text,
            self.differences + other.differences, self.other_calls | other.other_calls,
        )  # fmt: skip


def compared(real: Sequence[Sequence[Any]], virtual: Sequence[Sequence[Any]]) -> Comparison:
    """Compare codes, each with its identity: (number, kind, text). Graphs are paired in order of their numbers."""
    sides = [_in_order(codes) for codes in (real, virtual)]
    found = Comparison()
    for identity in sorted({*sides[0], *sides[1]}):
        codes = [side.get(identity, Code("", (), ())) for side in sides]
        found += _pair(" ".join(map(str, identity)), *codes)
    return found


def _in_order(codes: Sequence[Sequence[Any]]) -> dict[Identity, Code]:
    """Codes by identity, with graphs renumbered from 0 in their order, because a side may skip numbers."""
    numbers = sorted({code[0] for code in codes})
    return {(numbers.index(number), kind): Code.of(text) for number, kind, text in codes}


def _pair(graph: str, real: Code, virtual: Code) -> Comparison:
    ours, theirs = Counter(virtual.kernels), Counter(real.kernels)
    only_real, only_virtual = list((theirs - ours).elements()), list((ours - theirs).elements())
    calls = Counter(real.calls) & Counter(virtual.calls)
    others = {
        "real": sorted((Counter(real.calls) - calls).elements()),
        "virtual": sorted((Counter(virtual.calls) - calls).elements()),
    }
    return Comparison(
        equal=(ours & theirs).total(),
        total=max(ours.total(), theirs.total()),
        renumbered=(Counter(map(_unnumbered, only_real)) & Counter(map(_unnumbered, only_virtual))).total(),
        equal_calls=calls.total(),
        calls=max(len(real.calls), len(virtual.calls)),
        same_order=real.kernels == virtual.kernels,
        same_text=real.text == virtual.text,
        differences=tuple(_differences(graph, only_real, only_virtual)),
        other_calls={f"{graph} {side}": names for side, names in others.items() if names},
    )


def _unnumbered(kernel: tuple[str, str]) -> str:
    return _NUMBER.sub(r"\1", kernel[1])


def _differences(
    graph: str, real: Sequence[tuple[str, str]], virtual: Sequence[tuple[str, str]]
) -> Iterable[Difference]:
    left = list(virtual)
    for name, source in real:
        like = max(left, key=lambda other: _likeness(name, source, *other), default=None)
        if like is not None and _likeness(name, source, *like) > 0.5:
            left.remove(like)
            yield Difference(graph, name, like[0], _diff(source, like[1]))
        else:
            yield Difference(graph, name, "", source)
    for name, source in left:
        yield Difference(graph, "", name, source)


def _likeness(name: str, source: str, other_name: str, other_source: str) -> float:
    """Similarity of two kernels, 0 to 1, by their names, then by common lines."""
    lines, others = Counter(source.split("\n")), Counter(other_source.split("\n"))
    shared = 2 * (lines & others).total() / (lines.total() + others.total())
    return shared + 0.5 * (_NUMBER.sub(r"\1", name) == _NUMBER.sub(r"\1", other_name))


def _diff(real: str, virtual: str) -> str:
    return "\n".join(difflib.unified_diff(real.split("\n"), virtual.split("\n"), "real", "virtual", "", "", 2, ""))


def _kernels(tree: ast.Module) -> Iterable[tuple[str, str]]:
    """Name and source of each `name = async_compile.triton('name', '''source''', …)`."""
    for statement in tree.body:
        value = statement.value if isinstance(statement, ast.Assign) else None
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "async_compile.triton":
            name, source = (argument.value for argument in value.args[:2] if isinstance(argument, ast.Constant))
            yield str(name), str(source)


def _calls(tree: ast.Module) -> Iterable[str]:
    """The wrapper's ATen calls, by name, in order."""
    wrappers = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "get_args")
    for wrapper in wrappers:
        if wrapper.name == "call" or wrapper.name.startswith("partition_"):
            for node in ast.walk(wrapper):
                if isinstance(node, ast.Call) and (found := _ATEN.match(ast.unparse(node.func))):
                    yield found[0]
