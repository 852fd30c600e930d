"""Drawings for print: chips for inputs and outputs, frames for modules, and closed modules in large graphs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from compiler.record import Artifact, Entity, Record
from explorer.render.drawing import Box, drawing, plan, short_op
from tests.explorer.explored import mlp_record
from tests.explorer.golden import assert_golden
from tests.explorer.small_record import small_record, tensor

CAPTURED = "captured[0/0]"


def boxes(record: Record, name: str, depth: int | None = None, readable: int = 80) -> dict[str, Box]:
    found = plan(record, record[name], depth, readable).boxes
    return {box_id.removeprefix(f"{record[name].id}."): box for box_id, box in found.items()}


def call(name: str, inputs: str = "", module: str | None = None, target: str = "aten.relu.default") -> Entity:
    attrs = tensor(4, target=target) | ({} if module is None else {"module": module, "module_type": "Block"})
    return Entity(f"{CAPTURED}.{name}", "call", name, attrs, tuple(f"{CAPTURED}.{used}" for used in inputs.split()))


def record_with(*entities: Entity) -> Record:
    artifact = Artifact(CAPTURED, "captured", "captured", "python", "", "0/0", entities=entities)
    return replace(small_record(), artifacts=(artifact,))


def test_dot_source_is_golden() -> None:
    assert_golden("drawing_forward.dot", drawing(small_record(), small_record()["forward"]).source.rstrip("\n"))


def test_inputs_and_outputs_are_chips_and_not_boxes() -> None:
    drawn = boxes(small_record(), "forward")
    assert list(drawn) == ["mm", "div"]
    assert [(chip.kind, chip.label) for chip in drawn["mm"].takes.values()] == [("input", "x"), ("input", "w")]
    assert [chip.kind for chip in drawn["div"].gives] == ["output", "saved"]


def test_backward_shows_tangents_and_saved_tensors() -> None:
    drawn = boxes(small_record(), "backward")
    assert [(chip.kind, chip.label) for chip in drawn["mul"].takes.values()] == [
        ("input", "tangents_1"),
        ("saved", "div"),
    ]


def test_parameters_have_their_module_attribute_names() -> None:
    drawn = boxes(mlp_record(), "captured")
    first = next(iter(drawn.values()))
    assert [(chip.kind, chip.label, chip.type) for chip in first.takes.values()] == [
        ("input", "x", "f32[32, 64]"),
        ("parameter", "weight", "f32[128, 64]"),
        ("parameter", "bias", "f32[128]"),
    ]


@pytest.mark.parametrize(
    ("source", "kind", "label"),
    [
        ("L['x']", "input", "x"),
        ("L['args'][0]", "input", "args[0]"),
        ("G['table']", "input", "table"),
        ("L['batch']['mask']", "input", "batch['mask']"),
        ("L['self']._modules['norm']._buffers['running_mean']", "parameter", "running_mean"),
        ("", "input", "arg"),
    ],
)
def test_inputs_have_their_user_names(source: str, kind: str, label: str) -> None:
    argument = Entity(f"{CAPTURED}.arg", "placeholder", "arg", tensor(4, source=source))
    (chip,) = boxes(record_with(argument, call("a", "arg")), "captured")["a"].takes.values()
    assert (chip.kind, chip.label) == (kind, label)


def test_input_names_persist_in_later_stages() -> None:
    takes = [chip.label for box in boxes(mlp_record(), "forward").values() for chip in box.takes.values()]
    assert sorted(set(takes)) == ["bias", "weight", "x"]


def test_every_op_and_every_flow_is_drawn() -> None:
    record = mlp_record()
    calls = [entity for entity in record["forward"].entities if entity.kind == "call"]
    found = plan(record, record["forward"])
    assert found.entities == len(found.boxes) == len(calls)
    ids = {entity.id for entity in calls}
    flows = {(source, entity.id) for entity in calls for source in entity.inputs if source in ids}
    assert set(found.edges) == flows


def test_depth_collapses_modules() -> None:
    drawn = boxes(mlp_record(), "captured", depth=0)
    assert list(drawn) == ["module hidden", "module deeper", "module head"]
    assert [box.closed for box in drawn.values()] == [3, 3, 1]
    assert drawn["module head"].module_type == "Linear"
    assert drawn["module hidden"].type == "f32[32, 128]"


def test_large_drawing_collapses_modules_to_fit() -> None:
    record = mlp_record()
    found = plan(record, record["captured"], readable=3)
    assert len(found.boxes) == 3
    assert "modules closed below depth" in drawing(record, record["captured"], readable=3).source
    assert plan(record, record["captured"], readable=7).depth is None


def test_outermost_op_stays_outside_modules() -> None:
    record = record_with(call("a", module="h.1.mlp"), call("outer", "a", module=""))
    assert boxes(record, "captured")["outer"].module == ()


def test_views_are_dashed() -> None:
    record = record_with(call("v", target="aten.view.default"), call("r", "v"))
    source = drawing(record, record["captured"]).source
    assert source.count("ROUNDED,DASHED") == 1


def test_names_from_user_code_are_escaped() -> None:
    record = record_with(call("v", target="<b>&"), call("r:1", "v", module='<i>.".a'))
    source = drawing(record, record["captured"]).source
    assert "&lt;b&gt;&amp;" in source
    assert "<b>" not in source
    assert "<i>" not in re.sub(r'"[^"]*"', "", source)


def test_text_artifact_cannot_be_drawn() -> None:
    record = small_record()
    with pytest.raises(ValueError, match=r"source\[cell\] is text, not a graph"):
        drawing(record, record["source"])


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("aten.mm.default", "mm"),
        ("aten.sum.dim_IntList", "sum"),
        ("torch.nn.functional.relu", "relu"),
        ("<built-in function linear>", "linear"),
        ("torch.ops.aten.cumsum.default", "cumsum"),
        ("unsqueeze", "unsqueeze"),
    ],
)
def test_short_names_of_ops(target: str, name: str) -> None:
    assert short_op(call("x", target=target)) == name


@pytest.mark.needs("dot")
@pytest.mark.parametrize("stage", ["captured", "joint", "forward", "backward", "ir", "fused_ir"])
def test_every_graph_stage_renders(stage: str) -> None:
    record = mlp_record()
    svg = drawing(record, record[stage]).pipe(format="svg", encoding="utf-8")
    nodes = ElementTree.fromstring(svg).findall('.//{http://www.w3.org/2000/svg}g[@class="node"]')
    assert len(nodes) == len(plan(record, record[stage]).boxes)


@pytest.mark.needs("dot")
def test_escaped_names_render() -> None:
    record = record_with(call("v", target="<b>&"), call("r:1", "v", module='<i>.".a'))
    assert b"&lt;b&gt;&amp;" in drawing(record, record["captured"]).pipe(format="svg")
