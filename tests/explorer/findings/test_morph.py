"""From the eager graph to the compiled one: states equal the record's graphs, origins, layout, frames and page."""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from torch.nn import functional

from compiler.record import Entity, Record
from explorer import explore
from explorer.findings.morph.layout import pictures_of
from explorer.findings.morph.state import Node, State
from explorer.findings.morph.states import MorphError, states_of
from explorer.run.morph import Morph
from tests.explorer.explored import broken_record, mlp_record
from tests.explorer.small_record import small_record

SAVED = Path(__file__).parents[1] / "run/saved"
PAGE_BYTES = 300_000
NO_NODES = ("output", "subgraph", "subgraph_input", "subgraph_output")


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.first(x))).mean((2, 3))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(16), nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.inner(self.norm(x)).chunk(3, -1)
        return x + torch.softmax(query @ key.mT, -1) @ value


def training_loss(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(torch.tanh(x @ w), target)


@cache
def record_of(name: str) -> Record:
    torch.manual_seed(0)
    if name == "conv":
        return explore(Conv(), torch.randn(2, 3, 8, 8)).record
    if name == "attention":
        return explore(Attention(), torch.randn(2, 8, 16)).record
    if name == "loss":
        w, target = torch.randn(8, 5, requires_grad=True), torch.tensor([1, 0, 4])
        return explore(training_loss, torch.randn(3, 8), w, target, backend="tcompile").record
    return mlp_record()


NAMES = ("mlp", "conv", "attention", "loss")


def entities(record: Record, *stages: str) -> list[Entity]:
    found = [entity for stage in stages for each in record.of_stage(stage) for entity in each.entities]
    return [entity for entity in found if entity.kind not in NO_NODES]


def by_key(record: Record) -> dict[str, State]:
    return {state.key: state for state in states_of(record)}


@pytest.mark.parametrize("name", NAMES)
def test_states_have_the_nodes_of_the_graphs(name: str) -> None:
    record = record_of(name)
    states = by_key(record)
    lowered = entities(record, "post_grad") or entities(record, "lowered")
    for key, expected in {
        "eager": entities(record, "autograd"),
        "joint": entities(record, "joint"),
        "cut": entities(record, "forward", "backward"),
        "decomposed": lowered,
    }.items():
        assert [node.id for node in states[key].nodes] == [entity.id for entity in expected], key
    launches = [node for node in states["fused"].nodes if node.kind in ("kernel", "extern")]
    assert len(launches) == states["fused"].counts.launches == sum(kernel.calls for kernel in record.kernels)
    assert states["fused"].counts.data == sum(entity.kind == "placeholder" for entity in lowered)
    loops = entities(record, "fused_ir") or [node for node in entities(record, "scheduled") if "moves" in node.attrs]
    assert states["fused"].counts.moved == sum(node.attrs["bytes"] for node in loops)


@pytest.mark.parametrize("name", NAMES)
def test_each_node_has_an_origin_or_is_new(name: str) -> None:
    before: tuple[Node, ...] = ()
    for state in states_of(record_of(name)):
        known = {node.id for node in before}
        used = {origin for node in state.nodes for origin in node.origins}
        assert used | set(state.gone) == known
        assert not used & set(state.gone)
        ids = {node.id for node in state.nodes}
        assert {end for edge in state.edges for end in edge} <= ids
        if state.key == "joint":  # autograd does not know what needs no gradient
            assert all(node.kind == "input" or node.title == "add" for node in state.nodes if not node.origins)
        elif before:
            assert state.new == ()
        before = state.nodes


def test_operations_split_and_melt() -> None:
    states = by_key(record_of("attention"))
    softmax = next(node for node in states["eager"].nodes if node.title == "softmax")
    parts = [node for node in states["joint"].nodes if softmax.id in node.origins]
    assert {"exp", "amax", "sum", "div"} <= {node.title for node in parts if node.lane == "forward"}
    assert any(node.lane == "backward" for node in parts)
    product = next(node for node in states["joint"].nodes if node.title == "bmm")
    assert [origin.partition("].")[2] for origin in product.origins] == ["bmm"]
    assert product.inferred
    fused = [node for node in states["fused"].nodes if node.kind == "kernel"]
    assert max(len(node.origins) for node in fused) > 3
    assert not any(node.inferred for node in fused)


def test_saved_values_are_on_the_cut() -> None:
    record = record_of("attention")
    cut = by_key(record)["cut"]
    saved = [node for node in cut.nodes if node.kind == "saved"]
    backward = record.of_stage("backward")[0].entities
    assert len(saved) == sum(entity.attrs.get("role") == "saved by the forward" for entity in backward)
    *_, joint, picture = pictures_of(states_of(record)[:3])
    assert joint.cut is None
    assert {picture.boxes[node.id].x for node in saved} == {picture.cut}
    lanes = {node.id: node.lane for node in cut.nodes}
    assert all((lanes[a], lanes[b]) == ("forward", "backward") for a, b in cut.edges if lanes[a] != lanes[b])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "cut"])
def test_saved_bytes_are_those_of_torchs_hooks(compiled: bool) -> None:
    net, x = nn.Sequential(nn.Linear(256, 4), nn.Tanh(), nn.Linear(4, 4), nn.Sigmoid()), torch.randn(64, 256)
    own, kept = {value.data_ptr() for value in net.parameters()}, {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    call = torch.compile(net, backend="aot_eager", dynamic=False) if compiled else net
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call(x)
    run = explore(net, x, stages="autograd,joint,forward,backward", dynamic=False)  # other tests compile nn.Sequential
    state = by_key(run.record)["cut" if compiled else "eager"]
    assert state.counts.saved == sum(size for place, size in kept.items() if place not in own)
    assert state.words.endswith("include inputs, but not leaves (parameters).")
    del result


@pytest.mark.parametrize("name", NAMES)
def test_boxes_do_not_overlap(name: str) -> None:
    for picture in pictures_of(states_of(record_of(name))):
        boxes = list(picture.boxes.values())
        for index, first in enumerate(boxes):
            for second in boxes[index + 1 :]:
                apart_x = abs(first.x - second.x) >= (first.w + second.w) / 2 - 1e-6
                assert apart_x or abs(first.y - second.y) >= (first.h + second.h) / 2 - 1e-6
        assert max(abs(box.x) + box.w / 2 for box in boxes) <= picture.width / 2 + 1e-6
        assert max(abs(box.y) + box.h / 2 for box in boxes) <= picture.height / 2 + 1e-6


def test_graph_without_gradients_has_no_joint_state() -> None:
    morph = Morph(broken_record(), "1/0")
    assert sorted(morph.graphs) == ["0/0", "1/0"]
    assert [state.key for state in morph.states] == ["eager", "cut", "decomposed", "fused"]
    assert [node.title for node in morph.states[0].nodes if node.kind == "op"] == ["sin", "add"]
    assert "nothing to cut" in str(morph)
    with pytest.raises(ValueError, match=r"no graph '7/0' in this run; it has: ./0, ./0"):
        Morph(broken_record(), "7/0")


def test_record_without_graphs_says_why() -> None:
    with pytest.raises(MorphError, match="no graph of AOTAutograd"):
        states_of(small_record().with_fields(artifacts=()))


def test_page_and_frames_are_written(tmp_path: Path) -> None:
    morph = Morph(record_of("attention"))
    page = morph.save(tmp_path / "morph.html")
    assert page.stat().st_size < PAGE_BYTES
    assert morph.page() == Morph(record_of("attention")).page()
    with pytest.raises(ValueError, match=re.escape("does not end in '.html'")):
        morph.save(tmp_path / "morph.svg")
    paths = morph.frames(tmp_path / "slides", between=1, theme="dark")
    assert [path.name for path in paths] == [f"frame_{number}.svg" for number in range(9)]
    shapes = [len(ElementTree.parse(path).findall(".//{*}g/{*}rect")) for path in paths]
    assert shapes[::2] == [len(state.nodes) for state in morph.states]
    assert shapes[1::2] == [len(moves) for moves in morph.film.moves]
    assert "joint" in "".join(ElementTree.parse(paths[2]).getroot().itertext())


def test_bytes_of_symbolic_sizes_are_unknown() -> None:
    record = Record.from_json(gzip.decompress((SAVED / "training.json.gz").read_bytes()))
    states = {state.key: state for state in states_of(record, "0/1")}
    assert [states[key].counts.moved for key in ("joint", "cut", "decomposed")] == [None, None, None]
    assert states["cut"].counts.saved is None
