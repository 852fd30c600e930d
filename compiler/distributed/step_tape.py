"""What a rank did in one forward: which graphs ran, on which tensors, and when weights were gathered and freed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule

from compiler.torch_api.pytrees import tree_leaves
from compiler.torch_api.sharded_weights import Argument, Buckets, Moment, argument_of

if TYPE_CHECKING:  # it imports torch's FSDP, which takes long, and is not in all builds
    from compiler.torch_api.fsdp_units import FsdpUnit

MOST_ENTRIES = 100_000


@dataclass(frozen=True, slots=True)
class UnitEntry:
    """FSDP gathered, copied out or freed the weights of a unit, in a hook."""

    moment: Moment
    unit: FsdpUnit


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A graph ran. `arguments` are its tensors by name of their placeholder; `results` are those that it returned.

    `module` is the id of the module wrapped by FSDP in whose call it ran, 0 if there is none.
    """

    graph: str
    arguments: Mapping[str, Argument]
    results: tuple[Argument, ...]
    module: int = 0

    @property
    def weights(self) -> set[int]:
        """The storages of the weights that it takes."""
        return {each.memory for each in self.arguments.values() if each.is_weight}

    def does_the_same_as(self, other: RunEntry) -> bool:
        """Whether it is the same graph, on the same weights."""
        return self.graph == other.graph and bool(self.weights) and self.weights == other.weights


@dataclass(frozen=True, slots=True)
class StepTape:
    """The entries of a rank's first forward, in order, and the buckets of its DistributedDataParallel model."""

    entries: Sequence[UnitEntry | RunEntry] = ()
    buckets: Buckets | None = None


def first_forward(entries: Iterable[UnitEntry | RunEntry]) -> list[UnitEntry | RunEntry]:
    """The entries before a second forward begins: the first graph runs again, on the same weights."""
    found: list[UnitEntry | RunEntry] = []
    first = None
    for entry in islice(entries, MOST_ENTRIES):
        if isinstance(entry, RunEntry) and first is not None and entry.does_the_same_as(first):
            while isinstance(last := found[-1], UnitEntry) and last.moment != "free":
                found.pop()  # gathered for the second forward
            break
        if isinstance(entry, RunEntry):
            first = first or entry
        found.append(entry)
    return found


def arguments_of(captured: GraphModule, args: Sequence[Any]) -> dict[str, Argument]:
    """The facts of the tensors that a captured graph is called with, by name of their placeholder."""
    names = [node.name for node in captured.graph.find_nodes(op="placeholder")]
    found = {name: argument_of(value) for name, value in zip(names, args, strict=False)}
    return {name: each for name, each in found.items() if each is not None}


def results_of(returned: Any) -> tuple[Argument, ...]:
    """The facts of the tensors that a graph returned."""
    return tuple(filter(None, map(argument_of, tree_leaves(returned))))
