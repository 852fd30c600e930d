"""Scheduler nodes as artifacts: Inductor's loops and calls, before and after fusion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from compiler.record import Artifact, Entity
from compiler.torch_api.inductor import IrFacts
from compiler.torch_api.line_origins import FxOrigins

Origins = Callable[[IrFacts], tuple[str, ...]]
FxOriginIds = Callable[[FxOrigins], tuple[str, ...]]


def ir_artifact(
    nodes: Sequence[IrFacts], *, artifact_id: str, stage: str, title: str, graph: str, origins: Origins
) -> Artifact:
    """One entity a scheduler node, in schedule order; `inputs` follow the buffers."""
    writers: dict[str, str] = {}
    text: list[str] = []
    lines: dict[int, tuple[str, ...]] = {}
    entities = []
    for node in nodes:
        identity = f"{artifact_id}.{node.name}"
        body = node.text.split("\n")
        lines.update(dict.fromkeys(range(len(text) + 1, len(text) + len(body) + 1), (identity,)))
        text += [*body, ""]
        inputs = dict.fromkeys(writers[name] for name in node.reads if name in writers)
        entities.append(Entity(identity, node.kind, node.name, _attrs(node), tuple(inputs), origins(node)))
        writers.update(dict.fromkeys(node.writes, identity))
    body_text = "\n".join(text).rstrip("\n") + "\n"
    return Artifact(artifact_id, stage, title, "ir", body_text, graph, lines, tuple(entities))


def _attrs(node: IrFacts) -> dict[str, Any]:
    attrs: dict[str, Any] = {"what": node.label, "bytes": node.bytes}
    attrs |= node.tensor
    attrs |= {"reads": list(node.reads), "writes": list(node.writes), "moves": node.moves}
    if node.parts:
        attrs["parts"] = list(node.parts)
    return attrs


def fx_origins(post_grad: Artifact | None) -> FxOriginIds:
    """Ids of the nodes in the post-grad graph."""
    ids = {entity.label: entity.id for entity in post_grad.entities} if post_grad else {}
    return lambda origins: tuple(ids[name] for name in origins if name in ids)


def lowered_origins(post_grad: Artifact | None, nodes: Sequence[IrFacts]) -> Origins:
    """A function that finds a loop's or call's origins in the post-grad graph.

    The origins of an operator with bodies include what is in these, unless that is lowered to nodes of its own. A
    template has a score_mod inside.
    """
    find = fx_origins(post_grad)
    known = {entity.id: entity for entity in post_grad.entities} if post_grad else {}
    lowered = {name.rpartition(".")[0] for node in nodes for name in node.fx}

    def entities_inside(identity: str) -> Iterator[str]:
        for called in post_grad.calls_inside(known[identity]) if post_grad else ():
            if known[called].label.rpartition(".")[0] not in lowered:
                yield called

    def find_with_bodies(node: IrFacts) -> tuple[str, ...]:
        own = find(node.fx)
        return tuple(dict.fromkeys((*own, *(called for identity in own for called in entities_inside(identity)))))

    return find_with_bodies


def part_origins(ir: Artifact | None) -> Origins:
    """Origins of a fused node: the scheduler nodes it was made of."""
    ids = {entity.label: entity.id for entity in ir.entities} if ir else {}
    return lambda node: tuple(ids[name] for name in (node.parts or (node.name,)) if name in ids)
