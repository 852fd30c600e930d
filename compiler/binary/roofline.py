"""A kernel's floating-point operations by formula, and its least time on a GPU.

The roofline model (Williams, Waterman and Patterson, 2009, https://doi.org/10.1145/1498765.1498785): a kernel takes at
least the time of its bytes at the memory bandwidth, and the time of its operations at the peak rate of the units that
execute them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from compiler.binary.formulas import REDUCTIONS, Node, TensorFacts, flops_of
from compiler.record import Artifact, Entity, Kernel, Record
from compiler.targets import Target

_WIDER = {"float8": "float16", "int8": "float16", "float16": "float32", "bfloat16": "float32", "tf32": "float32"}
_LOOPS = ("pointwise", "reduction")
_RATE_NAMES = {"float8_e4m3fn": "float8", "float8_e5m2": "float8", "float8_e4m3fnuz": "float8", "uint8": "int8"}


@dataclass(frozen=True, slots=True)
class Work:
    """The computation of one launch: `flops` in `dtype`, on tensor cores if it is a `matmul`."""

    flops: int
    dtype: str
    matmul: bool


def work(kernel: Kernel, record: Record) -> Work:
    """The computation of one launch of a kernel, from the nodes of the last FX graph that its loops originate from.

    A node that a kernel uses in several places is counted once, as the compiler computes it once.
    """
    graph = _Half.of_kernel(kernel, record)
    found = [graph.work_of(node) for node in kernel.nodes if node in graph.entities]
    found = found or [_own_work(node, kernel, record) for node in kernel.nodes]
    nodes = [node for _count, computed in found for node in computed]
    matmuls = [node for node in nodes if node.is_matmul]
    dtypes = {tensor.dtype for node in matmuls or nodes for tensor in node.inputs.values()}
    dtype = _narrowest(dtypes) if matmuls else "float64" if "float64" in dtypes else "float32"
    return Work(sum(count for count, _ in found) // max(kernel.calls, 1), dtype, bool(matmuls))


def _own_work(node: str, kernel: Kernel, record: Record) -> tuple[int, tuple[Node, ...]]:
    """Number of operations of a loop of our own backend, and its FX nodes, found by origins through all passes."""
    mine = [found for found in record.artifacts if found.graph == kernel.graph]
    own = tuple(_Same(found) for found in mine if found.language == "program")
    graph = next((found for found in mine if found.stage == kernel.half), None)
    if graph is None:
        return 0, ()
    origins, fx = _own_half(own, _Same(graph))
    todo, seen = [node], {node}
    while todo:
        fresh = [name for name in origins.get(todo.pop(), ()) if name not in seen]
        seen.update(fresh)
        todo += fresh
    nodes = tuple(fx[name] for name in fx if name in seen)
    return sum(map(flops_of, nodes)), nodes


@lru_cache(maxsize=4)
def _own_half(own: tuple[_Same, ...], graph: _Same) -> tuple[dict[str, tuple[str, ...]], dict[str, Node]]:
    entities = (entity for same in own for entity in same.artifact.entities)
    return {entity.id: entity.origins for entity in entities}, _fx_nodes(graph.artifact)


def _narrowest(dtypes: Iterable[str]) -> str:
    """The narrowest dtype: that of a matmul's factors, as the addend may be in single precision."""
    sizes = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}
    known = [dtype for dtype in dtypes if dtype in sizes or dtype.startswith("float8")]
    return min(known, key=lambda dtype: sizes.get(dtype, 1), default="float32")


@dataclass(frozen=True, slots=True)
class _Half:
    """The forward, backward or inference graph that contains a kernel: its scheduler nodes and FX nodes."""

    entities: dict[str, Entity]
    fx: dict[str, Node]
    reduced: frozenset[str]  # FX nodes of reductions in the IR; small reductions of the graph are unrolled instead
    called: frozenset[str]  # matmuls in extern calls and templates; loops with these origins only change layouts

    @classmethod
    def of_kernel(cls, kernel: Kernel, record: Record) -> _Half:
        mine = (found for found in record.artifacts if (found.graph, found.half) == (kernel.graph, kernel.half))
        stages = {found.stage: _Same(found) for found in mine}
        return _half(*(stages.get(stage) for stage in ("fused_ir", "ir", "post_grad")))

    def work_of(self, fused: str) -> tuple[int, tuple[Node, ...]]:
        """Number of operations of a fused node, and the FX nodes that it computes."""
        parts = [self.entities[part] for part in self.entities[fused].origins if part in self.entities]
        continued = [part for part in parts if self._continues(part)]
        computed = dict.fromkeys(fx for part in parts if part not in continued for fx in self._nodes_of(part))
        nodes = tuple(self.fx[name] for name in computed)
        return sum(map(flops_of, nodes)) + sum(map(self._last_step, continued)), nodes

    def _continues(self, part: Entity) -> bool:
        """Whether this is the second step of a split reduction."""
        return part.kind == "reduction" and any(
            before.kind == "reduction" and before.origins == part.origins for before in self._inputs_of(part)
        )

    def _inputs_of(self, part: Entity) -> Iterator[Entity]:
        return (self.entities[name] for name in part.inputs if name in self.entities)

    def _last_step(self, part: Entity) -> int:
        cost = max((REDUCTIONS.get(self.fx[fx].operation, 0) for fx in part.origins if fx in self.fx), default=0)
        return cost * max(_tensor(before.attrs).elements for before in self._inputs_of(part))

    def _nodes_of(self, part: Entity) -> Iterator[str]:
        """Yield the FX nodes that a part computes, without the nodes of a preceding reduction."""
        origins = [fx for fx in part.origins if fx in self.fx and (part.kind not in _LOOPS or fx not in self.called)]
        if part.kind == "extern" and (matmuls := [fx for fx in origins if self.fx[fx].is_matmul]):
            yield from matmuls  # the other nodes made its arguments
            return
        if part.kind != "pointwise":
            yield from origins
            return
        unrolled = any(self.fx[fx].is_reduction and fx not in self.reduced for fx in origins)
        size = _tensor(part.attrs).elements
        for fx in origins:
            node = self.fx[fx]
            if fx not in self.reduced if node.is_reduction else unrolled or node.elements <= size:
                yield fx


class _Same:
    """An artifact that is hashed and compared by identity, as comparing by value takes too long."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact

    def __hash__(self) -> int:
        return id(self.artifact)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.artifact is self.artifact


@lru_cache(maxsize=4)  # kernels of the same graph are processed in sequence
def _half(fused: _Same | None, ir: _Same | None, post_grad: _Same | None) -> _Half:
    parts = ir.artifact.entities if ir else ()
    entities = {entity.id: entity for entity in (*(fused.artifact.entities if fused else ()), *parts)}
    reduced = frozenset(fx for part in parts if part.kind == "reduction" for fx in part.origins)
    called = frozenset(fx for part in parts if part.kind not in _LOOPS for fx in part.origins)
    fx = _fx_nodes(post_grad.artifact) if post_grad else {}
    return _Half(entities, fx, reduced, frozenset(name for name in called if name in fx and fx[name].is_matmul))


def _fx_nodes(post_grad: Artifact) -> dict[str, Node]:
    code = post_grad.text.split("\n")
    lines = {names[-1]: code[line - 1] for line, names in post_grad.lines.items() if names and line <= len(code)}
    entities = {entity.id: entity for entity in post_grad.entities}
    return {entity.id: _fx_node(entity, entities, lines.get(entity.id, "")) for entity in post_grad.entities}


def _fx_node(entity: Entity, entities: dict[str, Entity], code: str) -> Node:
    inputs = [entities[name] for name in entity.inputs if name in entities]
    # In a subgraph, labels are qualified ("subgraph_0.arg_0"), and the code has plain names.
    tensors = {each.label.rpartition(".")[2]: _tensor(each.attrs) for each in inputs if "shape" in each.attrs}
    outputs = tuple(_tensor(each) for each in entity.attrs.get("outputs", [entity.attrs]) if "shape" in each)
    target = entity.attrs.get("target", "") if entity.attrs.get("op") == "call_function" else ""
    return Node(entity.label, target, outputs, tensors, code)


def _tensor(attrs: dict[str, Any]) -> TensorFacts:
    return TensorFacts(attrs.get("dtype", ""), tuple(attrs.get("shape", ("unknown",))))


def rate(target: Target, dtype: str, *, matmul: bool) -> float:
    """The target's peak operations per second in `dtype` (a name of torch, or "tf32").

    Matmuls run on tensor cores, at the rate of the dtype. If the GPU lacks the dtype, the next wider one that it has is
    used (bfloat16 on a T4: float32; float8 on an A100: float16). All else runs on the ordinary cores, float16 too, as
    Triton computes it in float32. There, float64 is at most half as fast as float32 (tensor and matrix cores double
    that on A100, H100 and MI300X).
    """
    if not matmul:
        return min(target.peak["float64"], target.peak["float32"] / 2) if dtype == "float64" else target.peak["float32"]
    name = _RATE_NAMES.get(dtype, dtype)
    while name not in target.peak:
        name = _WIDER.get(name, "float32")
    return target.peak[name]


def least_seconds(
    target: Target,
    *,
    bytes: int,  # noqa: A002 - named as in `Binary`
    flops: int,
    dtype: str,
    matmul: bool = False,
) -> tuple[float, Literal["memory", "compute"]]:
    """The least time in seconds for `bytes` of traffic and `flops` in `dtype`, and which of the two takes longer."""
    memory = bytes / target.memory_bandwidth
    compute = flops / rate(target, dtype, matmul=matmul) if flops else 0.0
    return (compute, "compute") if compute > memory else (memory, "memory")
