"""Training calls, or their backwards, that need AOTAutograd's own methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo.compiled_autograd as compiled_autograd
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule

from compiler.backend.torch_glue.direct_training import WatchedTraining, convention
from tests.compiler.backend.torch_glue.direct_halves import Halves, grown, leaf, product


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


class Marked(Tensor):
    """A subclass that AOTAutograd had not seen when it compiled."""


@pytest.mark.parametrize("tangent", [torch.ones(4, 4).as_subclass(Marked), nn.Parameter(torch.ones(4, 4))])
def test_tangent_of_another_class_is_still_refused(tangent: Tensor) -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    halves, compiled = grown(product, x, w)
    told = []
    for fn in (torch.compile(product, backend=Halves()), compiled):
        with pytest.raises(RuntimeError, match="we guessed its\\nmetadata incorrectly") as caught:
            torch.autograd.grad(fn(x, w), (x, w), tangent)
        told.append(str(caught.value).partition(" in which ")[0])
    assert told[0] == told[1]
    assert halves.wrapped("forward") == [True, False]


@pytest.mark.parametrize("is_complex", [False, True])
def test_negative_or_conjugate_tangent_is_resolved(is_complex: bool) -> None:
    """Kernels read memory."""
    tangent = torch.randn(4, dtype=torch.complex64).conj() if is_complex else torch._neg_view(torch.randn(4))
    x = torch.randn(4, dtype=tangent.dtype, requires_grad=True)
    halves = Halves()
    seen: list[bool] = []
    halves.within = lambda given: seen.extend(value.is_neg() or value.is_conj() for value in given)
    for backend in (halves, "tcompile"):
        compiled = torch.compile(torch.sin, backend=backend)
        for _ in range(3):
            (found,) = torch.autograd.grad(compiled(x), x, tangent)
            torch.testing.assert_close(found, torch.autograd.grad(x.sin(), x, tangent)[0])
    assert halves.wrapped("backward") == [True] * 3
    assert seen
    assert not any(seen)


def test_double_backward_is_still_refused() -> None:
    for is_grown in (False, True):
        torch.compiler.reset()
        x, w = leaf(4, 4), leaf(4, 4)
        compiled = grown(product, x, w)[1] if is_grown else torch.compile(product, backend=Halves())
        (found,) = torch.autograd.grad((compiled(x, w) ** 2).sum(), x, create_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad((product(x, w) ** 2).sum(), x)[0])
        assert found.requires_grad
        with pytest.raises(RuntimeError, match="does not currently support double backward"):
            found.sum().backward()


def test_graph_that_enables_grad_itself() -> None:
    def on(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x.sin()

    x = leaf(4, 4)
    compiled = torch.compile(on, backend=Halves())
    for _ in range(3):
        with torch.no_grad():
            found = compiled(x)
            assert found.requires_grad
            assert not torch.is_grad_enabled()
        torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], x.detach().cos())


def test_compiled_in_saved_tensor_hooks_run_once() -> None:
    def double(value: Tensor) -> Tensor:
        return value * 2

    def half(value: Tensor) -> Tensor:
        return value / 2

    hooks = [torch.fx.symbolic_trace(hook) for hook in (double, half)]
    x = leaf(4, 4)
    halves = Halves()
    compiled = torch.compile(lambda x: x.sin().exp(), backend=halves)
    for _ in range(3):
        with saved_tensors_hooks(*hooks):
            output = compiled(x)
        torch.testing.assert_close(
            torch.autograd.grad(output.sum(), x)[0], torch.autograd.grad(x.sin().exp().sum(), x)[0]
        )
    assert halves.wrapped("forward") == [True] * 3


def test_deterministic_algorithms_enabled_after_the_forward() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    _, compiled = grown(product, x, w)
    loss = compiled(x, w).sum()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_backward_inside_a_transform_is_still_refused() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    halves, compiled = grown(product, x, w)
    output = compiled(x, w)
    with pytest.raises(RuntimeError, match="call a compiled backward function within vmap"):
        torch.func.vmap(lambda tangent: torch.autograd.grad(output, x, tangent))(torch.ones(2, 4, 4))
    assert halves.wrapped("forward") == [True, False]
    expected = torch.func.grad(lambda x: product(x, w).sum())(x)
    torch.testing.assert_close(torch.func.grad(lambda x: compiled(x, w).sum())(x), expected)


def test_forward_inside_a_transform_is_still_refused() -> None:
    """TorchDynamo calls no compiled forward there."""
    made: list[Callable[..., Any]] = []
    halves = Halves()

    def noted(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made.append(halves(module, inputs))
        return made[-1]

    x, w = leaf(4, 4), leaf(4, 4)
    compiled = torch.compile(product, backend=noted)
    for _ in range(2):
        compiled(x, w)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="functorch transforms"):
            torch.func.vmap(lambda x: made[0](x, w))(torch.ones(2, 4, 4, requires_grad=True))
    assert halves.wrapped("forward") == [True, False]


def test_compiled_autograd_compiles_the_backward() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    halves, compiled = grown(product, x, w)
    loss = compiled(x, w).sum()
    graphs: list[GraphModule] = []

    def noted(graph: GraphModule) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    with compiled_autograd._enable(noted):
        loss.backward()
    torch.testing.assert_close((x.grad, w.grad), torch.autograd.grad(product(x, w).sum(), (x, w)))
    assert any("aten.cos" in str(node.target) for node in graphs[0].graph.nodes), "the backward's steps are in it"
    assert halves.wrapped("backward") == [True], "the backward that was compiled before is not called"


def test_compiled_autograd_graph_of_eager_functions_compiles() -> None:
    """It gives its graph a list of inputs."""
    x, w = leaf(4, 4), leaf(4, 4)
    with compiled_autograd._enable(torch.compile(backend="tcompile")):
        product(x, w).sum().backward()
    torch.testing.assert_close((x.grad, w.grad), torch.autograd.grad(product(x, w).sum(), (x, w)))


def changed(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    x.mul_(2)
    return x @ w, x[0]


def viewed(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x @ w
    return y, y[0], w.t()


def gradient(outputs: Any, of: Tensor) -> Any:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = sum(output.sum() for output in outputs if output.requires_grad)
    return torch.autograd.grad(loss, of)[0].tolist()


@pytest.mark.parametrize("fn", [changed, viewed])
def test_mutations_and_views_keep_the_wrappers(fn: Callable[..., Any]) -> None:
    halves, w = Halves(), leaf(4, 4)
    compiled = torch.compile(fn, backend=halves)
    for _ in range(3):
        ours, theirs = torch.arange(16.0).view(4, 4), torch.arange(16.0).view(4, 4)
        found, expected = compiled(ours, w), fn(theirs, w)
        torch.testing.assert_close((ours, found), (theirs, expected))
        assert gradient(found, w) == gradient(expected, w)
    assert halves.wrapped("forward") == [True] * 3


def test_mutated_input_with_gradient_keeps_the_wrappers() -> None:
    def doubled(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return x.sin() * w

    halves, w = Halves(), leaf(4, 4)
    compiled = torch.compile(doubled, backend=halves)
    for _ in range(3):
        x = leaf(4, 4)
        ours, theirs = x * 1, x * 1
        found, expected = compiled(ours, w), doubled(theirs, w)
        torch.testing.assert_close((ours, found), (theirs, expected))
        gradients = torch.autograd.grad((found + ours).sum(), (x, w))
        torch.testing.assert_close(gradients, torch.autograd.grad((expected + theirs).sum(), (x, w)))
    assert halves.wrapped("forward") == [True] * 3


def test_symbolic_sizes_keep_the_wrappers() -> None:
    halves, w = Halves(), leaf(4, 4)
    compiled = torch.compile(lambda x, w: (x @ w).sin(), backend=halves, dynamic=True)
    for length in (3, 5, 7):
        x = torch.randn(length, 4)
        (found,) = torch.autograd.grad(compiled(x, w).sum(), w)
        torch.testing.assert_close(found, torch.autograd.grad((x @ w).sin().sum(), w)[0])
    assert halves.wrapped("forward") == [True] * 3


def test_loss_with_saved_symbolic_sizes_keeps_the_wrappers() -> None:
    """No result has a symbolic size, but the saved tensors do, and torch marks them."""
    halves, w = Halves(), leaf(4, 4)
    compiled = torch.compile(lambda x, w: (x @ w).sin().sum() * x.shape[0], backend=halves, dynamic=True)
    for length in (3, 5, 7):
        x = torch.randn(length, 4)
        (found,) = torch.autograd.grad(compiled(x, w), w)
        torch.testing.assert_close(found, torch.autograd.grad((x @ w).sin().sum() * length, w)[0])
    assert halves.wrapped("forward") == [True] * 3


def test_backward_that_may_run_once_keeps_the_wrappers() -> None:
    """AOTAutograd refuses that, unless it is configured otherwise."""
    halves, x = Halves(keeps_saved=False), leaf(4, 4)
    compiled = torch.compile(lambda x: (x.sin() @ x.cos()).exp().sin(), backend=halves)
    for _ in range(3):
        loss = compiled(x).sum()
        with pytest.raises(RuntimeError, match="donated"):
            loss.backward(retain_graph=True)
    assert halves.wrapped("forward") == [True] * 3


def test_saved_sizes_match_the_calling_convention() -> None:
    """AOTAutograd's function passes the saved values in the order that the two graphs declare."""
    halves, x, w = Halves(), leaf(4, 4), leaf(4, 4)
    made: list[WatchedTraining] = []
    may_skip = WatchedTraining.may_skip

    def noted(self: WatchedTraining, *args: Any) -> bool:
        made.append(self)
        self.function = args[1][0].grad_fn._forward_cls  # type: ignore[attr-defined]
        return may_skip(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WatchedTraining, "may_skip", noted)
        torch.compile(product, backend=halves)(x, w)
    [watched] = made
    function: Any = watched.function  # type: ignore[attr-defined]
    results, inputs = [*watched.results], [*watched.inputs]
    found = convention(function, results, inputs)
    assert found is not None
    assert (found.returned, found.loose) == (1, len(results))
    assert inputs[-1] == "tangents_1"
    swapped = [inputs[1], inputs[0], *inputs[2:]]
    for wrong in (swapped, inputs[1:], inputs[:-1], [*inputs, "tangents_2"], [*inputs, "more"]):
        assert convention(function, results, wrong) is None
