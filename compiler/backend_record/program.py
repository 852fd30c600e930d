"""Write a program of our own backend as an artifact, with links to the program before the pass.

Kernels and calls of PyTorch are entities. If a kernel has several loops, each loop is an entity inside the kernel's.
`inputs` of an entity are the data flow between kernels and calls. `origins` link loops to loops of the program before,
or to nodes of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from compiler.backend.ir import Buffer, ComboKernel, Extern, Kernel, Loop, MatmulKernel, Program, Step, strided_views
from compiler.backend.ir.expr import loads
from compiler.backend.ir.index import Index, product
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import bytes_moved
from compiler.record import Artifact, Entity

Attrs = dict[str, Any]
Ids = tuple[str, ...]


@dataclass(frozen=True)
class Made:
    """A program and its artifact, with ids of entities.

    loops  for each target, the id of the loop or call that computes it
    steps  for each target, the id of the kernel or call that computes it
    names  ids of loops, kernels and calls, by the names that decisions use
    """

    program: Program
    artifact: Artifact
    loops: Mapping[str, str]
    steps: Mapping[str, str]
    names: Mapping[str, str]


_EMPTY = ("aten.empty", "aten.new_empty")
"""Calls that leave the memory of their results as it is."""


class ProgramWriter:
    """Writes a program's artifact. `before` is the program before its pass, or the graph that it was lowered from."""

    def __init__(self, program: Program, ctx: Context, artifact_id: str, before: Made | Artifact) -> None:
        self.program, self.ctx, self.id = program, ctx, artifact_id
        filled = {name for call in program.calls for name in call.writes}
        self.empty = {name for call in program.calls if call.name.startswith(_EMPTY) for name in call.targets} - filled
        self.before = before
        self.graph = _by_label(before) if isinstance(before, Artifact) else {}
        self.now = _loops(program)
        self.earlier = _loops(before.program) if isinstance(before, Made) else {}
        self.loops: dict[str, str] = {}
        self.steps: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.taken: set[str] = set()
        self.ids: dict[int, str] = {}
        self.entities: list[Entity] = []

    def write(self, stage: str, title: str, graph: str) -> Made:
        self.inputs()
        for step in self.program.steps:
            self.kernel(step) if isinstance(step, Kernel) else self.extern(step)
        self.outputs()
        rows = list(self.program.rows())
        lines = {number: ids for number, (_, what) in enumerate(rows, 1) if (ids := self.ids_of(number, what, rows))}
        text = "\n".join(row for row, _ in rows) + "\n"
        count = {"count": len(self.program.steps)}
        artifact = Artifact(self.id, stage, title, "program", text, graph, lines, tuple(self.entities), count)
        return Made(self.program, artifact, self.loops, self.steps, self.names)

    def ids_of(self, number: int, what: Step | Loop | None, rows: list[Any]) -> Ids:
        """Ids of the entities that a line of the text shows, the outer entity first."""
        if number == 1:
            return tuple(entity.id for entity in self.entities if entity.kind == "placeholder")
        if number == len(rows):
            return (f"{self.id}.output",)
        for target in (what.target,) if isinstance(what, Loop) else what.targets if isinstance(what, Extern) else ():
            return tuple(dict.fromkeys((self.steps[target], self.loops[target])))
        return (self.ids[id(what)],) if what is not None else ()

    def unique_id(self, name: str, inside: str = "") -> str:
        """Reserve an id that is unique in the artifact."""
        identity = f"{inside or self.id}.{name}"
        while identity in self.taken:
            identity += "_"
        self.taken.add(identity)
        return identity

    def inputs(self) -> None:
        for name in self.program.inputs:
            identity = self.unique_id(name)
            buffer = self.program.by_name.get(name)
            attrs = self.tensor(buffer) if buffer else {}
            self.entities.append(Entity(identity, "placeholder", name, attrs, (), self.same(name)))
            self.loops[name] = self.steps[name] = self.names[name] = identity

    def outputs(self) -> None:
        made = (self.steps[view.buffer] for view in strided_views(self.program.outputs) if view.buffer in self.steps)
        origins = self.same("output")
        self.entities.append(Entity(f"{self.id}.output", "output", "output", {}, tuple(dict.fromkeys(made)), origins))

    def kernel(self, kernel: Kernel) -> None:
        identity = self.ids[id(kernel)] = self.unique_id(kernel.name)
        found = [self.matmul(kernel, identity)] if isinstance(kernel, MatmulKernel) else []
        found += [self.loop(loop, identity, kernel) for loop in kernel.loops]
        sources = (self.steps[name] for name in kernel.reads if name in self.steps)
        inputs = tuple(dict.fromkeys(source for source in sources if source != identity))
        parts = {"parts": list(kernel.targets)} if len(found) > 1 else {}
        origins = dict.fromkeys(self.extern_origins(kernel.call) if isinstance(kernel, MatmulKernel) else ())
        origins |= dict.fromkeys(origin for loop in kernel.loops for origin in self.whole(loop))
        attrs = self.moves(kernel) | self.tensor(self.program.by_name[kernel.targets[-1]], kernel) | parts
        self.entities.append(Entity(identity, "kernel", kernel.name, attrs, inputs, tuple(origins)))
        self.entities += [entity for entity in found if len(found) > 1]
        for target in kernel.targets:
            self.steps[target] = identity
            self.names.setdefault(target, self.loops[target])
        self.names.setdefault(kernel.name, identity)  # unless a buffer of another step has the same name

    def loop(self, loop: Loop, kernel: str, around: Kernel) -> Entity:
        reads = [load.buffer for load in loads(loop.value)]
        attrs: Attrs = {"what": loop.reduction or "pointwise", "inside": kernel, "code": str(loop)}
        identity = self.unique_id(loop.target, kernel) if len(around.targets) > 1 else kernel
        return self.inner(identity, loop.target, attrs, reads, self.origins(loop), around)

    def inner(
        self, identity: str, target: str, attrs: Attrs, reads: Iterable[str], origins: Ids, around: Kernel
    ) -> Entity:
        """The entity of a loop or matmul inside a kernel."""
        inputs = dict.fromkeys(self.loops[name] for name in reads if name in self.loops)
        memory = {"memory": "none: only this kernel reads it"} if target in around.local else {}
        self.loops[target] = identity
        facts = attrs | memory | self.tensor(self.program.by_name[target])
        return Entity(identity, "loop", target, facts, tuple(inputs), origins)

    def matmul(self, kernel: MatmulKernel, inside: str) -> Entity:
        """The entity of a kernel's matmul, which comes before its loops."""
        identity, call = self.unique_id(kernel.made, inside), kernel.call
        attrs: Attrs = {"what": "matmul", "inside": inside, "code": str(call), "target": call.name}
        known = self.before.loops.get(kernel.made, "") if isinstance(self.before, Made) else ""
        origins = (known,) if known else self.extern_origins(call)
        return self.inner(identity, kernel.made, attrs, call.reads, origins, kernel)

    def extern(self, extern: Extern) -> None:
        label = extern.origins[0] if extern.origins else (extern.targets or ("call",))[0]
        identity = self.ids[id(extern)] = self.unique_id(label)
        inputs = dict.fromkeys(self.steps[name] for name in extern.reads if name in self.steps)
        moves = dict(self.extern_moves(extern))
        first = self.tensor(self.program.by_name[extern.targets[0]]) if extern.targets else {}
        attrs = first | {"target": extern.name, "bytes": sum(moves.values()), "moves": moves,
                         "reads": list(extern.reads), "writes": list(extern.targets + extern.writes)}  # fmt: skip
        self.entities.append(Entity(identity, "extern", label, attrs, tuple(inputs), self.extern_origins(extern)))
        self.names[label] = identity
        for target in extern.targets:
            self.loops[target] = self.steps[target] = identity
            self.names.setdefault(target, identity)
        for name in extern.writes:
            self.loops[name] = self.steps[name] = identity

    # Origins in the program before

    def same(self, name: str) -> Ids:
        """Id of the entity of the same name in the program before, or in the graph; () for none."""
        if not isinstance(self.before, Made):
            return (self.graph[name],) if name in self.graph else ()
        if name == "output":
            return (f"{self.before.artifact.id}.output",)
        return (self.before.names[name],) if name in self.before.names else ()

    def origins(self, loop: Loop) -> Ids:
        """Ids of a loop's origins in the program before: the loop of the same target, and loops inlined into it.

        For a new loop: loops of the same nodes, or the call that computed its target. Directly after lowering: nodes.
        """
        if not isinstance(self.before, Made):
            return tuple(self.graph[name] for name in loop.origins if name in self.graph)
        found = dict.fromkeys(self.before.loops[name] for name in self.ancestors(loop))
        return tuple(found) or self.by_nodes(loop.origins) or self.same(loop.target)

    def whole(self, loop: Loop) -> Ids:
        """Ids of the kernels or calls of the program before that computed a loop's ancestors.

        For a new loop: ids of loops of the same nodes. Directly after lowering: ids of nodes.
        """
        if not isinstance(self.before, Made):
            return self.origins(loop)
        return tuple(self.before.steps[name] for name in self.ancestors(loop)) or self.by_nodes(loop.origins)

    def ancestors(self, loop: Loop) -> Iterator[str]:
        """Targets of the loops of the program before that became this loop.

        These are the loop of the same target, and removed loops that it read, directly or through removed loops.
        """
        todo, seen = [loop.target], {loop.target}
        while todo:
            name = todo.pop()
            if name not in self.earlier:
                continue
            yield name
            read = (load.buffer for load in loads(self.earlier[name].value))
            fresh = [other for other in dict.fromkeys(read) if other not in self.now and other not in seen]
            seen.update(fresh)
            todo += fresh

    def by_nodes(self, nodes: Iterable[str]) -> Ids:
        """Ids of the loops of the program before that implement any of these nodes."""
        assert isinstance(self.before, Made)
        wanted = set(nodes)
        return tuple(self.before.loops[name] for name, loop in self.earlier.items() if wanted & set(loop.origins))

    def extern_origins(self, extern: Extern) -> Ids:
        if not isinstance(self.before, Made):
            nodes = [self.before.entity(name) for name in extern.origins if name in self.graph]
            return tuple(identity for node in nodes for identity in (node.id, *self.before.calls_inside(node)))
        made = [self.before.steps[name] for name in extern.targets if name in self.before.steps]
        named = [self.before.names[name] for name in extern.origins if name in self.before.names]
        return tuple(dict.fromkeys(made or named))

    # Facts

    def tensor(self, buffer: Buffer, kernel: Kernel | None = None) -> Attrs:
        attrs: Attrs = {
            "dtype": str(buffer.dtype).removeprefix("torch."),
            "shape": [*map(_size, buffer.shape)],
            "stride": [*map(_size, buffer.strides)],
            "device": str(buffer.device),
        }
        return attrs if kernel else attrs | {"bytes": self.ctx.number(buffer.size) * buffer.dtype.itemsize}

    def moves(self, kernel: Kernel) -> Attrs:
        moves = {
            name: bytes_moved(name, kernel, self.program, self.ctx) for name in sorted({*kernel.reads, *kernel.writes})
        }
        over = (
            f"{len(kernel.parts)} kernels' points" if isinstance(kernel, ComboKernel) else kernel.over.replace(";", ",")
        )
        what = next((loop.reduction for loop in kernel.loops if loop.reduction), "pointwise")
        named = f"{len(kernel.targets)} loops" if len(kernel.targets) > 1 else what
        return {"what": named, "category": category_of(kernel), "over": over, "bytes": sum(moves.values()),
                "moves": moves, "reads": list(kernel.reads), "writes": list(kernel.writes)}  # fmt: skip

    def extern_moves(self, extern: Extern) -> Iterator[tuple[str, int]]:
        """Bytes that an extern call moves, by buffer: of each view among its arguments with values, and each result."""
        if extern.name.startswith(_EMPTY):
            return
        for view in strided_views((extern.args, dict(extern.kwargs))):
            if view.buffer in self.empty:
                continue
            size = self.ctx.number(product(view.shape))
            yield view.buffer, size * self.program.by_name[view.buffer].dtype.itemsize
        for name in extern.targets:
            buffer = self.program.by_name[name]
            yield name, self.ctx.number(buffer.size) * buffer.dtype.itemsize


def category_of(kernel: Kernel) -> str:
    """Category of a kernel in the record: "template" for one with a matmul, else "reduction" or "pointwise"."""
    if isinstance(kernel, MatmulKernel):
        return "template"
    return "reduction" if any(loop.reduction for loop in kernel.loops) else "pointwise"


def _by_label(graph: Artifact) -> dict[str, str]:
    return {entity.label: entity.id for entity in graph.entities}


def _loops(program: Program) -> dict[str, Loop]:
    return {loop.target: loop for kernel in program.kernels for loop in kernel.loops}


def _size(size: Index) -> int | str:
    return size.constant if size.constant is not None else str(size)
