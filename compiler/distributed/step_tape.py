"""What a rank did in one forward: which graphs ran, on which tensors, and when weights were gathered and freed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule

from compiler.torch_api.collectives import is_initialized
from compiler.torch_api.pytrees import tree_leaves
from compiler.torch_api.sharded_weights import (
    Argument,
    Buckets,
    Moment,
    Unit,
    active_buckets,
    argument_of,
    observe_units,
)

MOST_ENTRIES = 100_000


@dataclass(frozen=True, slots=True)
class UnitEntry:
    """FSDP gathered, copied out or freed the weights of a unit, in a hook."""

    moment: Moment
    unit: Unit


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A graph ran. `arguments` are its tensors by name of their placeholder; `results` are those that it returned."""

    graph: str
    arguments: dict[str, Argument]
    results: tuple[Argument, ...]

    @property
    def weights(self) -> set[int]:
        """The storages of the weights that it takes."""
        return {each.memory for each in self.arguments.values() if each.is_weight}

    def does_the_same_as(self, other: RunEntry) -> bool:
        """Whether it is the same graph, on the same weights."""
        return self.graph == other.graph and bool(self.weights) and self.weights == other.weights


@dataclass
class StepTape:
    """The entries of a rank's first call of the explored function, in order; empty without a process group."""

    entries: list[UnitEntry | RunEntry] = field(default_factory=list)
    buckets: Buckets | None = None
    is_closed: bool = False
    """After the first call, nothing is noted."""
    _stack: ExitStack | None = None
    _is_watching: bool = False

    def prepare(self, stack: ExitStack) -> None:
        """Note units until the end of `stack`, from the moment on at which there is a process group."""
        self._stack = stack
        self.begin()

    def begin(self) -> None:
        """Start to note units, if there is a process group by now."""
        if self._stack is not None and not self._is_watching and is_initialized():
            self._is_watching = True
            self._stack.enter_context(observe_units(self.note_unit))

    def note_unit(self, moment: Moment, unit: Unit) -> None:
        self._add(UnitEntry(moment, unit))

    def note_runs(self, graph: str, captured: GraphModule, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the callable of a captured graph to note each of its runs; unchanged without a process group."""
        if not is_initialized():
            return call
        names = [node.name for node in captured.graph.find_nodes(op="placeholder")]

        def call_and_note(*args: Any, **kwargs: Any) -> Any:
            if self.is_closed:
                return call(*args, **kwargs)
            found = {name: argument_of(value) for name, value in zip(names, args, strict=False)}
            results = call(*args, **kwargs)
            returned = tuple(filter(None, map(argument_of, tree_leaves(results))))
            self.buckets = self.buckets or active_buckets()
            self._add(RunEntry(graph, {name: each for name, each in found.items() if each is not None}, returned))
            return results

        return call_and_note

    def _add(self, entry: UnitEntry | RunEntry) -> None:
        """Add an entry, unless a second forward begins with it: the first graph runs again, on the same weights."""
        first = next((each for each in self.entries if isinstance(each, RunEntry)), None)
        is_again = isinstance(entry, RunEntry) and first is not None and entry.does_the_same_as(first)
        self.is_closed = self.is_closed or is_again or len(self.entries) >= MOST_ENTRIES
        if not self.is_closed:
            self.entries.append(entry)
