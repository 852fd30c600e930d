"""Which nodes of a state came from which of the state before.

Where the record links a node to nodes of the state before, these are its origins. Autograd's nodes and AOTAutograd's
have no such link, but both came from a node of the captured graph; if that node made several autograd nodes, operation
names decide between them, and the origin is marked as inferred.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from compiler.record import Entity
from explorer.findings.morph.state import DATA, Edge, Node, State

_ALIASES = {"t": "permute", "transpose": "permute", "unsafe_view": "view", "reshape": "view", "flatten": "view"}


class Linker:
    """Links the states of one graph. `captured` are the ids of the captured graph's nodes."""

    def __init__(self, entities: Mapping[str, Entity], captured: Collection[str]) -> None:
        self.entities, self.captured = entities, captured

    def nearest(self, name: str, wanted: Collection[str]) -> tuple[str, ...]:
        """The nearest of these ids on each way back from an entity; the entity itself if it is one of them."""
        if name in wanted:
            return (name,)
        found: dict[str, None] = {}
        seen, todo = {name}, [name]
        while todo:
            entity = self.entities.get(todo.pop())
            for origin in entity.origins if entity else ():
                if origin in wanted:
                    found[origin] = None
                elif origin not in seen:
                    seen.add(origin)
                    todo.append(origin)
        return tuple(found)

    def link(self, state: State, before: State) -> State:
        """The state with the origins of its nodes, and with the nodes of the state before that are gone."""
        known = {node.id for node in before.nodes}
        direct = {node.id: self.nearest(node.id, known) for node in state.nodes}
        linked = [replace(node, origins=direct[node.id]) for node in state.nodes]
        if any(not node.origins for node in linked):
            linked = _link_incoming_gradients(self._link_by_captured(linked, before), before)
        if state.key in ("cut", "decomposed"):
            linked = [self._narrow_origins(node, before) for node in self._link_replaced(linked, before)]
        by_id = {node.id: node for node in before.nodes}
        linked = [_named_as_origin(node, by_id) for node in linked]
        return replace(state, nodes=tuple(linked), gone=_unused_nodes(linked, before))

    def _link_replaced(self, nodes: Sequence[Node], before: State) -> list[Node]:
        """Link the nodes that a pass made to the operations that it replaced, which are those missing beside them.

        A pass gives its nodes no origins; the record has those of their neighbours.
        """
        gone = set(_unused_nodes(nodes, before)) & {node.id for node in before.nodes if node.kind == "op"}
        by_id = {node.id: node for node in before.nodes}
        order = {name: number for number, name in enumerate(by_id)}
        made = [node for node in nodes if node.kind not in DATA and not self._is_kept(node)]
        found: dict[str, tuple[str, ...]] = {}
        for missing, border in _components(gone, before.edges):
            lane = by_id[missing[0]].lane
            beside = [node for node in made if node.lane == lane and not border.isdisjoint(node.origins)]
            if beside:
                found |= _match(beside, [by_id[name] for name in sorted(missing, key=order.__getitem__)])
        return [replace(node, origins=found[node.id], inferred=True) if node.id in found else node for node in nodes]

    def _narrow_origins(self, node: Node, before: State) -> Node:
        """A node that a pass made for several others, as coming from one of these: the record names all around it."""
        if len(node.origins) < 2 or node.inferred or self._is_kept(node):
            return node
        origins = [each for each in before.nodes if each.id in node.origins]
        return replace(node, origins=tuple(each.id for each in _of_same_op(node, origins, 0)), inferred=True)

    def _is_kept(self, node: Node) -> bool:
        """Whether one of a node's origins has its name: passes copy nodes without renaming them."""
        return any(self.entities[origin].label == self.entities[node.id].label for origin in node.origins)

    def _link_by_captured(self, nodes: Sequence[Node], before: State) -> list[Node]:
        """Link nodes without origins to those that came from the same node of the captured graph."""
        makers: dict[str, list[Node]] = defaultdict(list)
        for node in before.nodes:
            for key in self.nearest(node.id, self.captured):
                makers[key].append(node)
        groups: dict[str, list[Node]] = defaultdict(list)
        for node in nodes:
            if not node.origins:
                key = next((key for key in self._captured_origins(node.id) if key in makers), "")
                groups[key].append(node)
        found = {
            name: origins
            for key, group in groups.items()
            if key
            for name, origins in _match(group, makers[key]).items()
        }
        several = {node.id for key, group in groups.items() if len(makers.get(key, ())) > 1 for node in group}
        return [
            replace(node, origins=found[node.id], inferred=node.id in several) if node.id in found else node
            for node in nodes
        ]

    def _captured_origins(self, name: str) -> Iterable[str]:
        """The captured nodes that an entity came from, and the operators whose bodies these are in."""
        for key in self.nearest(name, self.captured):
            yield key
            body = self.entities[key].attrs.get("subgraph")
            for each in self.captured if body else ():
                if body in self.entities[each].attrs.get("subgraphs", ()):
                    yield each


def _named_as_origin(node: Node, before: Mapping[str, Node]) -> Node:
    """An input with the name that it had before: autograd knows a parameter's full name."""
    origin = before.get(node.origins[0]) if len(node.origins) == 1 else None
    if origin is None or node.kind not in ("input", "saved") or origin.kind not in DATA:
        return node
    return replace(node, title=origin.title.removesuffix(".grad"))


def _unused_nodes(nodes: Sequence[Node], before: State) -> tuple[str, ...]:
    """Ids of nodes of the state before that are no origin of these nodes."""
    used = {origin for node in nodes for origin in node.origins}
    return tuple(node.id for node in before.nodes if node.id not in used)


def _components(names: Collection[str], edges: Sequence[Edge]) -> Iterable[tuple[list[str], set[str]]]:
    """Connected groups of these nodes, each with the other nodes that edges connect it to."""
    beside: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        beside[source].append(target)
        beside[target].append(source)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            continue
        group, border, todo = [], set(), [name]
        seen.add(name)
        while todo:
            group.append(todo.pop())
            for other in beside[group[-1]]:
                if other not in names:
                    border.add(other)
                elif other not in seen:
                    seen.add(other)
                    todo.append(other)
        yield group, border


def _link_incoming_gradients(nodes: Sequence[Node], before: State) -> list[Node]:
    """Link the inputs of the backward to autograd's: both are the gradients that backward begins with."""
    begin = tuple(node.id for node in before.nodes if node.kind == "input" and node.lane == "both")
    return [
        replace(node, origins=begin, inferred=True)
        if begin and not node.origins and (node.kind, node.lane) == ("input", "backward")
        else node
        for node in nodes
    ]


def _match(nodes: Sequence[Node], candidates: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """Id of a node -> its origins among nodes that came from the same captured node. Every candidate is an origin."""
    taken: Counter[tuple[str, str]] = Counter()
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        step = (node.lane, _plain_op(node))
        chosen = candidates if len(candidates) == 1 else _of_same_op(node, candidates, taken[step])
        taken[step] += 1
        found[node.id] = tuple(each.id for each in chosen)
    used = {origin for origins in found.values() for origin in origins}
    left = tuple(each.id for each in candidates if each.id not in used)
    found[nodes[0].id] += left
    return found


def _of_same_op(node: Node, candidates: Sequence[Node], number: int) -> list[Node]:
    """The candidates that a node came from by the name of its operation: the one at this number, or all that compute.

    Autograd lists its nodes in backward order.
    """
    in_order = list(candidates) if node.lane == "backward" else list(reversed(candidates))
    same = [each for each in in_order if _plain_op(each) == _plain_op(node)]
    if same:
        return [same[min(number, len(same) - 1)]]
    return [each for each in in_order if each.kind == "op"][-1:] or in_order


def _plain_op(node: Node) -> str:
    name = node.title.strip("_")
    return _ALIASES.get(name, name)
