"""`compiler.open`: stages, replaced passes, why two operations are not fused, and which pass is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from IPython.lib.pretty import pretty
from torch import Tensor, nn
from torch.nn import functional

import compiler
from compiler.backend.inspect.inspection import Inspection
from compiler.backend.ir import BackendError, Kernel, Program
from compiler.backend.ir.expr import Const, Expr, rebuilt
from compiler.backend.passes.context import Context
from compiler.backend.passes.fuse import fuse
from compiler.backend.passes.verify import BrokenProgramError
from compiler.backend.runtime import build_cpp
from compiler.engine import explore
from compiler.record.options import OptionError, Options


def numbers(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_(grad)


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.layer_norm(x @ weight, weight.shape[1:])).sum(0)


@pytest.fixture(scope="module")
def trained() -> Inspection:
    return compiler.open(block, numbers(8, 16, grad=True), numbers(16, 32, grad=True))


def unfused(program: Program, _ctx: object) -> Program:
    return program


def with_constant(program: Program, old: float, new: float) -> Program:
    """A legal program that computes something else."""

    def change(part: Expr) -> Expr | None:
        return Const(new, part.dtype) if isinstance(part, Const) and part.value == old else None

    def changed(kernel: Kernel) -> Kernel:
        return replace(kernel, loops=tuple(replace(loop, value=rebuilt(loop.value, change)) for loop in kernel.loops))

    return program.with_steps(tuple(changed(step) if isinstance(step, Kernel) else step for step in program.steps))


def test_every_stage_is_a_printable_value(trained: Inspection) -> None:
    for stage in ("lowered", "simplified", "inlined", "fused", "ordered", "scheduled"):
        program = getattr(trained, stage)
        assert repr(program) == str(program)
        assert str(program).startswith("program forward(")
        assert stage in dir(trained)
    with pytest.raises(AttributeError, match="did you mean fused"):
        _ = trained.fussed
    with pytest.raises(BackendError, match="did you mean simplified"):
        trained.stage("simplifed")


def test_repr_shows_kernels_and_bytes_of_each_stage(trained: Inspection) -> None:
    text = repr(trained)
    assert "block: " in text
    assert "\nforward\n" in text
    assert "\nbackward\n" in text
    assert "p.replace" in text
    stages = trained.stages
    assert stages.loc["fused", "kernels"] < stages.loc["lowered", "kernels"]
    assert stages.loc["fused", "bytes"] < stages.loc["lowered", "bytes"]
    assert list(trained.stages["pass"])[1:] == list(trained.passes)


def test_kernels_table_has_bytes_and_lines(trained: Inspection) -> None:
    table = trained.kernels
    assert list(table.kind) == ["call of PyTorch", *["kernel"] * len(trained.scheduled.kernels)]
    norm = table[table.computes.str.contains("rsqrt")].iloc[0]
    # Reads the product, and writes of each of 8 rows mean and rsqrt; the sum of columns normalises rows itself.
    assert norm.bytes == 8 * 32 * 4 + 2 * 8 * 4
    assert "layer_norm" in norm.lines
    assert trained.totals.kernels == len(trained.scheduled.kernels) + len(trained.backward.scheduled.kernels)


def test_two_stages_are_compared_as_text(trained: Inspection) -> None:
    diff = trained.diff("lowered", "fused")
    assert diff.lines[:2] == ("--- lowered", "+++ fused")
    assert any(line.startswith("-    kernel rsqrt") for line in diff.lines)
    assert str(trained.diff("fuse", "fused")) == "fuse and fused are the same"


def test_code_and_explanations_display_without_quotes(trained: Inspection) -> None:
    for text in (trained.code, trained.call, trained.triton, trained.why("sub", "mul"), trained.why("sum_1", "exp")):
        assert repr(text) == text
        assert pretty(text).rstrip() == text.rstrip()


def test_refused_decisions_have_bytes_and_reasons(trained: Inspection) -> None:
    refused = trained.decisions[trained.decisions.verdict == "refused"]
    assert (refused.bytes > 0).all()
    assert refused.why.str.contains("reduce over different elements").any()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("exp", "exp", "one and the same value"),
        ("sub", "mul", "sub and mul are computed by one kernel, "),
        ("mul_3", "sum_1", "mul_3 and sum_1 are computed by one kernel"),
        (
            "rsqrt",
            "sum_1",
            r"not in one kernel, but in \w+ and \w+ \(one would save 1,088 bytes\): they reduce over diff",
        ),
        (
            "mm",
            "mul",
            r"^kernels are not merged with calls of PyTorch. mm is a call of PyTorch \(.*PyTorch's own kernel\)$",
        ),
        ("primals_1", "mul", "primals_1 is an input of the graph: no kernel computes it"),
        ("permute", "mul", "permute is a view of primals_1, which costs nothing; primals_1 is an input"),
        (
            "var_mean",
            "rsqrt",
            r"^var_mean and rsqrt are computed by one kernel, \w+. var_mean is computed by var_mean_sum, ",
        ),
        ("sum_1", "exp", "sum_1 is in the forward, exp is in the backward: graphs run one after the other"),
        ("exp", "mul_9", "in the backward: exp and mul_9 are computed by one kernel"),
    ],
)
def test_why_explains_any_two_names(trained: Inspection, first: str, second: str, expected: str) -> None:
    assert re.search(expected, trained.why(first, second)), trained.why(first, second)


def test_why_explains_inlined_removed_and_merged_values() -> None:
    def call(x: torch.Tensor, b: torch.Tensor) -> Any:
        return x * (b + 1), (x + 2) * (x.view(8, 16) + 2), x.sort().values

    p = compiler.open(call, numbers(8, 16), numbers(16))
    assert "add is computed where it is read, in the loops of mul (inline: costs" in p.why("add", "mul")
    assert "add and mul are computed by one kernel, " in p.why("add", "mul")
    assert "add_2 computes the same as add_1 (simplify" in p.why("add_2", "mul_1")
    assert "sort_0 is a call of PyTorch" in p.why("sort_0", "mul")
    with pytest.raises(BackendError, match="no value 'mull'; did you mean mul"):
        p.why("mull", "mul")


def test_why_knows_operations_before_decomposition() -> None:
    """It knows the user's own names: one call is several loops, possibly in several kernels."""

    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = functional.layer_norm(x @ w, (16,))
        return torch.softmax(y, 0)

    p = compiler.open(block, numbers(8, 8), numbers(8, 16))
    why = p.why("matmul", "softmax")
    assert why.startswith("kernels are not merged with calls of PyTorch. matmul is mm; mm is a call of PyTorch")
    why = p.why("layer_norm", "softmax")
    assert "softmax is amax, sub_1, exp, sum_1, div" in why
    assert re.search(
        r"layer_norm and softmax are computed by one kernel, \w+; parts of them by \w+|not in one kernel", why
    )
    layers = [layer for _ in range(3) for layer in (nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU())]
    many = compiler.open(nn.Sequential(*layers), numbers(4, 16))
    why = many.why("layer_norm", "gelu")
    assert why.startswith("layer_norm and gelu are computed by one kernel, gelu_layer_norm; parts of them by layer_n")
    assert re.search(r"\. layer_norm is var_mean, .*, … 21 in all; ", why)
    assert "gelu_backward" in many.backward.why("gelu_backward", "layer_norm_backward")
    with pytest.raises(BackendError, match=r"no value 'attention'; each stage shows its names: print\(p.lowered\)"):
        p.why("attention", "softmax")


def test_why_names_the_threshold_that_prevents_fusion() -> None:
    p = compiler.open(block, numbers(8, 16), numbers(16, 32)).with_thresholds(fused_loops=2)
    assert "more than 2 loops in one kernel" in p.why("mul_3", "sum_1")


def test_a_graph_without_inputs_is_checked() -> None:
    found = compiler.open(lambda: torch.arange(64.0) * 2 + 1).check()
    assert found.first is None
    assert {*found.table.verdict} == {"equal"}


@pytest.mark.parametrize(("distance", "kernels"), [(1, 3), (2, 2)])
def test_readers_fuse_up_to_the_fusion_distance(distance: int, kernels: int) -> None:
    def readers(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.sin(), y * 2, x.cos()

    p = compiler.open(readers, numbers(8, 16), numbers(4)).with_thresholds(fusion_distance=distance)
    assert len(p.graph.stages.last.kernels) == kernels


def test_why_separates_unfused_from_refused(trained: Inspection) -> None:
    why = trained.replace("fuse", unfused).why("sub", "mul")
    assert why.endswith("one would be legal, and save 2,048 bytes; the pass that ran as fuse did not merge them")

    def refusing(program: Program, ctx: Context) -> Program:
        ctx.decide(("sub", "mul"), "refused", "I don't like it")
        return program

    assert trained.replace("fuse", refusing).why("sub", "mul").endswith("as fuse refused: I don't like it")

    def refusing_another(program: Program, ctx: Context) -> Program:
        ctx.decide(("sub", "rsqrt"), "refused", "I don't like that")
        return program

    assert trained.replace("fuse", refusing_another).why("sub", "mul").endswith("ran as fuse did not merge them")


def test_why_names_the_step_between_two_kernels() -> None:
    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y + y @ w

    why = compiler.open(call, numbers(8, 8), numbers(8, 8)).why("sin", "add")
    assert why.endswith("a step between them needs the first and is needed by the second (aten.mm.default)")
    sort = compiler.open(lambda x: x.sort(), numbers(8))
    assert sort.why("sort_0", "sort_1").startswith("sort_0 and sort_1 come from one call of PyTorch, aten.sort.de")


@pytest.mark.skipif(not build_cpp.compiler(), reason="no C++ compiler")
def test_replaced_pass_runs_with_gradients(trained: Inspection) -> None:
    x, weight = numbers(8, 16, grad=True), numbers(16, 32, grad=True)
    slow = trained.replace("fuse", unfused)
    assert slow.totals.kernels > trained.totals.kernels
    assert slow.code.count("extern") > trained.code.count("extern")
    torch.testing.assert_close(slow.run(), block(x, weight))
    own = torch.autograd.grad(slow.run(x, weight).square().sum(), (x, weight))
    torch.testing.assert_close(own, torch.autograd.grad(block(x, weight).square().sum(), (x, weight)))
    torch.testing.assert_close(slow.run(numbers(5, 16), weight), block(numbers(5, 16), weight))
    assert x.grad is None


@pytest.mark.skipif(not build_cpp.compiler(), reason="no C++ compiler")
def test_program_without_planned_memory_runs(trained: Inspection) -> None:
    unplanned = trained.replace("schedule", unfused)
    assert "del " not in unplanned.call
    torch.testing.assert_close(unplanned.run(), block(numbers(8, 16), numbers(16, 32)))


def test_every_stage_is_checked_on_the_original_inputs(trained: Inspection) -> None:
    found = trained.check()
    assert found.first is None
    assert set(found.table.graph) == {"forward", "backward"}
    assert set(found.table.verdict) <= {"equal", "close"}
    assert "Every stage computes what eager does" in str(found)


def test_first_wrong_pass_and_value_are_named(trained: Inspection) -> None:
    def wrong(program: Program, ctx: Any) -> Program:
        return with_constant(fuse(program, ctx), 0.5, 0.51)

    first = trained.replace("fuse", wrong).check().first
    assert first is not None
    assert (first.graph, first.stage, first.changed_by, first.where) == ("forward", "fused", "fuse", "mul_1")
    assert first.numbers[0].max_relative == pytest.approx(0.02, rel=0.1)
    found = trained.replace("fuse", wrong).check()
    assert "The pass fuse is the first whose result differs, in the forward" in found.verdict
    assert "The first value that differs is mul_1." in found.verdict


def test_illegal_pass_is_refused_on_replace(trained: Inspection) -> None:
    with pytest.raises(BrokenProgramError, match="after the pass order"):
        trained.replace("order", lambda program, _: replace(program, steps=program.steps[::-1]))
    with pytest.raises(BrokenProgramError, match="the pass order returned None, not a Program"):
        trained.replace("order", lambda *_: None)
    with pytest.raises(BackendError, match=r"a pass takes a program and a context.*def order\(program, ctx\)"):
        trained.replace("order", lambda program: program)
    with pytest.raises(BackendError, match=r"no pass 'order_'.*did you mean order"):
        trained.replace("order_", unfused)


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda p: p.with_thresholds(fused_lops=3), OptionError, "no option 'fused_lops'; did you mean 'fused_loops'"),
        (lambda p: p.with_thresholds(fused_loops=0), OptionError, "fused_loops=0 must be a whole number above 0"),
        (lambda p: p.with_thresholds(fused_loops=2.5), OptionError, "fused_loops=2.5 must be a whole number"),
        (lambda p: p.why("gellu", "mm"), BackendError, r"no value 'gellu'; did you mean gelu\?$"),
        (lambda p: p.why(p.fused.kernels[0], "mm"), BackendError, "takes the names of two values, as text"),
        (lambda p: p.replace("lower", unfused), BackendError, "no pass 'lower'.*; simplify is given what was lowered"),
        (lambda p: p.replace("fuse", dict), TypeError, "dict expected at most 1 argument"),
        (lambda p: p.on("h10"), ValueError, "no GPU 'h10' in the table; did you mean 'h100'. It has a100"),
        (lambda _: compiler.open(3), TypeError, "takes a function or a module, and what to call it with; got 3"),
    ],
)
def test_invalid_arguments_raise_in_user_terms(
    trained: Inspection, ask: Callable[[Inspection], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ask(trained)


def test_exception_of_a_pass_has_a_short_traceback(trained: Inspection) -> None:
    def helper() -> Program:
        raise KeyError("mine")

    def careless(_program: Program, _ctx: Context) -> Program:
        return helper()

    with pytest.raises(KeyError, match="mine") as captured:
        trained.replace("fuse", careless)
    assert [entry.name for entry in captured.traceback][1:] == ["replace", "careless", "helper"]
    with pytest.raises(BrokenProgramError) as broken:
        trained.replace("fuse", lambda *_: None)
    assert [entry.name for entry in broken.traceback][1:] == ["replace"]


def test_check_leaves_the_module_unchanged() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU())
    p = compiler.open(model, numbers(4, 16))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    assert p.check().first is None
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_random_graph_stages_compare_with_the_lowered_stage() -> None:
    found = compiler.open(lambda x: functional.dropout(x * 2).relu(), numbers(16, 16)).check()
    assert found.first is None
    assert found.drawing == ("inference",)


def test_graphs_around_a_break_have_names() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    p = compiler.open(broken, numbers(4))
    assert [graph.name for graph in p.graphs] == ["inference", "inference_2"]
    assert "cos" in str(p.of("inference_2").lowered)
    with pytest.raises(BackendError, match="there is no backward graph, only inference"):
        _ = p.backward


def test_on_lowers_again_for_an_absent_gpu(trained: Inspection) -> None:
    there = trained.on("a100")
    assert {buffer.device for buffer in there.lowered.buffers} == {"cuda:0"}
    assert "A100" in repr(there)
    assert "@triton.jit" in there.code
    assert "@triton.jit" in trained.triton
    with pytest.raises(BackendError, match="not here"):
        there.run()
    with pytest.raises(BackendError, match="not here"):
        there.check()


CHOSEN_BY_A_GPU: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], str]] = {
    "channels-last memory": (
        nn.Sequential(nn.Conv2d(3, 128, 3), nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 128, 3)),
        (numbers(2, 3, 8, 8),), "laid out",
    ),
    "longer rows": (
        lambda x, weight: (x @ weight).float().logsumexp(-1),
        (numbers(512, 768).bfloat16().requires_grad_(), numbers(768, 30522).bfloat16()), "laid out",
    ),
    "its kernel for attention": (
        functional.scaled_dot_product_attention, tuple(numbers(1, 2, 32, 16, grad=True) for _ in range(3)), "efficient",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOSEN_BY_A_GPU)
def test_on_matches_an_exploration_for_that_gpu(name: str) -> None:
    fn, args, verdict = CHOSEN_BY_A_GPU[name]
    there = compiler.open(fn, *args).on("h100")
    record = explore(fn, args, options=Options(backend="tcompile", target="h100")).record
    assert [str(graph.programs["scheduled"]) for graph in there.graphs] == [
        artifact.text.rstrip("\n") for artifact in record.of_stage("scheduled")
    ]
    assert verdict in [*there.decisions.verdict]
    assert verdict in [*there.with_thresholds(fused_loops=1).decisions.verdict]


def test_opening_on_a_gpu_has_no_side_effects(capsys: pytest.CaptureFixture[str]) -> None:
    def chatty(x: torch.Tensor) -> torch.Tensor:
        y = norm(x)
        print("heard")  # noqa: T201
        return y * torch.rand(4)

    norm = nn.BatchNorm1d(4)
    opened = compiler.open(chatty, numbers(8, 4))
    mean, seed = norm.running_mean.clone(), torch.get_rng_state()
    capsys.readouterr()
    opened.on("h100")
    assert capsys.readouterr().out == ""
    torch.testing.assert_close(norm.running_mean, mean, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), seed)


def test_unsupported_dtype_of_a_gpu_is_reported() -> None:
    opened = compiler.open(torch.sin, numbers(4).bfloat16())
    with pytest.raises(BackendError, match="bfloat16"):
        opened.on("t4")


def test_broken_program_traceback_hides_the_verifier(trained: Inspection) -> None:
    with pytest.raises(BrokenProgramError, match="after the pass fuse") as raised:
        trained.replace("fuse", lambda program, _: program.with_steps(program.steps[:-1]))
    assert [entry.name for entry in raised.traceback] == [
        "test_broken_program_traceback_hides_the_verifier", "replace",
    ]  # fmt: skip


def test_text_omits_untimed_values(trained: Inspection) -> None:
    assert "<NA>" not in str(trained)


def test_the_call_and_the_kernels_can_be_read(trained: Inspection) -> None:
    assert trained.call.startswith("def call(args):")
    assert all(kernel.name in trained.code for kernel in trained.scheduled.kernels)


CALLS: dict[str, Callable[[], Inspection]] = {
    "inputs changed in place": lambda: compiler.open(lambda x: x.mul_(2).sin(), numbers(4, 4)),
    "symbolic sizes": lambda: compiler.open(lambda x: x.softmax(-1), numbers(7, 9), dynamic=True),
    "symbolic channels of groups": lambda: compiler.open(
        lambda x: functional.group_norm(x, 4), numbers(2, 16, 3, 3, grad=True), dynamic=True
    ),
    "a number made of symbolic sizes": lambda: compiler.open(
        lambda x, at: functional.cross_entropy(x, at, label_smoothing=0.1),
        numbers(6, 10),
        torch.arange(6),
        dynamic=True,
    ),
    "a function that was compiled already": lambda: compiler.open(torch.compile(lambda x: x.sin() + 1), numbers(4)),
    "a training step of convolutions": lambda: compiler.open(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)), numbers(2, 3, 8, 8)
    ),
    "bfloat16": lambda: compiler.open(
        lambda x, w: functional.gelu(x @ w).sum(-1), numbers(8, 8).bfloat16(), numbers(8, 8).bfloat16()
    ),
    "no elements": lambda: compiler.open(lambda x: (x * 2 + 1).sum(0), torch.ones(0, 4)),
    "no inputs": lambda: compiler.open(lambda: torch.ones(4) + 1),
    "a backward inside of the call": lambda: compiler.open(
        lambda x: torch.autograd.grad(x.relu().square().sum(), x)[0], numbers(4, grad=True)
    ),
}


@cache
def opened(what: str) -> Inspection:
    return CALLS[what]()


@pytest.mark.parametrize("what", CALLS)
def test_many_kinds_of_calls_open_and_check(what: str) -> None:
    p = opened(what)
    assert p.check().first is None
    assert p.totals.kernels >= 1
    assert len(p.kernels) == len(p.scheduled.steps)
    assert p.call


@pytest.mark.parametrize("what", ["symbolic sizes", "symbolic channels of groups", "a number made of symbolic sizes"])
def test_guard_dependent_sizes_lower_while_guards_exist(what: str) -> None:
    assert opened(what).on("h200").totals.kernels >= 1


def test_scalar_specialized_on_retrace_opens() -> None:
    """TorchDynamo then calls the backend again, which is not an error."""
    x = torch.linspace(-4, 4, 12).view(4, 3)
    call = compiler.open(lambda x, limit: x.clamp(-limit, limit) + 1, x, 1.5, dynamic=True)
    torch.testing.assert_close(call.run(), x.clamp(-1.5, 1.5) + 1)
