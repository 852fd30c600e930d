"""Scheduler nodes as artifacts: the loops and calls that Inductor works on, before and after fusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compiler.capture.sources import SourceBook
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
    if node.tensor is not None:
        attrs |= {
            "dtype": node.tensor.dtype,
            "shape": list(node.tensor.shape),
            "stride": list(node.tensor.stride),
            "device": node.tensor.device,
        }
    attrs |= {"reads": list(node.reads), "writes": list(node.writes), "moves": node.moves}
    if node.parts:
        attrs["parts"] = list(node.parts)
    return attrs


def fx_origins(post_grad: Artifact | None, book: SourceBook) -> FxOriginIds:
    """Ids of the nodes in the post-grad graph, and of the lines of Python where nodes of a branch come from."""
    ids = {entity.label: entity.id for entity in post_grad.entities} if post_grad else {}

    def found(origins: FxOrigins) -> tuple[str, ...]:
        nodes = (ids[name] for name in origins.nodes if name in ids)
        return (*nodes, *(book.line(place.file, place.line) for place in origins.places))

    return found


def part_origins(ir: Artifact | None) -> Origins:
    """Origins of a fused node: the scheduler nodes it was made of."""
    ids = {entity.label: entity.id for entity in ir.entities} if ir else {}
    return lambda node: tuple(ids[name] for name in (node.parts or (node.name,)) if name in ids)
