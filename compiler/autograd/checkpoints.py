"""The checkpoint (torch.utils.checkpoint) of each node of AOTAutograd's graphs, and why it is recomputed.

TorchDynamo captures a checkpointed function as a subgraph, and the nodes traced from it refer to that subgraph. torch
numbers checkpoints over the whole process (`ac_graph_id`); here they are numbered from 1 in each capture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch.fx import GraphModule, Node

from compiler.capture.sources import SourceBook
from compiler.record import Artifact, Entity
from compiler.torch_api import fx

_TAG = re.compile(r"# ac_graph_id: (\d+)(?: - (\w+))? *(?:Backward of forward node: )?")
"""torch's comment on a checkpointed node. Since torch 2.14, nodes of a backward have the last part."""
_SELECTIVE = "its context_fn lets this be recomputed ({policy})"
_PLAIN = "it saves the inputs of its function alone"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One call of torch.utils.checkpoint, with a label such as "checkpoint 2, model.py:31".

    `selective` says whether it has a context_fn, which selects the values to save.
    """

    label: str
    selective: bool


class Checkpoints:
    """The checkpoints of one captured graph, looked up by nodes traced from their subgraphs."""

    def __init__(self, captured: GraphModule, book: SourceBook) -> None:
        self._known: dict[int, Checkpoint] = {}
        self._count = 0
        for body in fx.bodies(captured):
            found = self._checkpoint(body, book) or self._known.get(id(body.holder.graph))
            if found is not None:
                self._known[id(body.module.graph)] = found

    def _checkpoint(self, body: fx.Body, book: SourceBook) -> Checkpoint | None:
        call = next((node for node in body.callers if fx.is_checkpoint(node)), None)
        if call is None:
            return None
        self._count += 1
        path, _ = fx.module_path(call)
        places = [f"{book.name(frame.file)}:{frame.line}" for frame in fx.source_frames(call)[-1:]]
        label = f"checkpoint {self._count}{f' of {path}' if path else ''}"
        return Checkpoint(", ".join([label, *places]), fx.is_selective(body.module))

    def checkpoint_of(self, node: Node) -> Checkpoint | None:
        """The innermost checkpoint around a node, or None."""
        return next((self._known[graph] for _, graph in fx.sources(node) if graph in self._known), None)

    def reason_of(self, node: Node) -> str:
        """The reason why the backward recomputes a node; "" if no checkpoint causes it."""
        found, policy = self.checkpoint_of(node), fx.checkpoint_policy(node)
        if found is None or not policy:
            return ""
        return f"recomputed: {found.label}: {_SELECTIVE.format(policy=policy) if found.selective else _PLAIN}"

    def mark(self, artifact: Artifact, module: GraphModule, *, backward: bool) -> Artifact:
        """The artifact, with the checkpoint of each node added to the entities and the text.

        In a backward graph these nodes are marked as recomputed.
        """
        known = {node: found for node in fx.calls(module) if (found := self.checkpoint_of(node))}
        if not known:
            return artifact
        by_name = {node.name: found for node, found in known.items()}
        by_id = {entity.id: by_name[entity.label] for entity in artifact.entities if entity.label in by_name}
        entities = tuple(
            _with_label(entity, by_id[entity.id].label if entity.id in by_id else "") for entity in artifact.entities
        )
        rows = artifact.text.split("\n")
        for number, found in _tagged_rows(rows, artifact, by_id):
            rows[number] = _TAG.sub(partial(_words, found, "Recomputed:" if backward else "In"), rows[number])
        return replace(artifact, text="\n".join(rows), entities=entities)


def _tagged_rows(
    rows: Sequence[str], artifact: Artifact, by_id: Mapping[str, Checkpoint]
) -> Iterator[tuple[int, Checkpoint]]:
    """Row numbers of torch's tags, each with the innermost checkpoint of the node below (a tag has the outermost)."""
    found = Checkpoint("a checkpoint", selective=True)
    for number in reversed(range(len(rows))):
        here = (by_id[name] for name in artifact.lines.get(number + 1, ()) if name in by_id)
        found = next(here, found)
        if _TAG.search(rows[number]):
            yield number, found


def _words(found: Checkpoint, verb: str, tag: re.Match[str]) -> str:
    policy = f" ({tag[2]})" if tag[2] and found.selective else ""
    return f"# {verb} {found.label}{policy}. "


def _with_label(entity: Entity, label: str) -> Entity:
    if not label:
        return entity
    attrs = entity.attrs | {"checkpoint": label}
    if attrs.get("role") == "recomputed":
        attrs["role"] = f"recomputed: {label}"
    return replace(entity, attrs=attrs)
