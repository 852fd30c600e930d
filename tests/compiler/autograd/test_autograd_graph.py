"""The eager autograd graph: nodes, their saved tensors and source lines; and as a stage of an exploration."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from compiler.autograd.eager_graph import EagerGraph, NoGraphError
from compiler.autograd.explore import autograd_record
from compiler.autograd.recording import Recording
from compiler.engine import explore
from compiler.record import Artifact, Record, Saved
from compiler.torch_api import autograd_nodes
from tests.compiler.autograd.autograd_cases import graph_of
from tests.compiler.models import MLP, gpt2


class Doubled(torch.autograd.Function):
    """A custom function that saves its input and stores another tensor on its context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.unchecked = x.sin()
        return x * 2

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return grad * 2


def recorded(function: Any) -> tuple[Tensor, EagerGraph, Record]:
    recording = Recording(sys._getframe())
    with recording:
        value = function()
    frame = sys._getframe(1)
    return value, graph_of([value], recording, frame), autograd_record([value], recording=recording, frame=frame)


def saved_of(record: Record, node: str) -> dict[str, Saved]:
    return {fact.name: fact for fact in record.autograd_saved if fact.node == f"autograd.{node}"}


def test_node_has_its_line_module_and_call() -> None:
    model, x = MLP(), torch.randn(8, 64)
    _, _, record = recorded(lambda: model(x).sum())
    graph = record["autograd"]
    addmm = graph.entity("addmm_2")
    assert (addmm.attrs["module"], addmm.attrs["module_type"]) == ("last", "Linear")
    assert addmm.attrs["call"] == "torch.nn.functional.linear"
    assert addmm.attrs["code"] == "return self.last(x)"
    assert addmm.origins[-1].endswith(f"models.py].L{addmm.attrs['line']}")
    assert graph.entity("last.weight").attrs["module"] == "last"
    compute = [entity for entity in graph.entities if entity.kind == "call"]
    assert len(compute) > 10
    assert all(entity.origins and "line" in entity.attrs for entity in compute)
    known = {entity.id for entity in record.entities()}
    assert {origin for entity in graph.entities for origin in entity.origins} <= known


def test_nodes_are_in_execution_order() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 3, requires_grad=True)
    shared = (x @ x).tanh()
    loss = (shared * x.exp() + shared.sum(0)).relu().mean()
    graph = graph_of([loss])
    ran: list[str] = []
    compute = [node for node in graph.nodes if node.kind != "accumulate"]
    handles = [node.function.register_hook(lambda *_, name=node.name: ran.append(name)) for node in compute]
    torch.autograd.grad(loss, x)
    for handle in handles:
        handle.remove()
    assert ran == [node.name for node in compute]


def test_gradients_accumulate_where_a_result_is_reused() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x.sin()
    record = autograd_record([(y * y.exp()).sum()], frame=sys._getframe())
    sin = record["autograd"].entity("sin")
    assert sin.attrs["gradients_added"] == 2
    assert "sin = SinBackward0(mul[0] + exp, self=f32[3])" in record["autograd"].text
    assert sin.inputs == ("autograd.mul", "autograd.exp")
    assert "x.grad += sin" in record["autograd"].text


def test_saved_tensors_have_bytes_and_shared_storage() -> None:
    x, w = torch.randn(4, 3), torch.randn(3, 5, requires_grad=True)
    y = (x @ w).tanh()
    record = autograd_record([(y @ y.t()).sum()], frame=sys._getframe())
    tanh, mm = saved_of(record, "tanh")["result"], saved_of(record, "mm_1")
    assert (tanh.dtype, tanh.shape, tanh.bytes, tanh.of) == ("float32", (4, 5), 80, "result of tanh")
    assert {fact.storage for fact in mm.values()} == {tanh.storage}
    assert set(tanh.shared_with) == {"mm_1.self", "mm_1.mat2"}
    assert mm["mat2"].view
    assert saved_of(record, "mm")["self"].of == "x, requires_grad=False"
    assert "it keeps 2 pieces of memory, 128 bytes" in record["autograd"].text


def test_saved_leaves_cost_no_memory() -> None:
    w = torch.randn(8, 8, requires_grad=True)
    record = autograd_record([w.exp().sum(), (w * w).sum()], frame=sys._getframe())
    assert saved_of(record, "mul")["self"].free
    assert saved_of(record, "mul")["self"].shared_with == ("w", "mul.other")
    assert not saved_of(record, "exp")["result"].free


def test_hooks_are_named_and_stay_registered() -> None:
    x = torch.randn(3, requires_grad=True)
    called: list[str] = []

    def watch(grad: Tensor) -> None:
        called.append("tensor")

    def build() -> Tensor:
        y = x.sin()
        y.register_hook(watch)
        return y.sum()

    x.register_post_accumulate_grad_hook(lambda _: called.append("after"))
    loss, _, _ = recorded(build)
    assert loss.grad_fn is not None
    loss.grad_fn.register_hook(lambda *_: called.append("node"))
    loss, graph, _ = recorded(build)
    assert loss.grad_fn is not None
    loss.grad_fn.register_hook(lambda *_: called.append("node"))
    hooks = {node.name: node.hooks for node in graph_of([loss]).nodes}
    assert len(hooks["sum"]) == 1
    assert hooks["sum"][0].endswith(".<lambda>")
    assert "(post-accumulate)" in hooks["leaf"][0]
    assert graph.node("sin").hooks[0].endswith(".watch")
    loss.backward()
    assert sorted(called) == ["after", "node", "tensor"]


def test_custom_function_has_its_line_and_saved_tensors() -> None:
    x = torch.randn(3, requires_grad=True)
    _, graph, record = recorded(lambda: Doubled.apply(x).sum())
    node = record["autograd"].entity("doubled")
    assert node.kind == "custom"
    assert "custom torch.autograd.Function (Doubled)" in node.attrs["notes"]
    assert "Doubled.apply(x)" in node.attrs["code"]
    saved = saved_of(record, "doubled")
    assert saved["tensors[0]"].of == "leaf x"
    assert "nothing checks its version" in saved["unchecked"].problem
    assert graph.node("doubled").kind == "custom"


def test_mutated_saved_tensor_is_reported_before_backward() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    loss = y.sum()
    y.add_(1)
    record = autograd_record([loss], frame=sys._getframe())
    fact = saved_of(record, "exp")["result"]
    assert fact.version == 1
    assert "modified by an inplace operation" in fact.problem
    assert "backward will raise an error here" in record["autograd"].entity("exp").attrs["notes"]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_views_and_inplace_writes_are_explained() -> None:
    x = torch.randn(4, 4, requires_grad=True)

    def build() -> Tensor:
        y = x * 2
        y[0].mul_(3)
        y += 1
        return y.t().sum()

    _, _, record = recorded(build)
    notes = {entity.label: entity.attrs.get("notes", "") for entity in record["autograd"].entities}
    assert "a view: no numbers are computed" in notes["t"]
    assert "the part that was written sends its gradient through the rule of the write" in notes["copy_slices"]
    assert notes["add"].startswith("add_ writes in place")


def test_freed_graph_is_reported_packed_tensors_stay_packed() -> None:
    x = torch.randn(3, requires_grad=True)
    loss = x.sin().exp().sum()
    loss.backward()
    freed = autograd_record([loss], frame=sys._getframe())
    assert saved_of(freed, "sin")["self"].problem == autograd_nodes.FREED
    runs: list[int] = []

    def part(x: Tensor) -> Tensor:
        runs.append(1)
        return x.sin().exp()

    kept = autograd_record([checkpoint(part, x, use_reentrant=False).sum()], frame=sys._getframe())
    assert "packed by a hook" in saved_of(kept, "exp")["result"].problem
    assert runs == [1]


def test_tensor_without_a_graph_raises_with_reason() -> None:
    with pytest.raises(NoGraphError, match=r"nothing that it was computed from wants a gradient"):
        graph_of([torch.randn(3).sum()])
    with torch.inference_mode():
        made = torch.randn(3).sum()
    with pytest.raises(NoGraphError, match="inference_mode"):
        graph_of([made])


def test_failed_recording_leaves_no_hooks() -> None:
    model = MLP()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), Recording():
        model(torch.randn(2, 3))
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.overrides._get_current_function_mode_stack()


def test_compiled_functions_run_eagerly_without_recompiling() -> None:
    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(1)
        return module.forward

    torch.compiler.reset()
    model, x = MLP(), torch.randn(8, 64)
    compiled = torch.compile(model, backend=backend)
    compiled(x)
    _, _, record = recorded(lambda: compiled(x).sum())
    modules = {entity.label: entity.attrs.get("module") for entity in record["autograd"].entities}
    assert modules["addmm_2"] == "last"
    assert modules["last.weight"] == "last"
    compiled(x)
    assert len(graphs) == 1


@pytest.fixture(scope="module")
def gpt2_run() -> Record:
    torch.manual_seed(0)
    model, arguments = gpt2(2)
    _, _, record = recorded(lambda: model(**arguments).loss)
    return record


def test_gpt2_nodes_have_lines_and_modules(gpt2_run: Record) -> None:
    entities = [entity for entity in gpt2_run["autograd"].entities if entity.kind != "placeholder"]
    assert len(entities) > 150
    assert all("line" in entity.attrs for entity in entities)
    modules = {entity.attrs.get("module", "") for entity in entities}
    assert {"transformer.h.0.attn.c_attn", "transformer.h.1", "lm_head"} <= modules
    tied = gpt2_run["autograd"].entity("transformer.wte.weight")
    assert tied.attrs["gradients_added"] == 2
    assert Record.from_json(gpt2_run.to_json()) == gpt2_run


def test_modules_are_inferred_from_parameters_without_recording() -> None:
    model, arguments = gpt2(2)
    record = autograd_record([model(**arguments).loss], frame=sys._getframe())
    modules = {entity.label: entity.attrs.get("module", "") for entity in record["autograd"].entities}
    assert modules["addmm_7"] == "transformer.h.1.mlp.c_proj"
    assert modules["tanh_1"] == "transformer.h.1.mlp"
    assert "lines and modules are not known" in record["autograd"].text


def test_anomaly_mode_traces_give_lines() -> None:
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        loss = x.sin().sum()
    sin = autograd_record([loss], frame=sys._getframe())["autograd"].entity("sin")
    assert sin.attrs["code"] == "loss = x.sin().sum()"
    assert sin.origins


def staged(record: Record) -> Artifact:
    return record["autograd"]


def test_autograd_stage_nodes_originate_from_captured_nodes() -> None:
    torch.manual_seed(0)
    model, x = MLP(), torch.randn(8, 64)
    runs: list[int] = []

    def step(x: Tensor) -> Tensor:
        return model(x).sum()

    model.register_forward_hook(lambda *_: runs.append(1))
    explored = explore(step, (x,))
    graph = staged(explored.record)
    assert graph.id == "autograd[0/0]"
    captured = {entity.id: entity for entity in explored.record["captured"].entities}
    compute = [entity for entity in graph.entities if entity.kind != "placeholder"]
    assert all(entity.origins[0] in captured for entity in compute)
    relu = graph.entity("relu")
    assert "relu" in captured[relu.origins[0]].attrs["target"]
    assert relu.attrs["code"] == captured[relu.origins[0]].attrs["code"]
    assert explored.record.problems == ()
    explored.value.backward()
    assert model.first.weight.grad is not None
    assert len(runs) <= 1


def test_gradient_flows_across_a_graph_break() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return (y * 2).sum()

    record = explore(broken, (torch.randn(3, requires_grad=True),)).record
    first, second = record.of_stage("autograd")
    assert "x.grad += sin" in first.text
    assert [entity.label for entity in second.entities if entity.kind == "outer"] == ["y"]


def test_no_autograd_stage_without_gradients() -> None:
    record = explore(lambda x: (x * 2).sum(), (torch.randn(3),)).record
    assert not record.of_stage("autograd")
    with torch.no_grad():
        record = explore(nn.Linear(3, 3), (torch.randn(2, 3),)).record
    assert not record.of_stage("autograd")
    assert record.problems == ()


def test_user_error_keeps_its_message() -> None:
    def fails(x: Tensor, rows: Tensor) -> Tensor:
        return x[rows].sum()

    x, rows = torch.randn(3, requires_grad=True), torch.tensor([7])
    with pytest.raises(IndexError) as eager:
        fails(x, rows)
    with pytest.raises(IndexError) as explored:
        explore(fails, (x, rows))
    assert str(explored.value) == str(eager.value)
