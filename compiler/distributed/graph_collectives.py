"""The collectives of a rank's graphs, gathered over stages, put in order, and linked to lines and generated code.

Nothing here imports torch: graphs that run here and those of a log give the same facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from compiler.inductor.kernels import nodes_of_call
from compiler.record import Artifact, Collective, Entity, GraphHalf, Group, Span

STAGES_WITH_COLLECTIVES = ("captured", "forward", "backward", "inference", "post_grad")


@dataclass
class GraphCollectives:
    """The collectives of all graphs by half; later stages of a graph replace earlier ones."""

    by_graph: dict[str, dict[GraphHalf, list[Collective]]] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)

    def add(self, artifact: Artifact, found: Sequence[tuple[Collective, Group]]) -> None:
        """Add those of a graph as captured, of one half by AOTAutograd, or of one half after Inductor's passes."""
        halves = self.by_graph.setdefault(artifact.graph, {})
        if artifact.half:
            halves.pop("", None)
        halves[artifact.half] = [collective for collective, _ in found]
        self.groups |= {group.name: group for _, group in found}

    def collectives_in_order(self, artifacts: Iterable[Artifact]) -> list[Collective]:
        """The collectives in order of execution, with their lines and their calls in the generated code."""
        found = [each for halves in self.by_graph.values() for calls in halves.values() for each in calls]
        if not found:
            return []
        links = _Links(artifacts)
        return [links.link(each) for each in in_order_of_execution(found)]


class _Links:
    """Finds the user's lines that a call in a graph comes from, and the call in the generated code."""

    def __init__(self, artifacts: Iterable[Artifact]) -> None:
        self._up: dict[str, tuple[str, ...]] = {}
        self._lines: dict[str, Span] = {}
        self._code: dict[str, list[str]] = {}
        for artifact in artifacts:
            for entity in artifact.entities:
                self._up[entity.id] = entity.origins
                if artifact.stage == "source" and "line" in entity.attrs:
                    self._lines[entity.id] = _span(entity, installed=bool(artifact.attrs.get("installed")))
                elif artifact.stage == "kernels" and entity.kind == "extern":
                    for node in (*entity.origins, *nodes_of_call(entity, self._up)):  # a log has no loops
                        self._code.setdefault(node, []).append(entity.id)

    def link(self, found: Collective) -> Collective:
        """Add the calls in the generated code, and the lines."""
        code = [call for node in found.entities for call in self._code.get(node, ())]
        entities = tuple(dict.fromkeys((*found.entities, *code)))
        return replace(found, entities=entities, lines=self._lines_of(found.entities[0]))

    def _lines_of(self, node: str) -> tuple[Span, ...]:
        """Lines of the first node that was traced from lines, innermost first; of installed code only if alone."""
        todo, seen = [node], {node}
        while todo:
            origins = self._up.get(todo.pop(0), ())
            lines = [self._lines[origin] for origin in reversed(origins) if origin in self._lines]
            if lines:
                return tuple(line for line in lines if not line.installed) or tuple(lines)
            fresh = [origin for origin in origins if origin not in seen]
            seen.update(fresh)
            todo += fresh
        return ()


def _span(entity: Entity, *, installed: bool) -> Span:
    attrs = entity.attrs
    return Span(attrs["file"], attrs["line"], attrs["line"], code=attrs.get("code", ""), installed=installed)


def in_order_of_execution(found: Sequence[Collective]) -> list[Collective]:
    """Number collectives over all graphs: forwards in the order of their capture, then backwards in the reverse."""
    graphs = list(dict.fromkeys(each.graph for each in found))

    def key(each: Collective) -> tuple[bool, int, int]:
        number, is_backward = graphs.index(each.graph), each.half == "backward"
        return is_backward, -number if is_backward else number, each.order

    return [replace(each, order=order) for order, each in enumerate(sorted(found, key=key))]
