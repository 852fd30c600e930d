"""The states of one graph, from autograd's to the kernels. Their nodes are those of the record's graphs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from compiler.autograd.saved import memory_kept
from compiler.record import Artifact, Entity, Record
from compiler.record.plain_text import pluralize, size_text
from explorer.findings.morph.origins import Linker
from explorer.findings.morph.state import DATA, Counts, Edge, Kind, Lane, Node, State
from explorer.reading.provenance import input_sources, saved_tensors
from explorer.reading.shapes import tensor_type
from explorer.render.drawing import input_name, moves_no_data, short_op

_HIDDEN = frozenset({"output", "subgraph", "subgraph_input", "subgraph_output"})
_DATA_KINDS: Mapping[str, Kind] = {"accumulate": "leaf", "outer": "leaf", "stop": "stop"}
_TENSORS = frozenset({"shape", "outputs", "moves"})
"""Attributes of entities that compute tensors."""
_MATMULS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "dot"})


SAVED_BYTES = "Bytes saved for backward include inputs, but not leaves (parameters)."


class MorphError(ValueError):
    """Raised if a record has no graph to show from eager mode to kernels; the message gives the reason."""


def graph_names(record: Record) -> tuple[str, ...]:
    """The graphs that can be shown from eager mode to kernels, the one with most nodes first."""
    sizes: Counter[str] = Counter()
    for stage in ("joint", "forward", "backward", "inference"):
        for artifact in record.of_stage(stage):
            sizes[artifact.graph] += len(artifact.entities)
    return tuple(name for name, _ in sizes.most_common())


def states_of(record: Record, graph: str = "") -> tuple[State, ...]:
    """The states of a graph, at most five; by default of the graph with most nodes.

    Raises MorphError if the record has no graph of AOTAutograd, ValueError for an unknown graph.
    """
    names = graph_names(record)
    if not names:
        why = next((f": {problem.reason}" for problem in record.problems if problem.stage == "joint"), "")
        raise MorphError(f"this run has no graph of AOTAutograd to follow from eager mode to kernels{why}")
    if graph and graph not in names:
        raise ValueError(f"no graph {graph!r} in this run; it has: {', '.join(names)}")
    return _Reader(record, graph or names[0]).states()


class _Reader:
    """Reads the states of one graph from a record."""

    def __init__(self, record: Record, graph: str) -> None:
        self.record, self.graph = record, graph
        self.entities = {entity.id: entity for entity in record.entities()}
        captured = {entity.id for each in self._graphs("captured") for entity in each.entities}
        self.linker = Linker(self.entities, captured)
        self.made_outside = {
            origin
            for each in self._graphs("autograd")
            for entity in each.entities
            if entity.kind == "outer"
            for origin in entity.origins
        }
        self.sources, self.saved = input_sources(record), saved_tensors(record)

    def states(self) -> tuple[State, ...]:
        found: list[State] = []
        for make in (self._eager_state, self._joint_state, self._cut_state, self._decomposed_state, self._fused_state):
            state = make(found[-1] if found else None)
            if state is not None:
                found.append(self.linker.link(state, found[-1]) if found else state)
        return tuple(self._with_gradients(found))

    def _with_gradients(self, states: Sequence[State]) -> Iterable[State]:
        """The states; autograd's launches include those of gradients.

        The gradient of a captured operation is at least one launch if it computes anything, and one for each matmul.
        """
        first, *rest = states
        if all(node.lane == "both" for node in first.nodes):
            captured = self.linker.captured
            matmuls: dict[tuple[str, ...], int] = defaultdict(int)
            for node in (node for state in rest if state.key == "joint" for node in state.nodes):
                if (node.kind, node.lane) == ("op", "backward"):
                    matmuls[self.linker.nearest(node.id, captured)[:1]] += node.title in _MATMULS
            launches = first.counts.launches + sum(max(1, count) for count in matmuls.values())
            first = replace(first, counts=replace(first.counts, launches=launches))
        return (first, *rest)

    def _graphs(self, *stages: str) -> list[Artifact]:
        return [each for stage in stages for each in self.record.of_stage(stage) if each.graph == self.graph]

    # The five states

    def _eager_state(self, _: State | None) -> State | None:
        graphs = self._graphs("autograd")
        if any(entity.kind == "compiled" for each in graphs for entity in each.entities):
            graphs = []  # autograd saw one function, the compiled one
        if not graphs:
            return self._captured_state()
        nodes = self._nodes(graphs, lambda _: "both")
        words = f"Autograd's graph: eager mode ran each operation, and kept a node for its gradient. {SAVED_BYTES}"
        return State("eager", words, nodes, self._edges(graphs), self._eager_counts(graphs, nodes))

    def _eager_counts(self, graphs: Sequence[Artifact], nodes: Sequence[Node]) -> Counts:
        mine = {entity.id for each in graphs for entity in each.entities}
        facts = [each for each in self.record.autograd_saved if each.node in mine]
        ops, data = _sizes(nodes)
        return Counts(ops, data, sum(node.kind == "op" for node in nodes), None, memory_kept(facts))

    def _captured_state(self) -> State | None:
        graphs = self._graphs("captured")
        if not graphs:
            return None
        nodes = self._nodes(graphs, lambda _: "forward")
        words = "What eager mode runs forward, one operation after the other."
        return State("eager", words, nodes, self._edges(graphs), self._counts(graphs, nodes))

    def _joint_state(self, _: State | None) -> State | None:
        graphs = self._graphs("joint")
        if not graphs:
            return None
        users = defaultdict(set)
        for entity in graphs[0].entities:
            for source in entity.inputs if entity.kind != "output" else ():
                users[source].add(bool(entity.attrs.get("backward")))

        def lane(entity: Entity) -> Lane:
            is_backward = users[entity.id] == {True} if entity.kind == "placeholder" else entity.attrs.get("backward")
            return "backward" if is_backward else "forward"

        nodes = self._nodes(graphs, lane)
        words = "AOTAutograd traces forward and backward into one graph of ATen operations."
        if self._graphs("post_grad", "lowered"):
            words = f"{words[:-1]}, and decomposes most of them."
        return State("joint", words, nodes, self._edges(graphs), self._counts(graphs, nodes))

    def _cut_state(self, before: State | None) -> State | None:
        graphs = self._graphs("forward", "backward") or self._graphs("inference")
        if not graphs:
            return None
        nodes = self._in_halves(graphs, set(self.saved.values()))
        ids = {node.id for node in nodes}
        crossing = tuple(pair for pair in self.saved.items() if ids.issuperset(pair))
        counts = self._counts(graphs, nodes)
        if any(each.half == "backward" for each in graphs):
            counts = replace(counts, saved=self._saved_bytes(maker for maker, _ in crossing))
            words = f"The partitioner cuts it in two: forward saves {_count_saved(nodes)} for backward."
            again = self._count_recomputed(nodes, before) if before else 0
            if again:
                words += f" Backward computes {pluralize(again, 'operation')} again, so as to save less."
            words += f" {SAVED_BYTES}"
        else:
            words = "No gradient is needed, so there is one graph of ATen operations, and nothing to cut."
        return State("cut", words, nodes, (*self._edges(graphs), *crossing), counts)

    def _count_recomputed(self, nodes: Sequence[Node], before: State) -> int:
        """Number of operations of the state before that are in both halves."""
        known = {node.id for node in before.nodes if node.kind == "op"}
        homes = defaultdict(set)
        for node in nodes:
            for origin in self.linker.nearest(node.id, known) if node.kind == "op" else ():
                homes[origin].add(node.lane)
        return sum(len(lanes) > 1 for lanes in homes.values())

    def _decomposed_state(self, before: State | None) -> State | None:
        graphs = self._graphs("post_grad") or self._graphs("lowered")
        if not graphs:
            return None
        kept = {node.id for node in before.nodes if node.kind == "saved"} if before else set()
        saved = {
            entity.id
            for each in graphs
            for entity in each.entities
            if entity.kind == "placeholder" and not kept.isdisjoint(self.linker.nearest(entity.id, kept))
        }
        nodes = self._in_halves(graphs, saved)
        crossing = tuple(self._crossing_edges(graphs, saved))
        counts = replace(self._counts(graphs, nodes), saved=before.counts.saved if before else None)
        stage = "after Inductor's passes" if graphs[0].stage == "post_grad" else "as loops and calls of PyTorch"
        words = f"The graphs {stage}: these operations are made into kernels."
        return State("decomposed", words, nodes, (*self._edges(graphs), *crossing), counts)

    def _crossing_edges(self, graphs: Sequence[Artifact], saved: Iterable[str]) -> Iterable[Edge]:
        """Pairs of a forward node and the backward input that holds its saved tensor."""
        makers = {}
        for each in graphs:
            for entity in each.entities if each.half != "backward" else ():
                if entity.kind not in _HIDDEN:
                    makers.update(dict.fromkeys(self.linker.nearest(entity.id, self.saved.keys()), entity.id))
        names = {place: maker for maker, place in self.saved.items()}
        for place in saved:
            for origin in self.linker.nearest(place, names):
                if names[origin] in makers:
                    yield makers[names[origin]], place

    def _fused_state(self, before: State | None) -> State | None:
        graphs = self._graphs("kernels")
        calls = [(each, entity) for each in graphs for entity in each.entities if entity.kind in ("call", "extern")]
        if not calls or before is None:
            return None
        inputs = [node for node in before.nodes if node.kind in DATA]
        lowered = {node.id for node in before.nodes if node.kind not in DATA}
        parts = {entity.id: self.linker.nearest(entity.id, lowered) for _, entity in calls}
        kernels = [self._kernel(entity, artifact, len(parts[entity.id])) for artifact, entity in calls]
        nodes = (*(replace(node, origins=(), inferred=False) for node in inputs), *kernels)
        edges = dict.fromkeys([*self._launch_edges([entity for _, entity in calls]), *self._data_edges(before, parts)])
        ops, data = _sizes(nodes)
        moved = sum(_bytes(entity) for _, entity in calls)
        counts = Counts(ops, data, len(kernels), moved, before.counts.saved, exact=True)
        own = sum(node.kind == "kernel" for node in kernels)
        made = [pluralize(own, "generated kernel")] if own else []
        made += [pluralize(len(kernels) - own, "extern call")] if own < len(kernels) else []
        words = f"Operations melt into {' and '.join(made)}. Views become indices inside of kernels, and run nothing."
        return State("fused", words, nodes, tuple(edges), counts)

    def _kernel(self, call: Entity, artifact: Artifact, parts: int) -> Node:
        size = _bytes(call)
        detail = ", ".join([pluralize(parts, "op"), *([size_text(size)] if size else [])])
        kind: Kind = "extern" if call.kind == "extern" else "kernel"
        return Node(call.id, kind, _lane_of(artifact), _short_kernel(call.label), detail, size)

    def _launch_edges(self, calls: Sequence[Entity]) -> Iterable[Edge]:
        """Edges between launches: recorded ones, and those of the nodes that the launches were made from."""
        owner = {origin: call.id for call in calls for origin in (call.id, *call.origins)}
        for call in calls:
            todo = [*call.inputs, *(name for origin in call.origins for name in self._inputs(origin))]
            seen = set(todo)
            while todo:
                name = todo.pop()
                if name not in owner:
                    more = [each for each in self._inputs(name) if each not in seen]
                    seen.update(more)
                    todo += more
                elif owner[name] != call.id:
                    yield owner[name], call.id

    def _inputs(self, name: str) -> tuple[str, ...]:
        return self.entities[name].inputs if name in self.entities else ()

    def _data_edges(self, before: State, parts: Mapping[str, Sequence[str]]) -> Iterable[Edge]:
        """Edges from inputs to launches that read them, and from launches to saved tensors, through views."""
        kinds = {node.id: node.kind for node in before.nodes}
        homes, sources = defaultdict(list), defaultdict(list)
        for source, target in before.edges:
            sources[target].append(source)
        for launch, members in parts.items():
            for member in members:
                homes[member].append(launch)
        for node in before.nodes:
            for source in _through_views(node.id, sources, homes, kinds):
                if kinds[source] in DATA:
                    yield from ((source, launch) for launch in homes.get(node.id, ()))
                if node.kind == "saved" and source in homes:
                    yield homes[source][-1], node.id
                elif node.kind == "saved":
                    yield source, node.id

    # Nodes, edges, counts

    def _in_halves(self, graphs: Sequence[Artifact], saved: set[str]) -> tuple[Node, ...]:
        lanes = {entity.id: _lane_of(each) for each in graphs for entity in each.entities}
        nodes = self._nodes(graphs, lambda entity: lanes[entity.id])
        return tuple(replace(node, kind="saved") if node.id in saved else node for node in nodes)

    def _nodes(self, graphs: Sequence[Artifact], lane: Callable[[Entity], Lane]) -> tuple[Node, ...]:
        shown = (entity for each in graphs for entity in each.entities)
        return tuple(
            self._node(entity, lane(entity))
            for entity in shown
            if entity.kind not in _HIDDEN and "inside" not in entity.attrs
        )

    def _node(self, entity: Entity, lane: Lane) -> Node:
        kind = _kind_of(entity)
        if kind == "input":
            title = input_name(entity, self.sources.get(entity.id, ""))
        elif kind == "leaf":
            title = f"{entity.label}.grad"
        else:
            title = entity.label if kind == "stop" or "moves" in entity.attrs else short_op(entity)
        return Node(entity.id, kind, lane, title, tensor_type(entity.attrs), _bytes(entity))

    def _edges(self, graphs: Sequence[Artifact]) -> tuple[Edge, ...]:
        shown = {
            entity.id
            for each in graphs
            for entity in each.entities
            if entity.kind not in _HIDDEN and "inside" not in entity.attrs
        }
        pairs = (
            (source, entity.id)
            for each in graphs
            for entity in each.entities
            for source in entity.inputs
            if entity.id in shown and source in shown and source != entity.id
        )
        return tuple(dict.fromkeys(pairs))

    def _counts(self, graphs: Sequence[Artifact], nodes: Sequence[Node]) -> Counts:
        ops, data = _sizes(nodes)
        working = {node.id for node in nodes if node.kind == "op"}
        parts: Counter[str] = Counter()  # results of an operation with several
        for each in graphs:
            for entity in each.entities:
                if short_op(entity) == "getitem" and entity.inputs:
                    parts[entity.inputs[0]] += _bytes(entity)
        if any(_is_symbolic(entity) for each in graphs for entity in each.entities):
            return Counts(ops, data, len(working))
        moved = 0
        for name in working:
            entity = self.entities[name]
            if "moves" in entity.attrs:
                moved += _bytes(entity)
            else:
                read = sum(_bytes(self.entities[source]) for source in entity.inputs if source in self.entities)
                moved += read + (_bytes(entity) or parts[name])
        return Counts(ops, data, len(working), moved)

    def _saved_bytes(self, saved: Iterable[str]) -> int | None:
        """Bytes of memory that saved tensors keep, each once, without that of leaves; None if a size is a symbol."""
        owners = [self.entities[name] for name in dict.fromkeys(map(self._owner, saved))]
        kept = [owner for owner in owners if not self._is_leaf(owner)]
        return None if any(map(_is_symbolic, kept)) else sum(map(_bytes, kept))

    def _owner(self, name: str) -> str:
        """The tensor whose memory a tensor shares, through views; itself if it has its own."""
        while moves_no_data(self.entities[name]):
            source = self.entities[name].inputs[0]
            if "shape" not in self.entities[source].attrs:  # one of several results
                break
            name = source
        return name

    def _is_leaf(self, entity: Entity) -> bool:
        """Whether a tensor is an input that gets a gradient, and was not computed outside of the graph."""
        inputs = self.linker.nearest(entity.id, self.linker.captured)
        return bool(entity.attrs.get("requires_grad")) and self.made_outside.isdisjoint(inputs)


def _kind_of(entity: Entity) -> Kind:
    if entity.kind in ("placeholder", "get_attr"):
        return "input"
    if entity.kind in _DATA_KINDS:
        return _DATA_KINDS[entity.kind]
    if moves_no_data(entity):
        return "view"
    return "op" if not _TENSORS.isdisjoint(entity.attrs) else "scalar"


def _bytes(entity: Entity) -> int:
    size = entity.attrs.get("bytes", 0)
    return size if isinstance(size, int) else 0


def _is_symbolic(entity: Entity) -> bool:
    """Whether a size of an entity's tensor is not a number."""
    return not all(isinstance(size, int) for size in entity.attrs.get("shape", ()))


def _sizes(nodes: Sequence[Node]) -> tuple[int, int]:
    """Number of operations or kernels, and of other nodes."""
    data = sum(node.kind in DATA for node in nodes)
    return len(nodes) - data, data


def _lane_of(artifact: Artifact) -> Lane:
    return "backward" if artifact.half == "backward" else "forward"


def _count_saved(nodes: Sequence[Node]) -> str:
    return pluralize(sum(node.kind == "saved" for node in nodes), "value")


def _short_kernel(name: str) -> str:
    """Name of a kernel without the words that all of Inductor's kernels begin with."""
    return re.sub(r"^(?:triton_(?:per|poi|red|for|tem)_fused_|cpp_fused_|extern_kernels\.|aten\.)_*", "", name)


def _through_views(
    name: str, sources: Mapping[str, Sequence[str]], made: Mapping[str, object], kinds: Mapping[str, Kind]
) -> list[str]:
    """Inputs of a node that are data or were made by a kernel; other nodes are followed to their inputs."""
    found: dict[str, None] = {}
    todo, seen = list(sources.get(name, ())), set()
    while todo:
        source = todo.pop()
        if kinds[source] in DATA or source in made:
            found[source] = None
        elif source not in seen:
            seen.add(source)
            todo += sources.get(source, ())
    return list(found)
