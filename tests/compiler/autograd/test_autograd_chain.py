"""The chain rule step by step, and the health of gradients: the numbers are torch's own, to the last bit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from compiler.autograd.backward_run import FreedGraphError, run_backward
from compiler.autograd.chain import ChainStep, chain_steps
from compiler.autograd.differences import differences
from compiler.autograd.health import NodeHealth, measure_health, summary
from compiler.autograd.recording import Recording
from compiler.autograd.values import Value
from tests.compiler.autograd.autograd_cases import graph_of


def chain(function: Callable[[], Tensor], frame: Any) -> tuple[Tensor, dict[tuple[str, str], ChainStep]]:
    recording = Recording(sys._getframe(), values=True)
    with recording:
        loss = function()
    steps = chain_steps(graph_of([loss], recording, frame), [loss], recording=recording)
    return loss, {(step.direction, step.node): step for step in steps}


class Net(nn.Module):
    """Two layers with many kinds of nodes between: a residual path, a norm, dropout, a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.gelu(self.first(x))
        h = h + functional.dropout(self.second(self.norm(h)), 0.3)
        return functional.cross_entropy(h, torch.tensor([0, 3]))


@pytest.fixture(scope="module")
def net() -> tuple[Net, Tensor, Sequence[ChainStep]]:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 3)
    recording = Recording(sys._getframe(), values=True)
    with recording:
        loss = model(x)
    return model, loss, chain_steps(graph_of([loss], recording), [loss], recording=recording)


def test_gradients_are_bit_identical_to_autograd(net: tuple[Net, Tensor, Sequence[ChainStep]]) -> None:
    model, loss, steps = net
    leaves = dict(model.named_parameters())
    expected = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), retain_graph=True), strict=True))
    found = {step.node: step.gradient for step in steps if step.direction == "leaf"}
    assert found == {name: Value.of_tensor(gradient) for name, gradient in expected.items()}
    assert all(value is not None and value.numbers is not None for value in found.values())
    assert all(parameter.grad is None for parameter in leaves.values())


def test_formulas_match_gradients_and_sums_are_exact(net: tuple[Net, Tensor, Sequence[ChainStep]]) -> None:
    backward = [step for step in net[2] if step.direction == "backward"]
    departures = [departure for step in backward for departure in step.departures]
    assert len(departures) > 10
    assert all(step.rule for step in backward)
    assert all(departure.error is not None and departure.error < 1e-6 for departure in departures)
    added = [step for step in net[2] if len(step.arrivals) > 1]
    assert added
    assert all(step.adds_exactly for step in added)


def test_outgoing_gradient_is_incoming_times_jacobian(
    net: tuple[Net, Tensor, Sequence[ChainStep]],
) -> None:
    checked = 0
    for step in net[2]:
        for departure in step.departures:
            assert step.gradient is not None
            assert departure.value is not None
            if departure.jacobian is not None:
                rows = torch.tensor(departure.jacobian.numbers).double()
                incoming = torch.tensor(step.gradient.numbers).double().reshape(-1)
                outgoing = torch.tensor(departure.value.numbers).double().reshape(-1)
                torch.testing.assert_close(incoming @ rows, outgoing, rtol=1e-5, atol=1e-6)
                checked += 1
    assert checked > 10


def test_forward_values_match_the_run(net: tuple[Net, Tensor, Sequence[ChainStep]]) -> None:
    forward = {step.node: step for step in net[2] if step.direction == "forward"}
    assert forward["nll_loss"].value == Value.of_tensor(net[1])
    gelu = forward["gelu"]
    assert gelu.value is not None
    assert gelu.operands[0].value is not None
    given = torch.tensor(gelu.operands[0].value.numbers)
    assert torch.equal(functional.gelu(given), torch.tensor(gelu.value.numbers))
    assert forward["log_softmax"].settings == {"dim": 1}


def test_finite_differences_agree_and_leave_state_unchanged() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    random = torch.get_rng_state()
    loss = model(x).square().mean()
    leaves: dict[str, Tensor] = dict(model.named_parameters())
    found = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    drawn = torch.get_rng_state()
    checked = differences(lambda: model(x).square().mean(), leaves, found, random)
    assert [each.leaf for each in checked] == list(leaves)
    assert all(each.error is not None and each.error < 1e-6 for each in checked)
    assert all(each.rounding is not None and each.rounding < 1e-5 for each in checked)
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_finite_differences_find_a_wrong_backward() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * ctx.saved_tensors[0]

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    found = torch.autograd.grad(Wrong.apply(x).sum(), x)[0]
    (checked,) = differences(lambda: Wrong.apply(x).sum(), {"x": x}, {"x": found})
    assert checked.error is not None
    assert abs(checked.error - 1) < 1e-6  # the gradient is 2x, and x was returned: off by the returned amount


def test_matrices_and_vectors_have_vector_jacobian_products() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    _, steps = chain(lambda: (w @ x).exp().sum(), sys._getframe())
    (departure,) = steps["backward", "mv"].departures
    expected = torch.autograd.functional.jacobian(lambda each: each @ x, w.detach())
    assert departure.formula == "grad ⊗ vec"
    assert departure.jacobian is not None
    assert departure.jacobian.shape == (2, 6)
    assert torch.equal(torch.tensor(departure.jacobian.numbers, dtype=torch.float64), expected.reshape(2, 6))
    exp = steps["backward", "exp"].departures[0]
    assert exp.derivative == steps["forward", "exp"].value


@pytest.mark.parametrize("call", [torch.log, torch.sqrt, torch.reciprocal])
def test_jacobian_of_an_elementwise_operation_is_diagonal_at_a_pole(call: Callable[[Tensor], Tensor]) -> None:
    """0 · inf is NaN in the node's product with a unit vector, also in torch.autograd.functional.jacobian."""
    x = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    _, steps = chain(lambda: call(x).sum(), sys._getframe())
    jacobian = steps["backward", call.__name__].departures[0].jacobian
    assert jacobian is not None
    single = [torch.autograd.grad(call(each), each)[0] for each in x.detach().requires_grad_().unbind()]
    assert torch.equal(torch.tensor(jacobian.numbers, dtype=torch.float64), torch.diag(torch.stack(single)))


def test_jacobian_of_a_broadcast_input_has_zeros_beside_infinite_factors() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    y = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    _, steps = chain(lambda: torch.div(x, y).exp().sum(), sys._getframe())
    jacobian = steps["backward", "div"].departures[0].jacobian
    assert jacobian is not None
    assert jacobian.numbers == ((1.0, 0.0), (0.0, math.inf), (1.0, 0.0), (0.0, 0.5))


def test_large_tensors_show_norms_unknown_rules_say_so() -> None:
    x = torch.randn(40, 40, requires_grad=True)
    _, steps = chain(lambda: torch.linalg.matrix_exp(x).tanh().sum(), sys._getframe())
    tanh = steps["backward", "tanh"]
    assert tanh.gradient is not None
    assert (tanh.gradient.shape, tanh.gradient.numbers, tanh.gradient.norm) == ((40, 40), None, 40.0)
    assert tanh.departures[0].jacobian is None
    inverse = steps["backward", "linalg_matrix_exp"]
    assert inverse.rule == ""
    assert inverse.departures[0].formula == ""
    assert inverse.departures[0].value is not None


def test_a_hook_that_changes_a_gradient_is_noticed() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)

    def tripled() -> Tensor:
        y = x * 2
        y.register_hook(lambda grad: grad * 3)
        return (y + y.sin()).sum()

    _, steps = chain(tripled, sys._getframe())
    step = steps["backward", "mul"]
    assert step.adds_exactly is False
    assert "a hook of yours changed" in step.note


def test_own_hooks_are_removed_freed_graph_is_reported() -> None:
    x = torch.randn(3, requires_grad=True)
    loss = x.sin().sum()
    graph = graph_of([loss], None, sys._getframe())
    run_backward(graph, [loss])
    assert all(node.hooks == () for node in graph_of([loss]).nodes)
    loss.backward()
    with pytest.raises(FreedGraphError, match=r"freed.*give the function"):
        run_backward(graph, [loss])
    assert all(node.hooks == () for node in graph_of([loss]).nodes)


def health(function: Callable[[], Tensor]) -> tuple[dict[str, NodeHealth], str]:
    recording = Recording(sys._getframe(), values=True)
    with recording:
        loss = function()
    graph = graph_of([loss], recording, sys._getframe(1))
    found = measure_health(graph, [loss], recording)
    return {each.node: each for each in found}, "\n".join(summary(found, graph, {}))


def test_the_first_nan_is_found_forward_and_backward() -> None:
    x = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
    found, told = health(lambda: (x.sqrt() * 0).mean(0))
    assert found["sqrt"].made == ("gradient",)
    assert "the first gradient that is not finite comes out of sqrt (SqrtBackward0): 1 NaN of 3 elements" in told
    assert "NaN or infinite numbers come to x." in told
    found, told = health(lambda: (x - 2).log().exp().sum())
    assert found["log"].made == ("value",)
    assert "Forward, the first that is not finite is the result of log (LogBackward0): 2 NaN of 3 elements" in told


def test_a_parameter_that_is_infinite_is_named() -> None:
    w = torch.tensor([1.0, float("inf")], requires_grad=True)
    _, told = health(lambda: (w * 0).mean(0))
    assert "Forward, the first that is not finite is the leaf w: 1 infinite of 2 elements." in told


def test_norms_and_zero_gradients_are_reported() -> None:
    x, w = torch.tensor([3.0, 4.0], requires_grad=True), torch.tensor([-1.0, -1.0], requires_grad=True)
    found, told = health(lambda: (x * x).sum() / 2 + (x.detach() * w).relu().sum())
    assert found["x"].gradient is not None
    assert found["x"].gradient.norm == 5.0
    assert found["x"].attrs()["gradient_zeros"] == 0.0
    assert "Only zeros come to w." in told
    assert "All gradients, and all results that are known, are finite." in told
