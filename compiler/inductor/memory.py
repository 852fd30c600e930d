"""Memory in use over forward and backward, from the allocations in the generated code.

Memory that the caller holds (parameters, inputs, results) is never freed. Saved tensors live until their last use in
the backward. Temporary allocations inside an operator are not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from compiler.record.measure_facts import Half, MemoryEvent, Role
from compiler.torch_api.memory_lines import MemoryFacts, MemoryLine

CALLER, AUTOGRAD = "caller", "autograd"
"""Holders of memory besides names in generated code. Autograd also holds the incoming gradients of a backward until it
returns (`CompiledFunction.backward` in torch._functorch._aot_autograd.runtime_wrappers).
"""
_ASSIGNED = re.compile(r"^\s+(?P<name>\w+) = ")
_DELETED = re.compile(r"\bdel (?P<names>[\w, ]+)")


@dataclass(slots=True)
class _Storage:
    """One allocation and its holders: buffer names, the caller, autograd."""

    bytes: int
    holders: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class HalfMemory:
    """The forward's or backward's memory facts, the entity ids of its buffers by name, and its outputs.

    `outputs` are names of FX nodes by position; the first `results` of them are returned to the caller.
    """

    half: Half
    facts: MemoryFacts
    entities: Mapping[str, str]
    outputs: tuple[str, ...]
    results: int


@dataclass(frozen=True, slots=True)
class Places:
    """Line numbers in the wrapper, from 1, at which each buffer name is assigned and deleted."""

    assigned: Mapping[str, int]
    deleted: Mapping[str, int]

    def number_of(self, line: MemoryLine) -> int:
        return (self.deleted if line.what == "free" else self.assigned).get(line.buffer, 0)


def wrapper_places(text: str) -> Places:
    """The lines of the generated code at which buffers are assigned and deleted."""
    assigned: dict[str, int] = {}
    deleted: dict[str, int] = {}
    for number, row in enumerate(text.partition("\ndef get_args")[0].split("\n"), start=1):
        if (match := _ASSIGNED.match(row)) is not None:
            assigned.setdefault(match["name"], number)
        for found in _DELETED.finditer(row):
            deleted.update(dict.fromkeys(found["names"].replace(" ", "").split(","), number))
    return Places(assigned, deleted)


class GraphMemory:
    """Tracks the memory in use by one graph, in the forward and then the backward."""

    def __init__(self, graph: str) -> None:
        self.graph = graph
        self.live = 0
        self.saved: dict[str, _Storage] = {}
        self.named: dict[str, _Storage] = {}
        self.lent: dict[str, _Storage] = {}
        self.places = Places({}, {})

    def events(self, half: HalfMemory, places: Places) -> Iterator[MemoryEvent]:
        """Yield the events of a half, in order; call it for the forward first, then for the backward.

        `places` are the wrapper's lines that assign and delete each buffer.
        """
        self.named, self.places = {}, places
        for name, size in half.facts.inputs:
            yield self._input(half, name, size)
        for line in half.facts.lines:
            yield from self._line(half, line)
        yield from self._outputs(half)
        yield from self._free_rest(half)

    def _input(self, half: HalfMemory, name: str, size: int) -> MemoryEvent:
        role: Role = "input"
        known = self.saved.get(name)
        if half.half == "backward":
            role = "saved" if known is not None else "tangent"
        if known is None:
            known = _Storage(size, {AUTOGRAD if role == "tangent" else CALLER})
            self.live += size
        elif half.half == "backward":
            known.holders.discard(AUTOGRAD)
        known.holders.add(name)
        self.named[name] = known
        if role == "tangent":
            self.lent[name] = known
        return self._event(half, MemoryLine("allocate", name, size), what="input", role=role)

    def _line(self, half: HalfMemory, line: MemoryLine) -> Iterator[MemoryEvent]:
        if line.what == "allocate":
            self.named[line.buffer] = _Storage(line.bytes, {line.buffer})
            self.live += line.bytes
            yield self._event(half, line)
        elif line.what == "free":
            yield from self._free(half, line)
        elif (storage := self.named.get(line.of)) is not None:
            storage.holders.add(line.buffer)
            self.named[line.buffer] = storage
            if line.what == "reuse":
                storage.holders.discard(line.of)
                del self.named[line.of]
            yield self._event(half, line)

    def _free(self, half: HalfMemory, line: MemoryLine) -> Iterator[MemoryEvent]:
        """Drop a name; the memory is freed when its last holder is gone."""
        storage = self.named.pop(line.buffer, None)
        if storage is None:
            return
        storage.holders.discard(line.buffer)
        if not storage.holders:
            self.live -= storage.bytes
            yield self._event(half, MemoryLine("free", line.buffer, storage.bytes))

    def _outputs(self, half: HalfMemory) -> Iterator[MemoryEvent]:
        self.saved = {}
        for place, (buffer, name) in enumerate(zip(half.facts.outputs, half.outputs, strict=False)):
            storage = self.named.get(buffer)
            if storage is None:
                continue
            role: Role = "gradient" if half.half == "backward" else "result" if place < half.results else "saved"
            storage.holders.add(AUTOGRAD if role == "saved" else CALLER)
            if half.half == "forward":
                self.saved[name] = storage
            yield self._event(half, MemoryLine("allocate", buffer, storage.bytes, name), what="output", role=role)

    def _free_rest(self, half: HalfMemory) -> Iterator[MemoryEvent]:
        """Free the remaining buffers at the end of the code, and incoming gradients after a backward."""
        for name in list(self.named):
            yield from self._free(half, MemoryLine("free", name))
        lent, self.lent = self.lent, {}
        for name, storage in lent.items():
            storage.holders.discard(AUTOGRAD)
            self.named[name] = storage
            yield from self._free(half, MemoryLine("free", name))

    def _event(self, half: HalfMemory, line: MemoryLine, *, what: str = "", role: Role = "") -> MemoryEvent:
        kind = what or line.what
        return MemoryEvent(
            self.graph, half.half, kind, line.buffer, line.bytes, self.live, role=role, of=line.of,  # type: ignore[arg-type]
            entity=half.entities.get(line.buffer, ""), at=self.places.number_of(line),
        )  # fmt: skip
