"""Trees of operator calls, with the decomposition of each call, or the reason why it has none."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch.fx import GraphModule, Node

from compiler.capture.sources import importable_path
from compiler.decompose.reasons import why_it_stays
from compiler.torch_api import fx
from compiler.torch_api.decomposition_tables import composite_of, is_composite, is_mutable
from compiler.torch_api.level_traces import Applied, Expanded, name_before, tensor_types

GETITEM = "operator.getitem"


@dataclass(frozen=True, slots=True)
class Source:
    """Source location of a decomposition.

    `file` is relative to the import path (`torch/_refs/__init__.py`); "" without Python source, as for ATen's in C++.
    `line` and `end_line` are the first and last line, `text` is the code.
    """

    function: str
    file: str = ""
    line: int = 0
    end_line: int = 0
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}-{self.end_line} {self.function}" if self.file else self.function


@dataclass(frozen=True, slots=True)
class TensorType:
    """dtype and shape of a tensor; a symbolic size is a name."""

    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call of an operator. With a `source` it was decomposed into `calls`; else it stays, for the reason `why`.

    `node` is its node in the level's graph ("" if it was decomposed). `results` are the types of its results.
    """

    op: str
    results: tuple[TensorType, ...] = ()
    node: str = ""
    source: Source | None = None
    why: str = ""
    calls: tuple[OpCall, ...] = ()

    def leaves(self) -> Iterator[OpCall]:
        """The calls in the level's graph, in order."""
        if self.node:
            yield self
        for call in self.calls:
            yield from call.leaves()

    def sources(self) -> Iterator[tuple[str, Source]]:
        """Each decomposed operator with the source of its decomposition."""
        if self.source is not None:
            yield self.op, self.source
        for call in self.calls:
            yield from call.sources()


@lru_cache(maxsize=2048)
def source_of(function: Callable[..., Any]) -> Source:
    """The source location of a decomposition or a torch function."""
    composite = composite_of(function)
    if composite is not None:
        return composite_source(composite)
    plain = inspect.unwrap(function)
    name = getattr(plain, "__qualname__", type(plain).__name__)
    try:
        lines, first = inspect.getsourcelines(plain)
        file = importable_path(inspect.getsourcefile(plain) or "")
    except (TypeError, OSError):
        return Source(f"{getattr(plain, '__module__', None) or 'torch'}.{name}, which has no Python source")
    return Source(name, file, first, first + len(lines) - 1, "".join(lines))


def composite_source(op: object) -> Source:
    """The source of a composite operator's decomposition."""
    return Source(f"ATen's CompositeImplicitAutograd kernel of {op}, in C++")


def ops_of(module: GraphModule) -> list[Node]:
    """The graph's call nodes, without getitem."""
    return [n for n in module.graph.nodes if n.op == "call_function" and fx.target_name(n) != GETITEM]


def results_of(value: Any) -> tuple[TensorType, ...]:
    """The type of each tensor in a value."""
    return tuple(map(_type, tensor_types(value)))


def _type(attrs: Mapping[str, Any]) -> TensorType:
    return TensorType(attrs["dtype"], tuple(attrs["shape"]))


_RETRACED = Source("tracing again: its input has other strides here, so that a view is a copy or a copy a view")
_FUNCTIONAL = Source("functionalization: an operator that changes nothing, and a copy into the argument")
_NOTHING = Source("nothing: it gives back what it was given")


class LevelTree:
    """Trees of calls from the graph `before` to the graph `traced` from it; each call of `before` is a root."""

    def __init__(self, level: str, before: GraphModule, traced: Expanded) -> None:
        self.level = level
        self.before = before
        self.traced = traced
        self._places = {node.name: place for place, node in enumerate(traced.module.graph.nodes)}
        self._nodes: dict[tuple[str, int | None], list[Node]] = defaultdict(list)
        self._uses: dict[tuple[str, int | None], list[int]] = defaultdict(list)
        self._known = {node.name for node in before.graph.nodes}
        for node in ops_of(traced.module):
            self._nodes[name_before(node, self._known), traced.makers.get(node.name)].append(node)
        for index, use in enumerate(traced.applied):
            self._uses[use.node, use.parent].append(index)

    def roots(self) -> tuple[OpCall, ...]:
        """One tree for each call of `before`, in order."""
        return tuple(self.root(node) for node in ops_of(self.before))

    def root(self, node: Node) -> OpCall:
        """The decomposition of one call of `before` as a tree."""
        op, calls = fx.target_name(node), self._calls_inside(node.name, None)
        if len(calls) == 1 and calls[0].op == op:
            return calls[0]
        return OpCall(op, results_of(fx.value_of(node)), source=_source_of_tracing(node, calls), calls=calls)

    def stay(self, node: Node) -> str:
        """The reason why a node of `traced` was not decomposed."""
        return self._reason(node, name_before(node, self._known), self.traced.makers.get(node.name))

    def origin(self, node: Node) -> str:
        """Name of the node of `before` that a node of `traced` comes from, "" for none."""
        return name_before(node, self._known)

    def makers(self, node: Node) -> list[Applied]:
        """The decompositions that made a node of `traced`, outermost first."""
        found: list[Applied] = []
        index = self.traced.makers.get(node.name)
        while index is not None:
            found.insert(0, self.traced.applied[index])
            index = found[0].parent
        return found

    def _calls_inside(self, name: str, parent: int | None) -> tuple[OpCall, ...]:
        """Calls made by `parent`, one use of a decomposition, or by tracing the node if it is None; in graph order."""
        made = []
        for node in self._nodes[name, parent]:
            why = self._reason(node, name, parent)
            leaf = OpCall(fx.target_name(node), results_of(fx.value_of(node)), node.name, why=why)
            made.append((self._places[node.name], leaf))
        for index in self._uses[name, parent]:
            use, inner = self.traced.applied[index], self._calls_inside(name, index)
            if not use.declined and (inner or parent is None):
                first = min((self._places[leaf.node] for call in inner for leaf in call.leaves()), default=-1)
                results = tuple(map(_type, use.results))
                made.append((first, OpCall(str(use.op), results, source=source_of(use.function), calls=inner)))
        return tuple(call for _, call in sorted(made, key=lambda item: item[0]))

    def _reason(self, node: Node, name: str, parent: int | None) -> str:
        uses = [self.traced.applied[index] for index in self._uses[name, parent]]
        declined = next((use.declined for use in uses if use.declined and use.op is node.target), "")
        return why_it_stays(node.target, self.level, declined)


def _source_of_tracing(node: Node, calls: Sequence[OpCall]) -> Source:
    """The source of a decomposition that did not come from the table."""
    if is_composite(node.target):
        return composite_source(node.target)
    if not calls:
        return _NOTHING
    return _FUNCTIONAL if is_mutable(node.target) else _RETRACED
