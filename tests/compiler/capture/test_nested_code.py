"""Checkpoints and nested regions: every stage on both targets, eager's values and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from compiler.engine import Exploration
from compiler.record import Record
from compiler.record.options import Options
from tests.compiler.broken import TORCH

pytest.importorskip("triton", reason="Triton has no wheel for this platform")


def attention(q: Tensor) -> Tensor:
    k = torch.sin(q)
    return functional.scaled_dot_product_attention(q, k, k)


def dropped(x: Tensor) -> Tensor:
    return functional.dropout(torch.sin(x), 0.3)


def drawn(x: Tensor) -> Tensor:
    noise = torch.rand_like(x) + torch.randn_like(x)
    return (x * noise).sin() * torch.bernoulli(torch.sigmoid(x))


def saves_sine(_ctx: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    saved = op == torch.ops.aten.sin.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def in_checkpoint(part: Callable[[Tensor], Tensor], **options: Any) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        return checkpoint(part, x * 2, **options).cos()

    return step


@torch.compiler.nested_compile_region
def region(x: Tensor) -> Tensor:
    return torch.relu(x @ x.transpose(-1, -2)).sin() @ x


def three_regions(x: Tensor) -> Tensor:
    for _ in range(3):
        x = region(x)
    return x.cos()


CONTEXTS = partial(create_selective_checkpoint_contexts, saves_sine)
PROGRAMS = {
    "attention": in_checkpoint(attention, use_reentrant=False),
    "dropout": in_checkpoint(dropped, use_reentrant=False),
    "reentrant": in_checkpoint(dropped, use_reentrant=True),
    "drawn": in_checkpoint(drawn, use_reentrant=False),
    "selective": in_checkpoint(dropped, use_reentrant=False, context_fn=CONTEXTS),
    "nested region": three_regions,
    "checkpointed region": in_checkpoint(region, use_reentrant=False),
}
STAGES = {"captured", "joint", "forward", "backward", "kernels"}


def trained(call: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None, Tensor]:
    """The result, the gradient, and the final state of the random number generator."""
    torch.manual_seed(1)
    x = torch.linspace(-1, 1, 512).reshape(2, 4, 4, 16).requires_grad_()
    value = call(x)
    value.square().sum().backward()
    return value.detach(), x.grad, torch.get_rng_state()


def explored(program: Callable[..., Any], target: str, backend: str) -> Record:
    """The record of a training step, after comparing its numbers with eager's."""
    expected = trained(program)
    with Exploration(Options(target=target, backend=backend)) as exploration:
        found = trained(exploration.compile(program))
    torch.testing.assert_close(found, expected)
    return exploration.record


@pytest.mark.parametrize("backend", ["inductor", "tcompile"])
@pytest.mark.parametrize("target", ["cpu", "h100"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_stage_and_values_match_eager(name: str, target: str, backend: str) -> None:
    record = explored(PROGRAMS[name], target, backend)
    assert record.problems == ()
    assert {artifact.stage for artifact in record.artifacts} >= STAGES
    written = {kernel.language for kernel in record.kernels} - {"aten"}
    assert written == {"cpp" if target == "cpu" else "triton"}


def padded_bias(weight: Tensor) -> Tensor:
    """T5's relative position bias, padded for a GPU's attention: an index is the minimum of wrapped numbers."""
    at = torch.arange(8)
    distance = -torch.min(at[None, :] - at[:, None], torch.zeros_like(at))
    bias = functional.embedding(distance, weight).permute(2, 0, 1)[None]
    masked = torch.where(at[None, :] <= at[:, None], bias, -3e38)
    return functional.pad(masked.expand(2, 4, 8, 8), (0, 8))


def test_padded_relative_bias_has_kernels() -> None:
    with Exploration(Options(target="h100")) as exploration:
        exploration.compile(padded_bias)(torch.randn(32, 4))
    assert exploration.record.problems == ()
    assert exploration.record.kernels


def twice(x: Tensor) -> Tensor:
    y = checkpoint(dropped, x * 2, use_reentrant=False)
    return checkpoint(dropped, y + 1, use_reentrant=False, context_fn=CONTEXTS).cos()


@pytest.fixture(scope="module", params=["inductor", "tcompile"])
def checkpointed_twice(request: pytest.FixtureRequest) -> Record:
    return explored(twice, "h100", request.param)


def test_recomputed_values_name_their_checkpoint(checkpointed_twice: Record) -> None:
    first = twice.__code__.co_firstlineno + 1
    file = checkpointed_twice["captured"].entity("cos").attrs["file"]
    labels = [f"checkpoint {number}, {file}:{first + number - 1}" for number in (1, 2)]
    backward = checkpointed_twice["backward"]
    roles = {str(entity.attrs["role"]) for entity in backward.entities if "role" in entity.attrs}
    assert {role for role in roles if role.startswith("recomputed: ")} == {f"recomputed: {label}" for label in labels}
    assert f"# Recomputed: {labels[0]}. File" in backward.text
    assert f"# Recomputed: {labels[1]} (PREFER_RECOMPUTE). File" in backward.text
    assert f"# In {labels[0]}. File" in checkpointed_twice["joint"].text
    assert "ac_graph_id" not in "".join(found.text for found in checkpointed_twice.artifacts if found.graph)


def test_nested_checkpoint_is_named_in_attributes_and_text() -> None:
    def outer(x: Tensor) -> Tensor:
        y = x.exp()
        y = checkpoint(torch.sigmoid, y, use_reentrant=False)
        return y.exp()

    with Exploration(Options(target="cpu", stages=("backward",))) as exploration:
        exploration.compile(in_checkpoint(outer, use_reentrant=False))(torch.ones(4, requires_grad=True))
    backward = exploration.record["backward"]
    inner = backward.entity("sigmoid").attrs["checkpoint"]
    assert str(inner).startswith("checkpoint 2, ")
    header, of_gradient = [
        row.strip() for row in backward.text.split("\n") if "code: y = checkpoint(torch.sigmoid" in row
    ]
    assert header.startswith(f"# Recomputed: {inner}. File")
    assert of_gradient.startswith("# Backward of forward node: File" if TORCH >= "2.14" else "# File")
    assert "# Recomputed: checkpoint 1, " in backward.text


def test_decisions_say_why_a_checkpoint_recomputes(checkpointed_twice: Record) -> None:
    partition = [found for found in checkpointed_twice.decisions if found.pass_name == "partition"]
    reasons = {found.why.rpartition(": ")[2] for found in partition if found.verdict == "recomputed"}
    assert "it saves the inputs of its function alone" in reasons
    assert "its context_fn lets this be recomputed (PREFER_RECOMPUTE)" in reasons


def test_checkpointed_line_links_to_kernels_and_back(checkpointed_twice: Record) -> None:
    record = checkpointed_twice
    line = dropped.__code__.co_firstlineno + 1
    [inside] = [entity for entity in record["source"].entities if entity.attrs.get("line") == line]
    stages = {entity.id: artifact.stage for artifact in record.artifacts for entity in artifact.entities}
    linked = record.linked_ids(inside.id)
    assert {stages[identity] for identity in linked} >= STAGES
    kernels = [identity for identity in linked if stages[identity] == "kernels"]
    assert all(inside.id in record.linked_ids(kernel) for kernel in kernels)


def looped(x: Tensor) -> Tensor:
    return while_loop(lambda i, _y: i < 3, lambda i, y: (i + 1, y.sin() * 2), (torch.tensor(0), x))[1].cos()


def mapped(x: Tensor) -> Tensor:
    return map_rows(lambda row: row.sin() * 2, x).cos()


def scanned(x: Tensor) -> Tensor:
    return scan(lambda carry, row: (carry + row.sin(), carry.cos()), x[0], x)[0]


def data_dependent(x: Tensor) -> Tensor:
    y = x.sin()
    return y[y.detach() > 0].cos() * 2


def scalars_captured() -> Any:
    config: Any = torch._dynamo.config
    return config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)


@pytest.mark.parametrize(
    ("program", "backend", "operator"),
    [
        (looped, "inductor", "while_loop"),
        (looped, "tcompile", "while_loop"),
        (mapped, "inductor", "map_impl"),
        (scanned, "inductor", "scan"),
    ],
)
def test_loops_need_scalar_outputs(program: Callable[[Tensor], Tensor], backend: str, operator: str) -> None:
    """With the setting that the problem suggests, every stage is there."""
    [problem] = explored(program, "h100", backend).problems
    assert f"torch cannot compile {operator} while" in problem.reason
    assert "aten._local_scalar_dense" in problem.reason
    assert "set torch._dynamo.config.capture_scalar_outputs = True" in problem.hint
    with scalars_captured():
        record = explored(program, "h100", backend)
    assert record.problems == ()
    assert {artifact.stage for artifact in record.artifacts} >= STAGES


def added_results(x: Tensor, one: float = 1) -> Tensor:
    first, second = torch.cond(x.sum() > 0, lambda x: (x.sin(), x.cos()), lambda x: (x * 2, x * 3), (x,))
    total: Tensor = first + (second if one == 1 else second * one)
    return total


def stepped(x: Tensor, make: Callable[[int], Any] = int) -> Tensor:
    return while_loop(lambda i, _y: i < 3, lambda i, y: (i + 1, y.sin() * 2), (make(0), x.detach()))[1] + x


def branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def branch_of_checkpoint(x: Tensor) -> Tensor:
    return branch(in_checkpoint(dropped, use_reentrant=False)(x))


@pytest.mark.parametrize(
    ("program", "operator", "hint", "mended"),
    [
        (added_results, "cond", "`* 1.0`", partial(added_results, one=1.0 + 1e-9)),
        (in_checkpoint(branch, use_reentrant=False), "cond", "outside", branch_of_checkpoint),
        (stepped, "while_loop", "torch.tensor(0)", partial(stepped, make=torch.tensor)),
    ],
)
def test_limits_of_torch_are_told_with_a_change(
    program: Callable[[Tensor], Tensor], operator: str, hint: str, mended: Callable[[Tensor], Tensor]
) -> None:
    problems = explored(program, "cpu", "inductor").problems
    if hint == "outside" and TORCH < "2.12":  # torch 2.11 compiles it
        assert problems == ()
        return
    [problem] = problems
    assert f"torch cannot compile {operator}" in problem.reason
    assert "torch.compile alone meets the same error" in problem.reason
    assert hint in problem.hint
    with scalars_captured():
        assert explored(mended, "cpu", "inductor").problems == ()


def scanned_tanh(x: Tensor) -> Tensor:
    def step(total: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        total = (total + row).tanh()
        return total, total * 2

    return scan(step, x[0] * 0, x)[1]


def test_own_backend_scans_what_its_backward_reads() -> None:
    """With Inductor's decompositions torch's scan returns the tanh twice, and refuses that."""
    torch.testing.assert_close(trained(torch.compile(scanned_tanh, backend="tcompile")), trained(scanned_tanh))


def test_torch_alone_cannot_compile_map() -> None:
    config: Any = torch._dynamo.config
    with config.patch(suppress_errors=False), pytest.raises(Exception, match="_local_scalar_dense"):
        torch.compile(mapped)(torch.randn(3, 2))


def test_data_dependent_forward_has_stages() -> None:
    with scalars_captured():
        record = explored(data_dependent, "h100", "tcompile")
    assert record.problems == ()
    assert {artifact.id for artifact in record.artifacts} >= {"lowered[0/0 forward]", "kernels[0/0 forward]"}
