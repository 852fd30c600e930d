"""Gradients that stop, and derivatives that are differentiated again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from compiler.autograd.chain import ChainStep, chain_steps
from compiler.autograd.eager_graph import EagerGraph
from compiler.autograd.explore import autograd_record
from compiler.autograd.recording import Recording
from compiler.autograd.stage import restore_inputs
from compiler.engine import explore
from compiler.record import Record
from compiler.record.options import Options
from tests.compiler.autograd.autograd_cases import graph_of


def recorded(function: Callable[[], Tensor]) -> tuple[Tensor, EagerGraph, Record]:
    frame = sys._getframe(1)
    recording = Recording(frame, values=True)
    with recording:
        value = function()
    return value, graph_of([value], recording, frame), autograd_record([value], recording=recording, frame=frame)


def steps_of(value: Tensor, graph: EagerGraph) -> dict[tuple[str, str], ChainStep]:
    return {(step.direction, step.node): step for step in chain_steps(graph, [value])}


def test_detached_target_is_shown_at_the_loss() -> None:
    net, x = nn.Linear(2, 2), torch.randn(3, 2)

    def loss() -> Tensor:
        q = net(x)
        target = (q.amax(1) * 0.9).detach()
        return functional.mse_loss(q[:, 0], target + 1)

    value, graph, record = recorded(loss)
    (stop,) = graph.stops
    assert (stop.name, stop.stop.kind, stop.takers, stop.source) == ("detach", "detached", ("mse_loss",), "mul")
    entity = record["autograd"].entity("detach")
    assert entity.attrs["code"] == "target = (q.amax(1) * 0.9).detach()"
    assert "cut off from mul by detach()" in entity.attrs["notes"]
    assert entity.inputs == ("autograd.mse_loss",)
    assert "#   no gradient to detach: detached from mul at" in record["autograd"].text
    step = steps_of(value, graph)["backward", "mse_loss"]
    assert [(each.name, each.kind) for each in step.stops] == [("detach", "detached")]


def test_detach_inside_the_graph_names_its_source_node() -> None:
    x = torch.randn(3, requires_grad=True)

    def straight_through() -> Tensor:
        soft = x.sigmoid()
        hard = (soft > 0.5).float()
        return (soft + (hard - soft).detach()).sum()

    _, graph, _ = recorded(straight_through)
    (stop,) = graph.stops
    assert stop.source == "sub"
    assert stop.takers == ("add",)


def test_no_grad_target_network_is_shown() -> None:
    online, target, x = nn.Linear(2, 2), nn.Linear(2, 2), torch.randn(3, 2)

    def loss() -> Tensor:
        with torch.no_grad():
            goal = 1 + 0.9 * target(x).amax(1)
        return functional.mse_loss(online(x)[:, 0], goal)

    _, graph, record = recorded(loss)
    (stop,) = graph.stops
    assert (stop.name, stop.stop.kind, stop.takers) == ("no_grad", "no_grad", ("mse_loss",))
    assert record["autograd"].entity("no_grad").attrs["code"] == "goal = 1 + 0.9 * target(x).amax(1)"
    assert "computed under torch.no_grad()" in record["autograd"].text


class Frozen(nn.Module):
    """A frozen embedding and a frozen layer, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4).requires_grad_(False)
        self.middle = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)
        self.head.weight.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(torch.relu(self.middle(self.embed(ids))))).sum()


def test_frozen_parameters_are_named_at_their_users() -> None:
    model, ids = Frozen(), torch.tensor([1, 2, 3])
    value, graph, record = recorded(lambda: model(ids))
    takers = {stop.name: stop.takers for stop in graph.stops}
    assert takers == {
        "embed.weight": ("native_layer_norm",),
        "middle.weight": ("native_layer_norm",),
        "middle.bias": ("native_layer_norm",),
        "head.weight": ("addmm",),
    }
    assert {stop.stop.kind for stop in graph.stops} == {"frozen"}
    assert record["autograd"].entity("head.weight").attrs["module"] == "head"
    assert record["autograd"].entity("embed.weight").attrs["notes"].startswith("no gradient goes here: frozen")
    assert Record.from_json(record.to_json()) == record
    steps = steps_of(value, graph)
    assert [each.name for each in steps["backward", "addmm"].stops] == ["head.weight"]
    assert {step.node for step in steps.values() if step.direction == "leaf"} == {
        "head.bias", "norm.weight", "norm.bias",
    }  # fmt: skip


def test_no_grad_beside_a_frozen_parameter_is_shown() -> None:
    net, scale, x = nn.Linear(2, 2), nn.Parameter(torch.ones(2), requires_grad=False), torch.randn(3, 2)

    def loss() -> Tensor:
        q = net(x)
        with torch.no_grad():
            goal = q * scale
        return functional.mse_loss(q, goal)

    _, graph, _ = recorded(loss)
    assert {stop.name: stop.stop.kind for stop in graph.stops} == {"no_grad": "no_grad", "scale": "frozen"}


def test_buffers_masks_and_integer_tensors_are_no_stops() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)), torch.randn(4, 3)

    def loss() -> Tensor:
        return (model(x) * torch.arange(3)).sum()

    assert recorded(loss)[1].stops == ()


def penalty_of(critic: nn.Module, x: Tensor) -> Tensor:
    """The gradient penalty of WGAN-GP (Gulrajani et al., 2017, https://arxiv.org/abs/1704.00028)."""
    score = critic(x).sum()
    (slope,) = torch.autograd.grad(score, x, create_graph=True)
    return ((slope.norm(dim=1) - 1) ** 2).mean()


def test_gradient_penalty_nodes_name_their_derivative() -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(3, 2, requires_grad=True)
    value, graph, record = recorded(lambda: penalty_of(critic, x))
    parts = {node.name: node.derivative_of for node in graph.nodes if node.derivative_of}
    assert parts["tanh_backward"] == "tanh"
    assert set(parts.values()) == {"tanh", "addmm"}
    entity = record["autograd"].entity("tanh_backward")
    assert entity.attrs["derivative_of"] == "tanh"
    assert entity.attrs["module"] == "1"
    assert "torch.autograd.grad(score, x, create_graph=True)" in entity.attrs["code"]
    lines = {origin.rpartition(".L")[2] for origin in entity.origins}
    forward = {origin.rpartition(".L")[2] for origin in record["autograd"].entity("tanh").origins}
    assert forward < lines, "it is linked to the forward line and to that of the backward pass"
    assert f"Of these {len(parts)} were made by a backward pass with create_graph=True" in record["autograd"].text
    assert "part of the derivative of tanh" in record["autograd"].text
    steps = steps_of(value, graph)
    assert "double backward" in steps["backward", "tanh_backward"].note
    leaves = [node for node in graph.nodes if node.leaf is not None]
    found = torch.autograd.grad(penalty_of(critic, x), [node.leaf for node in leaves if node.leaf is not None])
    for node, gradient in zip(leaves, found, strict=True):
        shown = steps["leaf", node.name].gradient
        assert shown is not None
        assert torch.equal(torch.tensor(shown.numbers), gradient)


def test_unrecorded_backward_leaves_no_mark() -> None:
    x = torch.randn(3, requires_grad=True)

    def loss() -> Tensor:
        (slope,) = torch.autograd.grad(x.exp().sum(), x)
        return (x * slope).sum()

    _, graph, _ = recorded(loss)
    assert not any(node.derivative_of for node in graph.nodes)


def test_hooks_of_the_first_pass_are_removed() -> None:
    x = torch.randn(3, requires_grad=True)
    kept: list[Any] = []

    def loss() -> Tensor:
        y = x.tanh().sum()
        kept.append(y.grad_fn)
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return slope.sum()

    _, graph, _ = recorded(loss)
    assert any(node.derivative_of == "tanh" for node in graph.nodes)
    from compiler.torch_api import autograd_nodes

    assert autograd_nodes.node_hooks(kept[0]) == ()


@pytest.mark.parametrize("backend", ["inductor", "tcompile"])
@pytest.mark.parametrize("check", [False, True], ids=["captured", "compiled"])
def test_autograd_stage_stops_originate_from_captured_nodes(backend: str, check: bool) -> None:
    """With `--check` the compiled code runs, and autograd sees it as one node."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4).requires_grad_(False)
            self.online, self.target = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, ids: Tensor) -> Tensor:
            h = self.embed(ids)
            q = self.online(h)
            with torch.no_grad():
                goal = self.target(h)
            return functional.mse_loss(q, goal) + (q * q.sigmoid().detach()).mean()

    options = Options(backend=backend, check=check, target="cpu" if check else "")
    record = explore(Mixed(), (torch.tensor([1, 2]),), options=options).record
    stops = {entity.label: entity for entity in record["autograd"].entities if entity.kind == "stop"}
    assert {name: stop.attrs["stops"] for name, stop in stops.items()} == {
        "embed.weight": "frozen", "no_grad": "no_grad", "detach": "detached",
    }  # fmt: skip
    captured = {entity.id: entity for entity in record["captured"].entities}
    assert captured[stops["detach"].origins[0]].attrs["target"] == "detach"
    assert captured[stops["no_grad"].origins[0]].attrs["code"] == "goal = self.target(h)"
    assert captured[stops["embed.weight"].origins[0]].kind == "placeholder"
    assert not [problem for problem in record.problems if problem.stage == "autograd"]


def test_tensors_mutated_by_a_rerun_are_restored() -> None:
    buffer, leaf = torch.ones(4), torch.ones(4, requires_grad=True)
    inner = leaf * 2
    made_by = inner.grad_fn
    with restore_inputs([buffer, leaf, inner, 3]) as given:
        given[0].add_(1)
        with torch.no_grad():
            given[1].mul_(3)
        given[2].sin_()
        assert given[3] == 3
    assert torch.equal(buffer, torch.ones(4))
    assert torch.equal(leaf, torch.ones(4))
    assert torch.equal(inner, torch.full((4,), 2.0))
    assert inner.grad_fn is made_by
