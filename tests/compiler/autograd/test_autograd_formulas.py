"""Each rule of the table gives autograd's numbers, on random float64 inputs."""

from __future__ import annotations

import pytest
import torch

from compiler.autograd.formulas import IN_WORDS, RULES, Local, rule_of
from compiler.torch_api import autograd_nodes
from tests.compiler.autograd.autograd_cases import CASES, called


def test_every_rule_has_a_case_at_least_sixty() -> None:
    assert set(RULES) == set(CASES)
    assert len(RULES) >= 60


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_rule_matches_autograd(name: str, seed: int) -> None:
    out, _ = called(name, seed)
    node = out.grad_fn
    assert node is not None
    assert node.name() == name
    grads = gradients(node, out, seed)
    expected = autograd_nodes.apply(node, grads)
    found = RULES[name].vjp(Local(autograd_nodes.saved_values(node), grads, autograd_nodes.inputs_of(node)))
    wanted = [each for each in expected if each is not None]
    assert wanted
    # torch's kernel for the CPU holds the 1/6 of hardsigmoid in float32, for float64 tensors too.
    rtol = 1e-7 if name == "HardsigmoidBackward0" else 1e-9
    torch.testing.assert_close([each for each in found if each is not None], wanted, rtol=rtol, atol=1e-11)


def gradients(node: object, out: torch.Tensor, seed: int) -> list[torch.Tensor | None]:
    """A random gradient for the result, and none for the others of the node."""
    draw = torch.Generator().manual_seed(100 + seed)
    grad = torch.randn(out.shape, generator=draw, dtype=torch.float64).to(out.dtype)
    return [grad if slot == out.output_nr else None for slot in range(len(autograd_nodes.outputs_of(node)))]


def test_opaque_nodes_are_explained_without_numbers() -> None:
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    y = x * 1
    y[0] = x[1] * 2
    node = y.grad_fn
    assert node is not None
    rule = rule_of(node.name().removeprefix("torch::autograd::"))
    assert rule is IN_WORDS["CopySlices"]
    local = Local({}, [torch.ones(3, 2)], autograd_nodes.inputs_of(node))
    assert rule.vjp(local) == (None, None)
    grad = torch.randn(3, 2, dtype=torch.float64)
    kept = grad.clone()
    kept[0] = 0  # by the formula: 0 where it was overwritten, and the write's own rule for the written value
    kept[1] += grad[0] * 2
    torch.testing.assert_close(torch.autograd.grad(y, x, grad)[0], kept)


def test_functionalized_view_copy_uses_the_view_rule() -> None:
    assert rule_of("DiagonalBackward0_copy") is RULES["DiagonalBackward0"]
    assert rule_of("NoSuchBackward0") is None
