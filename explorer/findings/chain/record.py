"""The steps of the chain rule as an artifact: text, and the data of the live view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from compiler.autograd.chain import ChainStep
from compiler.autograd.values import Value
from compiler.record import Artifact, Entity
from explorer.findings.chain.finding import STAGE
from explorer.findings.chain.parts import step_card
from explorer.findings.chain.text import blocks
from explorer.findings.chain.values import Room
from explorer.render.document import payload
from explorer.render.finding import LinkedText

CELLS = 60_000
"""Maximum number of Jacobian entries in one view; further Jacobians are shown only by their size."""


def chain_artifact(
    title: str, steps: Sequence[ChainStep], note: str, graph: Artifact, program: Mapping[str, Any]
) -> Artifact:
    """Build the artifact of the chain rule; each step is an entity.

    `graph` is the artifact of the autograd graph, `program` the data of the living canvas.
    """
    nodes = {entity.label: entity for entity in graph.entities}
    entities = {step.index: _entity(step, nodes.get(step.node)) for step in steps}
    text = LinkedText()
    for block, step in blocks(title, steps, note):
        text.add(f"{block}\n", *([entities[step.index]] if step is not None else []))
    made = text.artifact(STAGE, f"the chain rule on {title}")
    room = Room(CELLS)
    data = {"cards": [_step(step, entities[step.index], room) for step in steps], "note": note, "program": program}
    told = {"count": len(steps), "health": graph.attrs.get("health", []), "sick": _sick(steps, nodes)}
    made.attrs.update(data | told)
    return made


def _sick(steps: Sequence[ChainStep], nodes: Mapping[str, Entity]) -> list[int]:
    """Positions of the steps in which a value or a gradient first becomes non-finite."""
    kinds = {"forward": "value", "leaf": "value", "backward": "gradient"}
    made = {name: str(entity.attrs.get("not_finite_from_here", "")) for name, entity in nodes.items()}
    return [at for at, step in enumerate(steps) if kinds[step.direction] in made.get(step.node, "")]


def _entity(step: ChainStep, node: Entity | None) -> Entity:
    attrs = {"op": step.op, "rule": step.rule, "step": step.index} | dict(step.place)
    label = {"forward": step.node, "backward": f"d {step.node}", "leaf": f"{step.node}.grad"}[step.direction]
    origins = (node.id,) if node is not None else ()
    return Entity(f"{STAGE}.{step.direction}.{step.node}", step.direction, label, attrs, (), origins)


def _step(step: ChainStep, entity: Entity, room: Room) -> dict[str, Any]:
    """Data of a step for the view: search text, norm, and card."""
    shown = step.value if step.direction == "forward" else step.gradient
    place = step.place
    return {
        "id": entity.id,
        "select": entity.origins[0] if entity.origins else entity.id,
        "direction": step.direction,
        "node": step.node,
        "said": " ".join(map(str, (step.node, step.op, step.rule, place.get("code", ""), place.get("module", "")))),
        "norm": _norm(shown),
        "formulas": [each.formula for each in step.departures],
        "card": msgspec.json.decode(msgspec.json.encode(payload([step_card(step, room)])["parts"][0])),
    }


def _norm(value: Value | None) -> float | str | None:
    """Norm of a value; "inf" if it has non-finite elements, None if unknown."""
    if value is None or value.norm is None:
        return None
    return "inf" if value.nans or value.infinite else float(f"{abs(value.norm):.9g}")
