"""Facts that rules read from a record: device, measured times, or estimates by formula.

A kernel's floor is the least time for its bytes and operations at the GPU's peak rates (`compiler.binary.roofline`):
no kernel is faster, and many are slower.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from compiler.advise.facts import Basis, Evidence
from compiler.record import Artifact, Decision, Entity, Guard, Kernel, Record
from compiler.record.measure_facts import Candidate
from compiler.targets import Target, is_virtual, known_target

CASTS: frozenset[str] = frozenset({"convert_element_type", "_to_copy"})
_VIEWS = ("view", "reshape", "_unsafe_view", "permute", "transpose", "t", "expand", "squeeze", "unsqueeze")
_PARTS = ("as_strided", "slice", "select", "alias", "split", "split_with_sizes", "unbind", "getitem")
JOINS: frozenset[str] = frozenset({"cat", "stack"})
_COPIES = ("clone", "copy", "copy_", "contiguous", *JOINS, *CASTS)
MOVES: frozenset[str] = frozenset((*_VIEWS, *_PARTS, *_COPIES))
"""Operators that compute nothing: views, or copies that only move data."""
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_TRACED = ("forward", "backward", "inference")
_LOWERED = ("post_grad", *_TRACED)
"""Stages that Inductor or our own backend lowers to loops."""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Facts about one generated kernel or library call in a call of the function.

    `floor` is the time at peak rates, 0 if unknown; `bound` is the limiting rate. `seconds` are measured, None if not.
    `operators` are the ATen operators that it computes (`mm`), `nodes` the ids of their nodes.
    """

    kernel: Kernel
    floor: float
    bound: str
    bytes: int
    flops: int
    dtype: str
    is_matmul: bool
    seconds: float | None
    operators: tuple[str, ...]
    nodes: tuple[str, ...]

    @property
    def time(self) -> float:
        """Measured seconds, or else the floor."""
        return self.floor if self.seconds is None else self.seconds


class Reading:
    """Facts read from a record for advice; all are computed lazily."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @cached_property
    def gpu(self) -> Target | None:
        """The target GPU; None for a CPU, and for a GPU that is missing from the table of targets."""
        name = self.record.target if is_virtual(self.record.target) else self.record.environment.gpu
        if self.record.target in ("", "cpu") or not name:
            return None
        return known_target(name)

    @property
    def on_gpu(self) -> bool:
        return self.record.target not in ("", "cpu")

    # Candidates

    def candidate(self, name: str) -> Candidate | None:
        """The candidate with this name, if it was timed."""
        timed = (found for found in self.record.candidates if found.seconds is not None)
        return next((found for found in timed if found.name == name), None)

    @cached_property
    def own(self) -> Candidate | None:
        """The candidate compiled as in the cell, if it was timed."""
        options = self.record.options
        if options.options and options.backend == "inductor":
            return self.candidate("inductor with the cell's options")
        return self.in_mode(options.mode)

    def in_mode(self, mode: str) -> Candidate | None:
        """The candidate of the cell's backend in this mode, if it was timed."""
        backend = self.record.options.backend
        return self.candidate(backend if mode == "default" else f"{backend} {mode}")

    @property
    def eager(self) -> Candidate | None:
        return self.candidate("eager")

    @property
    def seconds(self) -> float | None:
        """Measured seconds of one compiled call."""
        return self.own.seconds if self.own is not None else None

    @cached_property
    def _later(self) -> frozenset[str]:
        """Frames that later calls compiled; a call is described as the first one was."""
        return frozenset(frame.id for frame in self.record.frames if frame.call_number > 1)

    # Kernels

    @cached_property
    def kernels(self) -> tuple[KernelFacts, ...]:
        """The kernels of one call, forward and backward."""
        return tuple(map(self._facts, self._kernels_of_a_call))

    @property
    def _kernels_of_a_call(self) -> list[Kernel]:
        return [kernel for kernel in self.record.kernels if kernel.graph not in self._later]

    @cached_property
    def _kernel_seconds(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for each in self.record.kernel_times:
            if each.side == "compiled" and each.kernel:
                found[each.kernel] = found.get(each.kernel, 0.0) + each.seconds
        return found

    def _facts(self, kernel: Kernel) -> KernelFacts:
        from compiler.binary import roofline  # imports torch, which is not needed to read a record

        nodes = self.fx_nodes(kernel.nodes)
        work = roofline.work(kernel, self.record)
        calls = max(kernel.calls, 1)
        moved, flops = kernel.bytes * calls, work.flops * calls
        floor, bound = 0.0, ""
        if self.gpu is not None:
            is_on = self.record.environment.matmul_precision in ("high", "medium")
            is_tf32 = is_on or any(operator_of(node).startswith("convolution") for node in nodes)
            dtype = "tf32" if work.dtype == "float32" and work.matmul and is_tf32 else work.dtype  # cuDNN's by default
            floor, bound = roofline.least_seconds(self.gpu, bytes=moved, flops=flops, dtype=dtype, matmul=work.matmul)
        return KernelFacts(
            kernel, floor, bound, moved, flops, work.dtype, work.matmul, self._kernel_seconds.get(kernel.id),
            tuple(dict.fromkeys(operator_of(node) for node in nodes)), tuple(node.id for node in nodes),
        )  # fmt: skip

    @property
    def kernel_basis(self) -> Basis:
        """The basis of the kernels' times."""
        return "measured" if self._kernel_seconds else "estimate"

    @cached_property
    def kernel_seconds(self) -> float:
        """Seconds of all kernels in one call: measured, or else their floors."""
        return sum(found.time for found in self.kernels)

    @property
    def floor(self) -> float:
        """Least seconds of all kernels at the GPU's peak rates."""
        return sum(found.floor for found in self.kernels)

    @cached_property
    def launches(self) -> int:
        """Number of kernel launches and extern calls in one call."""
        if self.own is not None and self.own.launches:
            return self.own.launches
        return sum(max(kernel.calls, 1) for kernel in self._kernels_of_a_call)

    # Entities and decisions

    @cached_property
    def entities(self) -> Mapping[str, Entity]:
        return {entity.id: entity for entity in self.record.entities()}

    @cached_property
    def homes(self) -> Mapping[str, Artifact]:
        """The artifact of each entity, by entity id."""
        return {entity.id: artifact for artifact in self.record.artifacts for entity in artifact.entities}

    @cached_property
    def _users(self) -> Mapping[str, Sequence[Entity]]:
        found: dict[str, list[Entity]] = {}
        for entity in self.record.entities():
            for name in entity.inputs:
                found.setdefault(name, []).append(entity)
        return found

    def users_of(self, name: str) -> Sequence[Entity]:
        """The entities of the same artifact that read this one's value."""
        return self._users.get(name, ())

    def fx_nodes(self, ids: Iterable[str]) -> tuple[Entity, ...]:
        """FX nodes that kernels compute: from the graphs after Inductor's passes, or else AOTAutograd's."""
        return tuple(entity for entity in self._origins(ids, self._is_lowered) if self._is_lowered(entity))

    def lines(self, ids: Iterable[str], most: int = 3) -> tuple[str, ...]:
        """Ids of the user's lines from which these entities originate, innermost first."""
        return tuple(entity.id for entity in self._origins(ids) if entity.kind == "line")[:most]

    def _is_lowered(self, entity: Entity) -> bool:
        return self.homes[entity.id].stage in _LOWERED

    def _origins(self, ids: Iterable[str], is_last: Callable[[Entity], bool] = lambda _: False) -> Iterator[Entity]:
        """Yield these entities and their origins, breadth first; the origins of `is_last` entities are left out."""
        todo, seen = deque(ids), set[str]()
        while todo:
            entity = self.entities.get(todo.popleft())
            if entity is not None and entity.id not in seen:
                seen.add(entity.id)
                yield entity
                todo.extend(() if is_last(entity) else entity.origins)

    def evidence(
        self, text: str, kernels: Sequence[KernelFacts], basis: Basis = "recorded", most: int = 5
    ) -> tuple[Evidence]:
        """Evidence about kernels, with the lines from which they originate."""
        ids = tuple(found.kernel.id for found in kernels[:most])
        return (Evidence(text, basis, (*ids, *self.lines(ids))),)

    def source_of(self, name: str) -> str:
        """The Python source (`L['x']`) of an input of AOTAutograd's graph; "" if unknown."""
        if name not in self.entities:
            return ""
        index = re.fullmatch(r"args\[(\d+)\]", str(self.entities[name].attrs.get("description", "")))
        graph = self.homes[name].graph
        captured = next((artifact for artifact in self.record.of_stage("captured") if artifact.graph == graph), None)
        if index is None or captured is None:
            return ""
        inputs = [entity for entity in captured.entities if entity.kind == "placeholder"]
        return str(inputs[int(index[1])].attrs.get("source", "")) if int(index[1]) < len(inputs) else ""

    @cached_property
    def guards(self) -> tuple[Guard, ...]:
        """The guards that one call checks."""
        return tuple(guard for guard in self.record.guards if guard.frame not in self._later)

    @cached_property
    def eager_operators(self) -> int:
        """Number of operators that compute something (no views, no copies) in one call in eager mode.

        AOTAutograd's nodes with a common origin in TorchDynamo's graph are one operator, which was decomposed, or in
        the backward its gradient; but products of matrices are operators of their own, such as the two of a gradient.
        """
        graphs = (artifact for stage in _TRACED for artifact in self.record.of_stage(stage))
        return sum(len(self._operators_in(graph)) for graph in graphs if graph.graph not in self._later)

    def _operators_in(self, graph: Artifact) -> set[str]:
        """Ids of the operators that eager mode runs for a graph's nodes: of products, and of TorchDynamo's nodes."""
        found = set()
        for node in graph.entities:
            name = operator_of(node)
            if node.kind == "call" and name not in MOVES:
                before = () if name in _PRODUCTS else self._origins(node.origins)
                found.add(next((each.id for each in before if self.homes[each.id].stage == "captured"), node.id))
        return found

    @property
    def guard_ids(self) -> tuple[str, ...]:
        """Entity ids of up to three guards: guards on the user's own values come first, slower ones before faster."""
        found = sorted(self.record.guards, key=lambda guard: (guard.internal, -(guard.seconds or 0.0)))
        return tuple(f"guards.{guard.id}" for guard in found[:3])

    def decisions(self, pass_name: str, *verdicts: str) -> Iterator[Decision]:
        for found in self.record.decisions:
            if found.pass_name == pass_name and (not verdicts or found.verdict in verdicts):
                yield found

    @property
    def guard_seconds(self) -> float:
        """Seconds of guard checks in a call with warm CPU caches; only guards that can be timed alone count."""
        return sum(guard.seconds or 0.0 for guard in self.guards)

    @property
    def trains(self) -> bool:
        return bool(self.record.of_stage("backward"))

    # Compile time

    @cached_property
    def compile_seconds(self) -> float:
        """Seconds that torch spent on all compilations of the record, by its own events."""
        return sum(phase.seconds for phase in self.record.phases if not phase.parent)

    def compile_seconds_of(self, frame: str) -> float:
        """Seconds that torch spent on one compilation (`0/1`)."""
        return sum(phase.seconds for phase in self.record.phases if not phase.parent and phase.graph == frame)


def operator_of(entity: Entity) -> str:
    """Name of an operator: `mul` for `aten.mul.Tensor`."""
    parts = str(entity.attrs.get("target", entity.label)).split(".")
    return parts[1] if len(parts) > 1 else parts[0]
