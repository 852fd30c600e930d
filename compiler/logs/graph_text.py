"""The nodes of an FX graph, read from the text that torch logs (`GraphModule.print_readable`).

The text becomes the one that tcompile shows for observed graphs: each body of a higher-order operator stands beneath
its call, `x = None` is left out, and AOTAutograd's comments on parameters are in the entities. Nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

from compiler.record.printed_code import ASSIGNED, readable_lines

_CLASS = re.compile(r"( *)class (\S+?)\(torch\.nn\.Module\):")
_PLACE = re.compile(r"\s*# File: (?P<file>.*?):(?P<line>\d+) in (?P<function>[^,]*), code: ?(?P<code>.*)")
_ASSIGN = re.compile(r'\s+(?P<name>\w+)(?:: "(?P<type>[^"]*)")? = (?P<value>.*)')
_DECLARED = re.compile(r'\s*(?P<name>\w+): "(?P<type>[^"]*)"(?:,|;|\)|$)')
_PARAMETER = re.compile(r'(?P<name>\*{0,2}\w+)(?:: (?:"(?P<type>[^"]*)"|[^,"]+))?(?: = [^,]*)?(?:, |$)')
_COMMENT = re.compile(r"  # (?P<words>(?:None|[A-Z]\w*\([^#]*\)))$")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_STRING = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_TENSOR = re.compile(r"^(?P<dtype>[a-z]+[\da-z_]*)\[(?P<shape>[^\]]*)\](?:\[(?P<stride>[^\]]*)\])?(?P<device>\S*)$")
_CALL = re.compile(r"([A-Za-z_][\w.]*)\(")
_METHOD = re.compile(r"(\w+)\.(\w+)\(")
_DTYPES = {
    "f": "float", "i": "int", "u": "uint", "c": "complex", "b8": "bool", "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0fnu": "float8_e8m0fnu",
}  # fmt: skip
_OPERATORS = (
    ("not ", "not_"), ("~", "invert"), (" ** ", "pow"), (" // ", "floordiv"), (" << ", "lshift"), (" >> ", "rshift"),
    (" == ", "eq"), (" != ", "ne"), (" <= ", "le"), (" >= ", "ge"), (" < ", "lt"), (" > ", "gt"), (" & ", "and_"),
    (" | ", "or_"), (" ^ ", "xor"), (" + ", "add"), (" - ", "sub"), (" @ ", "matmul"), (" * ", "mul"),
    (" / ", "truediv"), (" % ", "mod"),
)  # fmt: skip
DEEPEST = 40
"""Maximum depth of bodies in bodies."""
MOST_ROW = 200_000
"""A longer line of a graph is shown, but not read."""


@dataclass(frozen=True, slots=True)
class Place:
    """The line of the user's code that torch printed above a node."""

    file: str
    line: int
    function: str
    code: str


@dataclass(frozen=True, slots=True)
class PrintedNode:
    """A node of a printed graph; names are qualified by the path of the body that they are in ("cond_true_0.sin").

    `kind` is that of its entity. `type` is torch's annotation ("f32[4, 16][16, 1]cpu").
    """

    name: str
    kind: str
    op: str
    target: str
    type: str = ""
    inputs: tuple[str, ...] = ()
    place: Place | None = None
    description: str = ""
    body: str = ""
    bodies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PrintedGraph:
    """A graph's text, the node on each line (from 1), and the nodes in order; those of a body before its call."""

    text: str
    lines: dict[int, str]
    nodes: tuple[PrintedNode, ...]

    def calls(self) -> Iterator[PrintedNode]:
        return (node for node in self.nodes if node.kind == "call")

    def inputs(self) -> Iterator[PrintedNode]:
        return (node for node in self.nodes if node.kind == "placeholder")


@dataclass
class _Module:
    """The lines of a module's `forward`, without indentation, and the modules printed inside it."""

    name: str
    indent: int
    lines: list[str] = field(default_factory=list)
    inner: dict[str, _Module] = field(default_factory=dict)


Row = tuple[str, str]


def parse_graph(text: str) -> PrintedGraph:
    """Parse a printed graph; lines that are no statement of it stay as text."""
    root = _modules(text)
    reader = _Reader()
    rows = list(reader.rows(root, "", "forward(self"))
    shown = "\n".join(row for row, _ in rows).rstrip("\n") + "\n"
    lines = {number: name for number, (_, name) in enumerate(rows, 1) if name}
    return PrintedGraph(shown, lines, tuple(reader.nodes))


def _modules(text: str) -> _Module:
    root = _Module("", -1)
    stack = [root]
    for line in text.split("\n"):
        if len(line) < MOST_ROW and (opening := _CLASS.match(line)):
            indent = len(opening[1])
            while stack[-1].indent >= indent or len(stack) > DEEPEST:
                stack.pop()
            module = _Module(opening[2], indent)
            stack[-1].inner[module.name] = module
            stack.append(module)
        elif stack[-1].indent >= 0 and not line.startswith(" # graph id:"):
            stack[-1].lines.append(line[stack[-1].indent + 4 :])
    outer = next(iter(root.inner.values()), None)
    return outer or _Module("", 0, text.split("\n"))


def _join_lines(lines: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Join each signature and result into one line; also return AOTAutograd's comments by name."""
    found: list[str] = []
    comments: dict[str, str] = {}
    pending: list[str] = []
    declared: list[str] = []
    for raw in lines:
        line, note = raw, _COMMENT.search(raw) if len(raw) < MOST_ROW else None
        if note is not None:
            line = raw[: note.start()]
            if name := re.match(r"\s*(\w+)", line):
                comments.setdefault(name[1], note["words"])
        if pending:
            pending.append(line.strip())
            if line[:1] not in ("", " ") or re.match(r"    [\])]", line):
                found.append(_one_line(pending))
                pending = []
            continue
        if re.match(r"def forward\($|    return .*[\[(]$", line):
            pending = [line]
            continue
        if _DECLARED.fullmatch(line) and not line.lstrip().startswith("def"):
            declared.append(line.strip().rstrip(";"))
            continue
        if declared:
            found += ["    " + "; ".join(declared) + ";", ""]
            declared = []
        found.append(line)
    return [*found, *pending], comments


def _one_line(parts: Sequence[str]) -> str:
    """Join a signature or result that torch printed with one value per line."""
    first, *inner, last = parts
    body = " ".join(inner).rstrip(",").replace(",)", ")")
    tail = "," if first.rstrip().endswith("return (") and body.count(",") == 0 and "," in " ".join(inner) else ""
    return f"{first}{body}{tail}{last}"


class _Reader:
    """Reads modules and their bodies; collects nodes in order."""

    def __init__(self) -> None:
        self.nodes: list[PrintedNode] = []
        self.returned: dict[str, tuple[str, ...]] = {}

    def rows(self, module: _Module, path: str, opening: str) -> Iterator[Row]:
        lines, comments = _join_lines(module.lines)
        parameters = _parameters(lines)
        renamed = {
            match["value"]: match["name"] for line in lines[:2000]
            if (match := _ASSIGN.match(line[:MOST_ROW])) and match["value"] in parameters
        }  # fmt: skip
        holders = {}
        for line in lines:
            match = _ASSIGN.match(line) if len(line) < MOST_ROW else None
            if match and match["value"].split(";")[0].strip() in {f"self.{name}" for name in module.inner}:
                holders[match["name"]] = module.inner[match["value"].split(";")[0].strip()[5:]]
        known: dict[str, None] = {}
        inside = _Inside(self, path, renamed, comments, holders, known)
        inside.add_parameters(parameters)
        for row in readable_lines(lines, renamed, opening):
            yield from inside.read(row)


def _parameters(lines: Sequence[str]) -> dict[str, str]:
    """Types of the parameters of the `def` among the lines, by name."""
    definition = next((line for line in lines if line.startswith("def ")), "")
    inner = definition.partition("(")[2].removesuffix("):")
    return {match["name"]: match["type"] or "" for match in _PARAMETER.finditer(inner) if match["name"] != "self"}


@dataclass
class _Inside:
    """Reads the statements of one module."""

    reader: _Reader
    path: str
    renamed: Mapping[str, str]
    comments: Mapping[str, str]
    holders: Mapping[str, _Module]
    known: dict[str, None]
    place: Place | None = None
    started: set[str] = field(default_factory=set)

    def qualify(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def add_parameters(self, parameters: Mapping[str, str]) -> None:
        for target, annotation in parameters.items():
            if target not in ("primals", "tangents"):
                self._add_input(self.renamed.get(target, target), target, annotation)

    def _add_input(self, name: str, target: str, annotation: str) -> None:
        kind = "subgraph_input" if self.path else "placeholder"
        description = self.comments.get(target, "")
        self._add(PrintedNode(name, kind, "placeholder", target, annotation, description=description))

    def _add(self, node: PrintedNode) -> None:
        self.known[node.name] = None
        if not self.path and not node.bodies:
            if node.op == "output":
                self.reader.returned[self.path] = node.inputs
            self.reader.nodes.append(node)
            return
        inputs = [self.qualify(name) for name in node.inputs]
        bodies = tuple(self.qualify(name) for name in node.bodies)
        inputs += [name for body in bodies for name in self.reader.returned.get(body, ())]
        if node.op == "output":
            self.reader.returned[self.path] = tuple(inputs)
        own = self.qualify(node.name)
        self.reader.nodes.append(replace(node, name=own, inputs=tuple(inputs), body=self.path, bodies=bodies))

    def read(self, row: str) -> Iterator[Row]:
        """Rows of a statement: itself, and the bodies that it is the first to call."""
        if len(row) >= MOST_ROW:
            yield row, ""
            return
        if match := _PLACE.match(row):
            self.place = Place(match["file"], int(match["line"]), match["function"], match["code"].strip())
        stripped = row.lstrip()
        if stripped.startswith("return "):
            kind = "subgraph_output" if self.path else "output"
            self._add(PrintedNode("output", kind, "output", "output", inputs=self._names(stripped)))
            yield row, self.qualify("output")
            return
        if row.startswith("    ") and (declared := list(re.finditer(r'(\w+): "([^"]*)";', row))):
            for match in declared:
                self._add_input(match[1], match[1], match[2])
            yield row, ""
            return
        node = self._node(row)
        if node is None:
            yield row, self._declared_parameter(row)
            return
        if node.name in self.holders:
            return
        called = [name for name in node.inputs if name in self.holders]
        fresh = [name for name in called if name not in self.started]
        inner = [(name, list(self._body(name))) for name in fresh]
        self._add(replace(node, inputs=tuple(name for name in node.inputs if name not in called), bodies=tuple(called))
                  if called else node)  # fmt: skip
        yield row, self.qualify(node.name)
        indent = row[: len(row) - len(stripped)] + "    "
        for name, rows in inner:
            for number, (line, owner) in enumerate(rows):
                yield (f"{indent}{line}" if line else line), (self.qualify(name) if number == 0 else owner)

    def _body(self, name: str) -> Iterator[Row]:
        self.started.add(name)
        own = self.qualify(name)
        self.reader.nodes.append(PrintedNode(own, "subgraph", "get_attr", name, body=self.path))
        yield from self.reader.rows(self.holders[name], own, f"{name}(")

    def _declared_parameter(self, row: str) -> str:
        """The parameter that a line of the signature declares; "" for other lines."""
        name = next((name for name in ASSIGNED.findall(row) if name in self.known), "")
        return self.qualify(name) if name and row.rstrip().endswith(",") else ""

    def _node(self, row: str) -> PrintedNode | None:
        match = _ASSIGN.match(row)
        if match is None or " = fx_pytree." in row:
            return None
        name, value = match["name"], match["value"]
        if again := re.search(r";  (\w+) = \w+$", value):  # `x += y;  add = x`
            name, value = again[1], value[: again.start()]
        op, target = _operation(value, self.known)
        kind = "call" if op.startswith("call_") else op
        return PrintedNode(name, kind, op, target, match["type"] or "", self._names(value), self.place)

    def _names(self, value: str) -> tuple[str, ...]:
        """Names of nodes in an expression, in order."""
        names = dict.fromkeys(_NAME.findall(_STRING.sub("", value)))
        return tuple(name for name in names if name in self.known or name in self.holders)


def _operation(value: str, known: Mapping[str, None]) -> tuple[str, str]:
    """The FX op and target of a printed expression, named as for observed graphs (`aten.mm.default`)."""
    if re.fullmatch(r"self\.[\w.]+", value):
        return "get_attr", value[5:]
    if re.match(r"self\.[\w.]+\(", value):
        return "call_module", value[5:].partition("(")[0]
    if (method := _METHOD.match(value)) and method[1] in known:
        return "call_method", method[2]
    if call := _CALL.match(value):
        return "call_function", _function_name(call[1])
    if re.match(r"\w+\[", value) and value.endswith("]"):
        return "call_function", "operator.getitem"
    if re.fullmatch(r"\w+\.\w+", value):
        return "call_function", "builtins.getattr"
    if value.startswith("-"):
        return "call_function", "operator.neg"
    operator = next((name for sign, name in _OPERATORS if sign in f" {value}" or value.startswith(sign)), "")
    return "call_function", f"operator.{operator}" if operator else value[:60]


def _function_name(printed: str) -> str:
    if printed.startswith("torch.ops."):
        name = printed.removeprefix("torch.ops.")
        return name if not name.startswith("higher_order.") else f"torch.ops.{name}"
    if printed.startswith(("torch._C.", "torch._VF.")):
        return f"torch.{printed.rpartition('.')[2]}"
    if printed.startswith("_operator."):
        return printed[1:]
    return printed


@lru_cache(maxsize=16_384)
def type_attrs(annotation: str) -> Mapping[str, Any]:
    """dtype, shape, stride, device and bytes of torch's annotation of a tensor; {} for anything else."""
    match = _TENSOR.match(annotation)
    if match is None:
        return {}
    shape, stride = _sizes(match["shape"]), _sizes(match["stride"] or "")
    attrs: dict[str, Any] = {"dtype": dtype_of(match["dtype"]), "shape": shape, "stride": stride,
                             "device": match["device"]}  # fmt: skip
    if all(isinstance(size, int) for size in shape):
        attrs["bytes"] = min(prod(size for size in shape if isinstance(size, int)) * item_size(attrs["dtype"]), 2**50)
    return attrs


def _sizes(text: str) -> list[int | str]:
    parts = filter(None, (part.strip() for part in text.split(",")))
    return [int(part) if part.isdigit() and len(part) < 16 else part for part in parts]


def dtype_of(short: str) -> str:
    """Torch's name of a dtype for its abbreviation: `float32` for `f32`."""
    letters = short.rstrip("0123456789")
    return _DTYPES.get(short) or (_DTYPES[letters] + short[len(letters) :] if letters in _DTYPES else short)


def item_size(dtype: str) -> int:
    """Bytes of one element, by the dtype's name."""
    digits = re.search(r"(\d+)", dtype)
    return 1 if dtype == "bool" or digits is None else max(int(digits[1]) // 8, 1)
