"""Provenance of FX nodes: each node's origins among the nodes of the previous stage.

torch records provenance in several ways, none complete. They are tried in this order:

1. `meta["from_node"]`: the node that was interpreted when this one was traced (torch.fx.traceback).
2. The name: passes and the partitioner copy nodes without renaming them. A custom operator that mutates its arguments
   comes from the auto_functionalized node that wrapped it.
3. `meta["seq_nr"]`: a backward node carries the sequence number of the forward operation whose gradient it computes
   (torch._functorch._aot_autograd: copy_fwd_metadata_to_bw_nodes), so it comes from that operation's nodes.
4. The same user stack in the same module.
5. Neighbours: a node that a pass made has no metadata; it takes the origins of its users, or else of its inputs.
6. In a subgraph of a higher-order operator: the same subgraph of the previous stage, or else the operator.

Subgraphs are searched together with the outer graph, as a subgraph may be inlined between two stages (activation
checkpointing).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from torch.fx import Graph, GraphModule, Node

from compiler.record import Artifact, Entity
from compiler.record.printed_code import short_name
from compiler.torch_api import fx

_ARGUMENT = re.compile(r"args\[(\d+)\]")
_FLEX_BODIES = (0, 0, 1)
"""The place of each body of FlexAttention's backward among those of its forward: score, its gradient, mask."""
Key = tuple[str, str, bool]
Ids = tuple[str, ...]


class Provenance:
    """Origins of every node of `module` and its subgraphs among the entities of `parent`, looked up by node.

    `homes` maps ids of graph objects to the paths of these graphs in `parent` (`fx.graph_paths`).
    """

    def __init__(self, module: GraphModule, parent: Artifact, homes: Mapping[int, str], *, same_names: bool) -> None:
        self.parent = parent
        self.entities = {entity.id: entity for entity in parent.entities}
        self.ids = {entity.label: entity.id for entity in parent.entities}
        self.homes = homes
        self.same_names = same_names
        self.paths = fx.graph_paths(module)
        self.bodies = fx.bodies(module)
        self.callers = {body.module.graph: body.callers for body in self.bodies}
        graphs = [module.graph, *(body.module.graph for body in self.bodies)]
        every = (node for graph in graphs for node in graph.nodes if node.op != "output")
        self.nodes = [node for node in every if node.op != "placeholder" or node.graph is module.graph]
        self.found: dict[Node, Ids] = {}
        self._placeholders(module.graph)
        self._each(self._direct)
        self._written_in_place()
        by_sequence = self._by_sequence()
        self._each(lambda node: by_sequence.get((node.graph, self._sequence(node)), ()))
        self._each(lambda node: by_sequence.get((self._is_inside(node), self._sequence(node)), ()))
        by_stack = self._group(lambda node: filter(None, [self._stack_key(node)]))
        self._each(lambda node: by_stack.get(self._stack_key(node), ()))
        same = {body: self._same_body(body) for body in self.bodies}
        self._neighbours()
        for body in self.bodies:
            self._rest_of(body, same[body])

    def __call__(self, node: Node) -> Ids:
        return self.found.get(node, ())

    def _each(self, rule: Callable[[Node], Ids]) -> None:
        for node in self.nodes:
            if node not in self.found and (origins := rule(node)):
                self.found[node] = origins

    def _placeholders(self, graph: Graph) -> None:
        """Match AOTAutograd's primals to the captured graph's placeholders, in order.

        A tensor subclass has several primals, such as `args[2]._local_tensor`; the description names its argument.
        """
        if self.same_names:
            return
        captured = [entity.id for entity in self.parent.entities if entity.kind == "placeholder"]
        primals = [n for n in graph.find_nodes(op="placeholder") if not str(n.target).startswith("tangents")]
        if len(captured) == len(primals):
            self.found.update((node, (origin,)) for node, origin in zip(primals, captured, strict=True))
            return
        for node in primals:
            described = _ARGUMENT.match(fx.input_description(node))
            if described and int(described[1]) < len(captured):
                self.found[node] = (captured[int(described[1])],)

    def _direct(self, node: Node) -> Ids:
        path = self.paths[node.graph]
        own = fx.qualified_name(path, node.name)
        if self.same_names and own in self.ids:
            return (self.ids[own],)
        sources = fx.sources(node)
        named = [fx.qualified_name(self.homes[graph], name) for name, graph in sources if graph in self.homes]
        named += [name for name, _ in sources if not path]
        known = (self.ids[name] for name in named if name in self.ids)
        called = {origin for caller in self.callers.get(node.graph, ()) for origin in self.found.get(caller, ())}
        return next(((origin,) for origin in known if origin not in called), ())

    def _written_in_place(self) -> None:
        """Match mutating operators to the functional nodes that Inductor took them out of: by line, in order."""
        wrapped: dict[str, list[Entity]] = {}
        for entity in self.parent.entities:
            if operator := entity.attrs.get("operator"):
                wrapped.setdefault(str(operator), []).append(entity)
        for node in self.nodes:
            if node not in self.found and (left := wrapped.get(fx.target_name(node))):
                line = next((frame.line for frame in reversed(fx.source_frames(node))), None)
                same = next((entity for entity in left if entity.attrs.get("line") == line), left[0])
                left.remove(same)
                self.found[node] = (same.id,)

    def _is_inside(self, node: Node) -> bool:
        return bool(self.paths[node.graph])

    def _sequence(self, node: Node) -> object:
        """The node's sequence number; None if the number belongs to the enclosing operator."""
        number = node.meta.get("seq_nr")
        around = [caller.meta.get("seq_nr") for caller in self.callers.get(node.graph, ())]
        return None if number in around else number

    def _by_sequence(self) -> dict[object, Ids]:
        """Known origins by (graph, sequence number), and by (whether in a subgraph, sequence number)."""
        return self._group(lambda node: [
            (graph, number)
            for number in [self._sequence(node)]
            for graph in (node.graph, self._is_inside(node))
            if number is not None and node.op == "call_function"
        ])  # fmt: skip

    def _group(self, keys_of: Callable[[Node], Iterable[object]]) -> dict[object, Ids]:
        """Known origins, grouped by the keys of their nodes."""
        groups: dict[object, list[str]] = {}
        for node, origins in self.found.items():
            for key in keys_of(node):
                groups.setdefault(key, []).extend(origins)
        return {key: _unique(origins) for key, origins in groups.items()}

    def _stack_key(self, node: Node) -> Key | None:
        stack = node.meta.get("stack_trace")
        return (stack, fx.module_path(node)[0], self._is_inside(node)) if stack else None

    def _same_body(self, body: fx.Body) -> str:
        """Find the id of the same subgraph in `parent`, "" for none, and match its holder and inputs."""
        same = self._known_body(body) or self._body_at_place(body)
        inputs = body.module.graph.find_nodes(op="placeholder")
        if same:
            self.found[body.holder] = (same,)
            self._match_retraced_body(body, same)
        given = [e.id for e in self.parent.entities if e.kind == "subgraph_input" and e.attrs["subgraph"] == same]
        if len(inputs) == len(given):
            self.found |= {node: (origin,) for node, origin in zip(inputs, given, strict=True)}
        return same

    def _known_body(self, body: fx.Body) -> str:
        """Id of the parent's subgraph with the same name or graph object, or with the nodes' origins; "" if unknown."""
        path = body.path if self.same_names else self.homes.get(id(body.module.graph), "")
        if path in self.ids:
            return self.ids[path]
        origins = (origin for node in body.module.graph.nodes for origin in self.found.get(node, ()))
        return next(
            (str(self.entities[o].attrs["subgraph"]) for o in origins if "subgraph" in self.entities[o].attrs), ""
        )

    def _body_at_place(self, body: fx.Body) -> str:
        """Id of the subgraph at the same position among the subgraphs of the caller's origin; "" if unknown."""
        for caller in body.callers:
            own = [other for other in self.bodies if caller in other.callers]
            for origin in self.found.get(caller, ()):
                theirs = self.entities[origin].attrs.get("subgraphs", ())
                if _is_flex_backward(caller) and len(theirs) == len(_FLEX_BODIES) - 1:
                    theirs = [theirs[place] for place in _FLEX_BODIES]
                if len(theirs) == len(own):
                    return str(theirs[own.index(body)])
        return ""

    def _match_retraced_body(self, body: fx.Body, same: str) -> None:
        """Match the operations of a subgraph that was traced again, in order and by name.

        FlexAttention's backward has its score function, and the function with its gradient, without any provenance. The
        names of operations of the first are those of the second too.
        """
        has_no_sources = any(map(_is_flex_backward, body.callers))
        if has_no_sources and (forward := self._flex_forward(body)) is not None:
            names = {node.name: self.found[node] for node in forward.module.graph.nodes if node in self.found}
            self.found |= {node: names[node.name] for node in fx.calls(body.module) if node.name in names}
            return
        calls = [e for e in self.parent.entities if e.kind == "call" and e.attrs.get("subgraph") == same]
        for node in body.module.graph.nodes:
            if node.op != "placeholder" and node not in self.found and (has_no_sources or fx.sources(node)):
                name = short_name(fx.target_name(node))
                again = next((call for call in calls if short_name(str(call.attrs["target"])) == name), None)
                if again is not None:
                    calls.remove(again)
                    self.found[node] = (again.id,)

    def _flex_forward(self, body: fx.Body) -> fx.Body | None:
        """The score function of FlexAttention's backward, if `body` is the function with its gradient."""
        own = [other for other in self.bodies if other.callers == body.callers]
        return own[0] if len(own) > 1 and body is own[1] else None

    def _rest_of(self, body: fx.Body, same: str) -> None:
        """Give nodes without origins the calls of the same subgraph in `parent`, or else the origins of the caller."""
        calls = [e.id for e in self.parent.entities if same and e.kind == "call" and e.attrs.get("subgraph") == same]
        called = (same,) if same else _unique(o for caller in body.callers for o in self.found.get(caller, ()))
        for node in body.module.graph.nodes:
            if node.op != "output" and called:
                self.found.setdefault(node, called if node.op == "placeholder" or not calls else tuple(calls))

    def _neighbours(self) -> None:
        for node in reversed(self.nodes):
            self._inherit(node, node.users)
        for node in self.nodes:
            self._inherit(node, node.all_input_nodes)

    def _inherit(self, node: Node, neighbours: Iterable[Node]) -> None:
        if node not in self.found and node.op != "placeholder":
            origins = _unique(origin for other in neighbours for origin in self.found.get(other, ()))
            if origins:
                self.found[node] = origins


def _is_flex_backward(node: Node) -> bool:
    return fx.target_name(node).endswith("flex_attention_backward")


def _unique(origins: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(origins))
