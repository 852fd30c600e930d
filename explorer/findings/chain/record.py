"""The steps of the chain rule as an artifact: to read as text, and as the data that the live view goes through."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from compiler.autograd.chain import Arrival, ChainStep, Departure, Operand
from compiler.autograd.values import Value
from compiler.record import Artifact, Entity
from explorer.findings.chain.finding import STAGE
from explorer.findings.chain.text import blocks, density, is_diagonal
from explorer.reading.provenance import place_text
from explorer.reading.shapes import tensor_type
from explorer.render.finding import LinkedText

CELLS = 60_000
"""So many numbers of Jacobians go into one view; of the others their size is told."""


def chain_artifact(title: str, steps: Sequence[ChainStep], note: str, graph: Artifact) -> Artifact:
    """`graph` is the artifact of the autograd graph, whose nodes the steps are of; each step is an entity."""
    nodes = {entity.label: entity for entity in graph.entities}
    entities = {step.index: _entity(step, nodes.get(step.node)) for step in steps}
    text = LinkedText()
    for block, step in blocks(title, steps, note):
        text.add(f"{block}\n", *([entities[step.index]] if step is not None else []))
    made = text.artifact(STAGE, f"the chain rule on {title}")
    room = _Room(CELLS)
    data = {"steps": [_step(step, entities[step.index], room) for step in steps], "note": note}
    told = {"count": len(steps), "health": graph.attrs.get("health", []), "sick": _sick(steps, nodes)}
    made.attrs.update(data | told)
    return made


def _sick(steps: Sequence[ChainStep], nodes: Mapping[str, Entity]) -> list[int]:
    """The steps in which a value, and a gradient, is first not finite."""
    kinds = {"forward": "value", "leaf": "value", "backward": "gradient"}
    made = {name: str(entity.attrs.get("not_finite_from_here", "")) for name, entity in nodes.items()}
    return [step.index for step in steps if kinds[step.direction] in made.get(step.node, "")]


def _entity(step: ChainStep, node: Entity | None) -> Entity:
    attrs = {"op": step.op, "rule": step.rule, "step": step.index} | dict(step.place)
    label = {"forward": step.node, "backward": f"d {step.node}", "leaf": f"{step.node}.grad"}[step.direction]
    origins = (node.id,) if node is not None else ()
    return Entity(f"{STAGE}.{step.direction}.{step.node}", step.direction, label, attrs, (), origins)


class _Room:
    """How many numbers of Jacobians may still be shown."""

    def __init__(self, left: int) -> None:
        self.left = left

    def takes(self, count: int) -> bool:
        fits = count <= self.left
        self.left -= count if fits else 0
        return fits


def _step(step: ChainStep, entity: Entity, room: _Room) -> dict[str, Any]:
    """JSON values only."""
    place = step.place
    return {
        "id": entity.id,
        "select": entity.origins[0] if entity.origins else entity.id,
        "direction": step.direction,
        "node": step.node,
        "op": step.op,
        "rule": step.rule,
        "forward": step.forward,
        "operands": [_operand(each) for each in step.operands],
        "settings": {name: str(value) for name, value in step.settings.items()},
        "value": value_data(step.value),
        "arrivals": [_arrival(each) for each in step.arrivals],
        "gradient": value_data(step.gradient),
        "departures": [_departure(each, room) for each in step.departures],
        "exact": step.adds_exactly,
        "stops": [asdict(stop) for stop in step.stops],
        "note": step.note,
        "where": place_text(place["file"], place["line"]) if "line" in place else "",
        "code": place.get("code", ""),
        "module": place.get("module", ""),
    }


def _operand(operand: Operand) -> dict[str, Any]:
    return {"name": operand.name, "source": operand.source, "value": value_data(operand.value)}


def _arrival(arrival: Arrival) -> dict[str, Any]:
    return {"name": arrival.name, "source": arrival.source, "value": value_data(arrival.value)}


def _departure(departure: Departure, room: _Room) -> dict[str, Any]:
    return {
        "name": departure.name,
        "target": departure.target,
        "formula": departure.formula,
        "value": value_data(departure.value),
        "derivative": value_data(departure.derivative),
        "jacobian": _jacobian(departure.jacobian, room),
        "error": departure.error,
    }


def _jacobian(jacobian: Value | None, room: _Room) -> dict[str, Any] | None:
    if jacobian is None:
        return None
    data = value_data(jacobian, shown=room.takes(jacobian.count)) or {}
    return data | {"diagonal": is_diagonal(jacobian), "density": density(jacobian)}


def value_data(value: Value | None, *, shown: bool = True) -> dict[str, Any] | None:
    """A value as JSON: what is not finite is a word, as JSON has no number for it."""
    if value is None:
        return None
    precise = value.dtype in ("float64", "complex128")
    return {
        "type": tensor_type({"dtype": value.dtype, "shape": value.shape}),
        "shape": list(value.shape),
        "count": value.count,
        "norm": _number(value.norm, precise),
        "low": _number(value.low, precise),
        "high": _number(value.high, precise),
        "zeros": value.zeros,
        "nans": value.nans,
        "infinite": value.infinite,
        "numbers": _numbers(value.numbers, precise) if shown else None,
    }


def _numbers(numbers: Any, precise: bool) -> Any:
    return [_numbers(each, precise) for each in numbers] if isinstance(numbers, tuple) else _number(numbers, precise)


def _number(number: Any, precise: bool) -> Any:
    """In as many digits as tell numbers of 32 bits apart, or all."""
    if isinstance(number, complex):
        return str(number)
    if not isinstance(number, float):
        return number
    if not math.isfinite(number):
        return str(number)
    return number + 0.0 if precise else float(f"{number:.9g}") + 0.0
