"""Bodies of higher-order operators: printed inside their caller, and linked from the line to the kernel."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.map import map as map_op
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from compiler.calls.block_masks import mask_facts
from compiler.engine import Exploration, explore
from compiler.export.exporting import export_program
from compiler.record import Artifact, Record
from compiler.record.options import Options
from compiler.torch_api.flex_attention import MaskTensors
from explorer.findings import findings
from explorer.reading.stages import counts
from explorer.render.drawing import drawing, plan
from explorer.render.static import document_html
from explorer.run.tables import graphs, ops
from tests.compiler.broken import TORCH


def branches(x: torch.Tensor) -> torch.Tensor:
    def yes(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y * 2

    def no(x: torch.Tensor) -> torch.Tensor:
        return x.cos() - 1

    return torch.cond(x.sum() > 0, yes, no, (x,)) + 1


def looped(x: torch.Tensor) -> torch.Tensor:
    def more(i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return i < 5

    def step(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.cond(y.sum() > 0, lambda y: y.exp(), lambda y: y.tanh(), (y,))
        return i + 1, y * 0.5

    return while_loop(more, step, (torch.tensor(0), x))[1]


def checkpointed(x: torch.Tensor) -> torch.Tensor:
    def block(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        return torch.sigmoid(y) * 2

    return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False).sum()


@torch.compiler.nested_compile_region
def region(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x)
    return y.sin() + x


def regions(x: torch.Tensor) -> torch.Tensor:
    x = region(x)
    x = region(x)
    return region(x).sum()


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin() * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


def custom(x: torch.Tensor) -> torch.Tensor:
    return Squared.apply(x).sum()


def mapped(x: torch.Tensor) -> torch.Tensor:
    return map_op(lambda row, scale: torch.sin(row) * scale, x, x.sum())


@torch.library.custom_op("tcompile_subgraphs::add_one", mutates_args={"x"})
def add_one(x: torch.Tensor) -> None:
    x.add_(1)


def written_into(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    add_one(y)
    return y * 2


def record_of(fn: object, *, grad: bool = False, target: str = "cpu", backend: str = "inductor") -> Record:
    torch._dynamo.reset()
    x = torch.randn(8, 16, requires_grad=grad)
    return explore(fn, (x,), options=Options(target=target, backend=backend)).record


def on_line(artifact: Artifact, text: str) -> set[str]:
    """The nodes of the lines with this text."""
    rows = [number for number, row in enumerate(artifact.text.split("\n"), 1) if text in row]
    assert rows, f"{text!r} is not in\n{artifact.text}"
    return {name for row in rows for name in artifact.lines.get(row, ())}


def line(record: Record, code: str) -> str:
    found = [e.id for a in record.of_stage("source") for e in a.entities if e.label.strip() == code]
    assert len(found) == 1, f"{code!r}: {found}"
    return found[0]


def linked(record: Record, code: str, stage: str) -> set[str]:
    """Labels of the entities linked to a source line, without lines of kernels."""
    ids = record.linked_ids(line(record, code))
    kinds = ("triton", "cpp")
    return {e.label for a in record.of_stage(stage) for e in a.entities if e.id in ids and e.kind not in kinds}


@pytest.mark.parametrize(
    ("fn", "body", "text"),
    [
        (branches, "cond_true_0", ".sin()"),
        (looped, "body_fn_0.cond_true_0", ".exp()"),
        (checkpointed, "wrap_body_0", "torch.sigmoid("),
        (regions, "subgraph_0", ".sin()"),
        (custom, "fwd_body_0", ".sin()"),
        (mapped, "map_body_0", "torch.sin("),
    ],
)
def test_captured_body_is_inside_its_caller(fn: object, body: str, text: str) -> None:
    captured = record_of(fn, grad=fn in (checkpointed, custom))["captured"]
    rows = captured.text.split("\n")
    assert captured.entity(body).kind == "subgraph"
    opening = next(row for row, ids in captured.lines.items() if f"{captured.id}.{body}" in ids)
    indent = len(rows[opening - 1]) - len(rows[opening - 1].lstrip())
    assert rows[opening - 1].lstrip().startswith(f"def {body.rpartition('.')[2]}(")
    inside = next(row for row in rows[opening:] if text in row)
    assert len(inside) - len(inside.lstrip()) == indent + 4
    [node] = [captured.entity(name) for name in on_line(captured, text) if name.startswith(f"{captured.id}.{body}.")]
    assert node.attrs["subgraph"] == f"{captured.id}.{body}"
    assert node.kind == "call"
    assert node.origins


def test_every_stage_has_the_branches() -> None:
    record = record_of(branches)
    for stage in ("captured", "pre_grad", "inference", "post_grad"):
        artifact = record[stage]
        call = artifact.entity("cond")
        first, second = call.attrs["subgraphs"]
        inside = {e.attrs["subgraph"] for e in artifact.entities if e.id in on_line(artifact, "sin")}
        assert inside == {first}, stage
        assert {e.attrs["subgraph"] for e in artifact.entities if e.id in on_line(artifact, "cos")} == {second}, stage


def test_exported_graph_has_the_branches() -> None:
    artifact = export_program(branches, (torch.randn(8, 16),)).artifact
    assert artifact is not None
    assert {e.attrs["subgraph"] for e in artifact.entities if e.id in on_line(artifact, "aten.sin")} == {
        f"{artifact.id}.true_graph_0"
    }


def test_branch_line_links_only_to_its_kernel() -> None:
    record = record_of(branches, grad=True, target="h100")
    is_cosine_first = TORCH >= "2.14"
    forward, backward = ("mul_sin_2", "cos_mul_1") if is_cosine_first else ("mul_sin_1", "cos_mul_0")
    assert linked(record, "y = x.sin()", "kernels") == {f"triton_poi_fused_{forward}", f"triton_poi_fused_{backward}"}
    forward, backward = ("cos_sub_1", "mul_neg_sin_0") if is_cosine_first else ("cos_sub_2", "mul_neg_sin_1")
    assert linked(record, "return x.cos() - 1", "kernels") == {
        f"triton_poi_fused_{forward}", f"triton_poi_fused_{backward}",
    }  # fmt: skip
    assert linked(record, "y = x.sin()", "post_grad") >= {"true_graph_0.sin", "true_graph_1.cos"}


def test_nested_branch_kernel_links_to_its_line() -> None:
    record = record_of(looped)
    [kernel] = [kernel for kernel in record.kernels if "_exp_" in kernel.name]
    found = record.linked_ids(kernel.id)
    assert line(record, "y = torch.cond(y.sum() > 0, lambda y: y.exp(), lambda y: y.tanh(), (y,))") in found
    assert line(record, "return i < 5") not in found
    post_grad = {e.label for e in record["post_grad"].entities if e.id in found}
    assert "while_loop_body_graph_0.true_graph_0.exp" in post_grad
    assert "while_loop_body_graph_0.false_graph_0.tanh" not in post_grad


def test_operator_that_writes_links_to_its_call() -> None:
    record = record_of(written_into)
    assert linked(record, "add_one(y)", "post_grad") == {"add_one_default"}
    assert linked(record, "add_one(y)", "ir") >= {"op1"}
    assert linked(record, "y = x.sin()", "post_grad") == {"sin"}


def test_checkpointed_blocks_of_one_line_stay_apart() -> None:
    record = record_of(checkpointed, grad=True)
    first, second = [record["captured"].entity(f"wrap_body_{number}.sigmoid") for number in (0, 1)]
    forward = {e.id: e.label for e in record["forward"].entities}
    of_first, of_second = ({forward[i] for i in record.linked_ids(e.id) if i in forward} for e in (first, second))
    assert of_first == {"sigmoid"}
    assert of_second == {"sigmoid_1"}
    assert linked(record, "return torch.sigmoid(y) * 2", "kernels")


def custom_in_checkpoint(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(custom, x, use_reentrant=False)  # type: ignore[no-any-return]


def test_bodies_in_a_checkpoint_are_in_it_too() -> None:
    """The body of an autograd function that a checkpoint calls: its backward recomputes it."""
    record = record_of(custom_in_checkpoint, grad=True)
    found = {e.label: e.attrs for e in record["backward"].entities}
    assert re.fullmatch(r"checkpoint 1, .*test_subgraphs\.py:\d+", found["cos"]["checkpoint"])
    assert {e.label for e in record["forward"].entities if "checkpoint" in e.attrs} == {"sin", "mul", "sum_1"}


def test_repeated_body_is_printed_once() -> None:
    record = record_of(regions)
    captured = record["captured"]
    assert captured.text.count("def subgraph_0(") == 1
    assert captured.text.count("# printed above, in invoke_subgraph") == 2
    assert len([e for e in captured.entities if e.attrs.get("target") == "sin"]) == 1
    [body] = {tuple(e.attrs["subgraphs"]) for e in captured.entities if "subgraphs" in e.attrs}
    assert body == (f"{captured.id}.subgraph_0",)
    for code in ("return region(x).sum()", "return y.sin() + x"):
        assert any("relu_sin" in name for name in linked(record, code, "kernels")), code


def test_record_of_trained_regions_loads_again() -> None:
    record = record_of(regions, grad=True)
    assert Record.from_json(record.to_json()) == record


def test_counts_and_tables_have_the_bodies() -> None:
    record = record_of(branches)
    captured = record["captured"]
    assert counts([captured]) == "9 ops, 2 subgraphs, 1 input"
    [row] = graphs(record).query("stage == 'captured'").to_dict("records")
    assert (row["calls"], row["inputs"]) == (9, 1)
    assert ops(record).loc["sin", "captured"] == 1
    assert ops(record).loc["aten.sin.default", "post_grad"] == 1


def test_drawing_frames_each_body() -> None:
    record = record_of(looped)
    captured = record["captured"]
    boxes = plan(record, captured).boxes
    assert boxes[f"{captured.id}.body_fn_0.cond_true_0.exp"].module == ("body_fn_0", "cond_true_0")
    assert "cluster body_fn_0" in drawing(record, captured).source
    call = captured.entity("while_loop")
    assert {f"{captured.id}.cond_fn_0.lt", f"{captured.id}.body_fn_0.child_5"} <= set(call.inputs) | set(boxes)


def test_decomposed_levels_have_the_bodies() -> None:
    torch._dynamo.reset()
    x = torch.randn(8, 16, requires_grad=True)
    record = explore(branches, (x,), options=Options(target="cpu", stages=("captured", "decomposed"))).record
    for artifact in record.of_stage("decomposed"):
        assert "tcompile_decomposition" not in artifact.text, artifact.id
        if artifact.half == "forward":
            [body] = {e.attrs["subgraph"] for e in artifact.entities if e.id in on_line(artifact, ".sin.")}
            assert line(record, "y = x.sin()") in record.linked_ids(f"{body}.sin"), artifact.id


def causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q >= k


def capped(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    bias = (q - k) * 0.1
    return torch.tanh(score) + bias


MASK = create_block_mask(causal, None, None, 256, 256, device="cpu", BLOCK_SIZE=64)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return flex_attention(q, k, v, score_mod=capped, block_mask=MASK)


def attention_formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    at = torch.arange(256)
    scores = capped(q @ k.transpose(-2, -1) / 32**0.5, at, at, at[:, None], at)
    return scores.masked_fill(at[:, None] < at, -torch.inf).softmax(-1) @ v


def attention_record(target: str, backend: str = "inductor") -> Record:
    torch._dynamo.reset()
    tensors = tuple(torch.randn(1, 2, 256, 32) for _ in range(3))
    return explore(attend, tensors, options=Options(target=target, backend=backend)).record


def trained_attention(backend: str) -> Record:
    """Forward and backward for an H100, with the gradients of the dense formula."""
    torch._dynamo.reset()
    tensors = [torch.randn(1, 2, 256, 32, requires_grad=True) for _ in range(3)]
    with Exploration(Options(backend=backend)) as exploration:
        found = torch.autograd.grad(exploration.compile(attend)(*tensors).square().sum(), tensors)
    expected = torch.autograd.grad(attention_formula(*tensors).square().sum(), tensors)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    return exploration.record


@pytest.fixture(scope="module")
def trained() -> Record:
    return trained_attention("inductor")


def kernel_lines(record: Record, code: str) -> list[str]:
    ids = record.linked_ids(line(record, code))
    kinds = ("triton", "cpp")
    return [e.label for a in record.of_stage("kernels") for e in a.entities if e.id in ids and e.kind in kinds]


def test_score_mod_line_links_to_template_lines(trained: Record) -> None:
    record = trained
    assert not record.problems
    assert not [guard for guard in record.guards if "torch_api" in guard.source]
    inside = linked(record, "bias = (q - k) * 0.1", "post_grad")
    assert inside >= {"sdpa_score0.sub", "sdpa_score0.mul", "fw_graph0.sub", "fw_graph0.mul"}
    assert any(" * " in row for row in kernel_lines(record, "bias = (q - k) * 0.1"))
    of_sum = kernel_lines(record, "return torch.tanh(score) + bias")
    assert any("libdevice.tanh" in row for row in of_sum)
    assert any("post_mod_scores = tmp" in row for row in of_sum)
    assert any("grad_scores = tmp" in row for row in of_sum)
    masked = next(row for row in kernel_lines(record, "return q >= k") if ">=" in row)
    template = next(e for e in record["kernels"].entities if e.label == masked)
    assert line(record, "return q >= k") in record.linked_ids(template.id)
    assert line(record, "bias = (q - k) * 0.1") not in record.linked_ids(template.id)


def test_block_mask_is_drawn(trained: Record) -> None:
    record = Record.from_json(trained.to_json())
    [found] = [finding for finding in findings(record, needing_torch=False) if finding.artifact.stage == "block_mask"]
    text = found.artifact.text
    assert "256 queries × 256 keys, in blocks of 64 × 64" in text
    assert re.search(r"all +6 +4 +6 +62\.5% +37\.5% +4 +2\.5", text)
    assert [row.strip() for row in text.rstrip().split("\n")[-4:]] == ["▒▒ · · ·", "██▒▒ · ·", "████▒▒ ·", "██████▒▒"]
    assert text.count("test_subgraphs.py:") == 1
    assert "data:image/svg" in document_html(found.document)


def test_larger_masks_have_cells_of_several_blocks() -> None:
    mask = create_block_mask(causal, None, None, 2080, 2080, device="cpu", BLOCK_SIZE=16)
    facts = mask_facts(MaskTensors.of_argument(mask.as_tuple()))
    [grid] = facts["grids"]
    assert (facts["cell"], len(grid["rows"]), grid["rows"][0][:3]) == ([3, 3], 44, "100")
    assert grid["full"] + grid["partial"] + grid["empty"] == 130 * 130


def test_score_mod_line_links_to_cpp() -> None:
    record = attention_record("cpu")
    assert any(".tanh()" in row for row in kernel_lines(record, "return torch.tanh(score) + bias"))
    assert linked(record, "return q >= k", "kernels")


def test_own_backend_links_score_mod_to_extern_call() -> None:
    record = trained_attention("tcompile")
    for code in ("bias = (q - k) * 0.1", "return q >= k"):
        assert linked(record, code, "lowered") == {"flex_attention", "flex_attention_backward"}
        assert "flex_attention" in linked(record, code, "kernels")
    why = next(d.why for d in record.decisions if d.verdict == "extern" and "flex_attention" in d.subjects[0])
    assert why == (
        "flex_attention: PyTorch runs it, and in it sdpa_score0 and sdpa_mask0, where nothing is fused: its dense "
        "formula puts all 1×2×256×256 scores in memory (512.0 KiB), those of empty blocks too"
    )


def nested_branches(x: torch.Tensor) -> torch.Tensor:
    def yes(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.max() > 1, lambda x: x.sin(), lambda x: x.exp(), (x * 2,))

    return torch.cond(x.sum() > 0, yes, torch.cos, (x,))


def test_own_backend_links_a_branch_in_a_branch() -> None:
    record = record_of(nested_branches, backend="tcompile")
    assert not record.problems
    code = "return torch.cond(x.max() > 1, lambda x: x.sin(), lambda x: x.exp(), (x * 2,))"
    assert linked(record, code, "lowered") == {"cond"}
    assert "cond(gt.view([], strides []), true_graph_0(), false_graph_0()" in record["lowered"].text


def test_own_backend_links_branch_to_extern_call() -> None:
    record = record_of(branches, backend="tcompile")
    assert linked(record, "y = x.sin()", "lowered") == {"cond"}
    assert "cond(gt.view([], strides []), true_graph_0(), false_graph_0()" in record["lowered"].text
    x = torch.randn(8, 16)
    assert torch.equal(torch.compile(branches, backend="tcompile")(x), branches(x))


def attend_to_itself(x: torch.Tensor) -> torch.Tensor:
    return flex_attention(x[None, None], x[None, None], x[None, None])


def attend_to_itself_in_eager_mode(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])


@pytest.mark.parametrize(
    ("operator", "eager"), [(branches, branches), (attend_to_itself, attend_to_itself_in_eager_mode)]
)
def test_backward_inside_compiled_code_has_no_breaks(
    operator: Callable[..., torch.Tensor], eager: Callable[..., torch.Tensor]
) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        operator(x).sum().backward()
        assert x.grad is not None
        return x.grad * 2

    x = torch.randn(16, 16, requires_grad=True)
    found = explore(step, (x,), options=Options(target="h100", stages=("captured", "kernels")))
    gradient = torch.autograd.grad(eager(x).sum(), x)[0]
    torch.testing.assert_close(found.value, gradient * 2)
    assert len(found.record.breaks) == 1  # torch has the same: at the call of backward
    assert len(found.record.of_stage("captured")) == 2
