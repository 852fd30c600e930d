"""Which nodes of the stage before does a node of this FX graph come from?

torch keeps several traces of that, none complete. In the order tried here:

1. `meta["from_node"]`: the node that was being interpreted when this one was traced (torch.fx.traceback).
2. The name: passes and the partitioner copy nodes under their own names.
3. `meta["seq_nr"]`: a backward node carries the sequence number of the forward operation whose gradient it computes
   (torch._functorch._aot_autograd: copy_fwd_metadata_to_bw_nodes), so it comes from that operation's nodes.
4. The same user stack in the same module.
5. Neighbours: a node that a pass made has nothing of its own; it serves its users, or else continues its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import GraphModule, Node

from compiler.record import Artifact
from compiler.torch_api import fx

Key = tuple[str, str]


class Provenance:
    """Origins of every node of `module` among the entities of `parent`, found once, looked up by node."""

    def __init__(self, module: GraphModule, parent: Artifact, *, same_names: bool) -> None:
        self.parent = parent
        self.ids = {entity.label: entity.id for entity in parent.entities}
        self.same_names = same_names
        self.nodes = [node for node in module.graph.nodes if node.op != "output"]
        self.found: dict[Node, tuple[str, ...]] = {}
        self._placeholders()
        self._each(self._direct)
        by_sequence = self._by_sequence()
        self._each(lambda node: by_sequence.get(node.meta.get("seq_nr"), ()))
        by_stack = self._by_stack()
        self._each(lambda node: by_stack.get(_stack_key(node), ()))
        self._neighbours()

    def __call__(self, node: Node) -> tuple[str, ...]:
        return self.found.get(node, ())

    def _each(self, rule: object) -> None:
        for node in self.nodes:
            if node not in self.found and (origins := rule(node)):  # type: ignore[operator]
                self.found[node] = origins

    def _placeholders(self) -> None:
        """AOTAutograd's primals are the captured graph's placeholders, in order."""
        if self.same_names:
            return
        captured = [entity.id for entity in self.parent.entities if entity.kind == "placeholder"]
        primals = [n for n in self.nodes if n.op == "placeholder" and not str(n.target).startswith("tangents")]
        if len(captured) == len(primals):
            self.found.update((node, (origin,)) for node, origin in zip(primals, captured, strict=True))

    def _direct(self, node: Node) -> tuple[str, ...]:
        if self.same_names and node.name in self.ids:
            return (self.ids[node.name],)
        for name in fx.parents(node):
            if name in self.ids:
                return (self.ids[name],)
        return ()

    def _by_sequence(self) -> dict[object, tuple[str, ...]]:
        groups: dict[object, list[str]] = {}
        for node, origins in self.found.items():
            number = node.meta.get("seq_nr")
            if number is not None and node.op == "call_function":
                groups.setdefault(number, []).extend(origins)
        return {number: _unique(origins) for number, origins in groups.items()}

    def _by_stack(self) -> dict[Key | None, tuple[str, ...]]:
        groups: dict[Key | None, list[str]] = {}
        for node, origins in self.found.items():
            key = _stack_key(node)
            if key is not None:
                groups.setdefault(key, []).extend(origins)
        return {key: _unique(origins) for key, origins in groups.items()}

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


def _stack_key(node: Node) -> Key | None:
    stack = node.meta.get("stack_trace")
    return (stack, fx.module_path(node)[0]) if stack else None


def _unique(origins: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(origins))
