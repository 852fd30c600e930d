"""Scheduler nodes as artifacts: Inductor's loops and extern calls, before and after fusion."""

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
    """Artifact of scheduler nodes, in schedule order. An entity's `inputs` are the nodes whose buffers it reads."""
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
    """A function that maps names of FX nodes to their ids in the post-grad graph."""
    ids = {entity.label: entity.id for entity in post_grad.entities} if post_grad else {}
    return lambda origins: tuple(ids[name] for name in origins if name in ids)


def lowered_origins(post_grad: Artifact | None, nodes: Sequence[IrFacts]) -> Origins:
    """A function that returns a scheduler node's origins in the post-grad graph.

    The origins of a higher-order operator include the nodes in its subgraphs, as in a template with a score_mod, unless
    these are lowered to scheduler nodes of their own.
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
    """A function that returns a fused node's origins: the scheduler nodes that it consists of."""
    ids = {entity.label: entity.id for entity in ir.entities} if ir else {}
    return lambda node: tuple(ids[name] for name in (node.parts or (node.name,)) if name in ids)
