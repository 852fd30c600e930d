"""Scheduler nodes as artifacts: the loops and calls that Inductor works on, before and after fusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compiler.record import Artifact, Entity
from compiler.torch_api.inductor import IrFacts

Origins = Callable[[IrFacts], tuple[str, ...]]


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
        text += [*body, "", ""]
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
    attrs |= {"reads": list(node.reads), "writes": list(node.writes)}
    if node.parts:
        attrs["parts"] = list(node.parts)
    return attrs


def fx_origins(post_grad: Artifact | None) -> Origins:
    """Origins of a scheduler node in the post-grad graph."""
    ids = {entity.label: entity.id for entity in post_grad.entities} if post_grad else {}
    return lambda node: tuple(ids[name] for name in node.fx if name in ids)


def part_origins(ir: Artifact | None) -> Origins:
    """Origins of a fused node: the scheduler nodes it was made of."""
    ids = {entity.label: entity.id for entity in ir.entities} if ir else {}
    return lambda node: tuple(ids[name] for name in (node.parts or (node.name,)) if name in ids)
