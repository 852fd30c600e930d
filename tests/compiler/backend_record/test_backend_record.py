"""Our own backend in a record: the program after each pass, the code, and one selection from Python down to SASS."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from compiler.backend.pipeline import PASSES, stage_name
from compiler.binary.compiling import compile_record
from compiler.engine import explore
from compiler.numerics.kernel_check import kernel_checks
from compiler.option_checks import parse_options
from compiler.record import OWN_STAGES, STAGES, Artifact, Decision, Record, ordered_stages, stage_rank
from compiler.record.options import OptionError, Options
from compiler.triton_interpreter.process import Interpreter

HERE = "source[tests/compiler/backend_record/test_backend_record.py]"
STAGES_OF_PASSES = ["lowered", *map(stage_name, PASSES)]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / 4
        mask = torch.ones(8, 8, dtype=torch.bool).tril()
        return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def mlp(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    hidden = torch.relu(x @ first)
    return torch.tanh(hidden @ second)


def norm_and_gelu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    normed = nn.functional.layer_norm(x, (32,), weight)
    return nn.functional.gelu(normed)


def _calls(name: str) -> tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    x = torch.randn(4, 32)
    known: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
        "mlp": (mlp, (x, torch.randn(32, 16, requires_grad=True), torch.randn(16, 8, requires_grad=True))),
        "norm and gelu": (norm_and_gelu, (x, torch.randn(32, requires_grad=True))),
        "attention": (Attention(), (torch.randn(2, 8, 16),)),
    }
    return known[name]


@cache
def record_of(name: str, target: str) -> Record:
    fn, args = _calls(name)
    found = explore(fn, args, options=parse_options(backend="tcompile", target=target))
    assert torch.equal(found.value, fn(*args))
    assert not found.record.problems
    return found.record


CASES = pytest.mark.parametrize(
    ("name", "target"),
    [("mlp", "cpu"), ("mlp", "h100"), ("norm and gelu", "cpu"), ("norm and gelu", "h100"), ("attention", "h100")],
)


def source_lines(record: Record, ids: tuple[str, ...]) -> set[str]:
    """The lines of this file's functions and modules that some entities came from."""
    found = {linked for each in ids for linked in record.linked_ids(each)}
    return {each for each in found if each.startswith(HERE)}


@CASES
def test_each_pass_is_a_stage_of_each_graph(name: str, target: str) -> None:
    record = record_of(name, target)
    stages = list(dict.fromkeys(artifact.stage for artifact in record.artifacts))
    assert [stage for stage in stages if stage in STAGES_OF_PASSES] == STAGES_OF_PASSES
    assert stages.index("backward") < stages.index("lowered")
    assert stages.index("kernels") == stages.index(STAGES_OF_PASSES[-1]) + 1
    for stage in STAGES_OF_PASSES:
        assert [found.id for found in record.of_stage(stage)] == [f"{stage}[0/0 forward]", f"{stage}[0/0 backward]"]


@CASES
def test_every_code_line_links_to_a_python_line(name: str, target: str) -> None:
    record = record_of(name, target)
    kernels = [artifact for artifact in record.of_stage("kernels") if not artifact.id.endswith("call]")]
    assert len(kernels) == 2
    for artifact in kernels:
        assert artifact.lines
        rows = artifact.text.split("\n")
        for number, ids in artifact.lines.items():
            assert source_lines(record, ids), f"{artifact.id}:{number} {rows[number - 1]}"


@CASES
def test_computing_line_links_to_its_commented_source_line(name: str, target: str) -> None:
    record = record_of(name, target)
    artifact = record["kernels[0/0 forward]"]
    told = [(number, row.strip()) for number, row in enumerate(artifact.text.split("\n"), 1) if "_record.py:" in row]
    assert told
    for number, row in told:
        line = int(row.partition("_record.py:")[2].split(" ")[0])
        assert f"{HERE}.L{line}" in source_lines(record, artifact.lines[number][-1:])


@CASES
def test_loops_link_back_to_graph_and_to_code(name: str, target: str) -> None:
    record = record_of(name, target)
    known = {entity.id for entity in record.entities()}
    for stage in STAGES_OF_PASSES:
        for artifact in record.of_stage(stage):
            for entity in artifact.entities:
                assert set(entity.inputs) | set(entity.origins) <= known
                if entity.kind in ("kernel", "loop", "extern"):
                    assert source_lines(record, (entity.id,)), entity.id
    last = [entity for found in record.of_stage(STAGES_OF_PASSES[-1]) for entity in found.entities]
    for entity in last:
        if entity.kind in ("kernel", "extern"):
            assert any(linked.startswith("kernels[") for linked in record.linked_ids(entity.id)), entity.id


def test_split_reduction_parts_link_back() -> None:
    options = parse_options(backend="tcompile", target="h100")
    record = explore(lambda x: x.exp().sum(), (torch.randn(1 << 20),), options=options).record
    parts = [entity for entity in record.entities() if entity.kind == "kernel" and entity.label.endswith("_parts")]
    assert parts
    for kernel in parts:
        assert kernel.origins
        assert source_lines(record, (kernel.id,))


@CASES
def test_decisions_refer_to_entities(name: str, target: str) -> None:
    record = record_of(name, target)
    known = {entity.id for entity in record.entities()}
    decided = [found for found in record.decisions if found.pass_name in ("lower", *PASSES)]
    told = {found.pass_name for found in decided}
    assert "fuse" in told
    assert ("lower" in told) == (name != "norm and gelu")  # it has no extern call
    for found in decided:
        assert found.graph == "0/0"
        assert set(found.subjects) <= known, found
        assert found.why


@CASES
def test_kernels_have_bytes_loops_and_extern_names(name: str, target: str) -> None:
    record = record_of(name, target)
    language = "cpp" if target == "cpu" else "triton"
    assert {kernel.language for kernel in record.kernels} <= {language, "aten"}
    for kernel in record.kernels:
        assert kernel.bytes > 0
        assert len(kernel.nodes) == 1
        first, last = kernel.lines
        body = "\n".join(record[kernel.artifact].text.split("\n")[first - 1 : last])
        assert (kernel.name if kernel.language != "aten" else kernel.name.replace(".", "_")) in body
    if name != "norm and gelu":  # small matmuls are kernels on GPUs
        assert ("extern" if target == "cpu" else "template") in {kernel.category for kernel in record.kernels}


@CASES
def test_record_round_trips_through_json(name: str, target: str) -> None:
    record = record_of(name, target)
    assert Record.from_json(record.to_json()) == record


def test_kernel_bytes_count_each_buffer_once() -> None:
    forward = [kernel for kernel in record_of("norm and gelu", "h100").kernels if "forward" in kernel.artifact]
    statistics = 2 * 4 * 4  # a mean and a deviation of each row are saved for the backward
    assert [kernel.bytes for kernel in forward] == [4 * 32 * 4 + 32 * 4 + 4 * 32 * 4 + statistics]


def test_python_line_links_to_machine_instructions() -> None:
    record = compile_record(record_of("norm and gelu", "h100"), workers=1)
    assert not record.problems
    sass = next(found for found in record.of_stage("sass") if "forward" in found.id)
    reached = {each.partition("[")[0] for line in sass.lines.values() for each in record.linked_ids(line[0])}
    assert {"source", "captured", "forward", "lowered", "fused", "kernels", "sass"} <= reached
    line = norm_and_gelu.__code__.co_firstlineno + 2
    gelu = record.linked_ids(f"{HERE}.L{line}")
    for stage in ("lowered", "fused", "kernels", "ttir", "ttgir", "llir", "ptx", "sass"):
        assert any(each.startswith(f"{stage}[") for each in gelu), stage


def test_binaries_of_our_kernels_have_facts() -> None:
    record = compile_record(record_of("norm and gelu", "h100"), workers=1, stages=["sass"])
    ours = [kernel.id for kernel in record.kernels if kernel.language == "triton"]
    assert [binary.kernel for binary in record.binaries] == ours
    for binary in record.binaries:
        assert binary.registers
        assert binary.occupancy
        assert binary.flops > 0
        assert binary.programs > 0
        assert binary.config == binary.configs[0]


def test_other_configs_are_compiled_on_request() -> None:
    base = record_of("norm and gelu", "h100")
    kernel = next(kernel for kernel in base.kernels if kernel.language == "triton")
    record = compile_record(base, kernels=[kernel.id], config=1, workers=1, stages=["sass"])
    configs = record[kernel.artifact].entity(kernel.id).attrs["launch"]["configs"]
    assert [binary.config for binary in record.binaries] == [configs[1]]
    beyond = compile_record(base, kernels=[kernel.id], config=len(configs), workers=1)
    assert f"there is no configuration {len(configs)}" in beyond.problems[0].reason


def test_thresholds_reach_the_passes() -> None:
    fn, args = _calls("norm and gelu")
    fewest = explore(fn, args, options=parse_options(backend="tcompile", target="h100", options={"fused_loops": 1}))
    usual = record_of("norm and gelu", "h100")
    assert len(fewest.record.kernels) > len(usual.kernels)
    assert any(found.pass_name == "fuse" and found.verdict == "refused" for found in fewest.record.decisions)


@CASES
def test_kernel_signature_line_links_to_the_kernel(name: str, target: str) -> None:
    """A click there selects the kernel: its facts, and the link to the kernel lab."""
    found = record_of(name, target)
    for kernel in found.kernels:
        if kernel.language in ("cpp", "triton"):
            artifact = found[kernel.artifact]
            rows = artifact.text.split("\n")
            opening = next(line for line in range(*kernel.lines) if kernel.name in rows[line - 1])
            assert artifact.lines[opening] == (kernel.id,)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"options": {"inline_costs": 3}}, "did you mean 'inline_cost'?"),
        ({"options": {"fused_loops": 0}}, "must be a whole number above 0"),
        ({"options": {"triton.cudagraphs": True}}, "backend tcompile has no option 'triton.cudagraphs'"),
        ({"check": "kernels", "target": "cpu"}, "code for the CPU is C++: name a GPU as target"),
        ({"mode": "reduce-overhead", "options": {"tile": 32}}, "takes a mode or options, not both"),
    ],
)
def test_unsupported_option_is_refused_up_front(keywords: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=re.escape(words)):
        parse_options(backend="tcompile", **keywords)


def test_lowering_failure_is_a_problem_and_call_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such loop")

    monkeypatch.setattr("compiler.backend.backend.lower", broken)
    fn, args = _calls("mlp")
    found = explore(fn, args, options=parse_options(backend="tcompile"))
    assert torch.equal(found.value, fn(*args))
    assert {(problem.stage, problem.reason) for problem in found.record.problems} == {("lowered", "no such loop")}


def test_stages_keep_pass_order_with_new_ones_last() -> None:
    assert sorted(STAGES_OF_PASSES, key=stage_rank) == STAGES_OF_PASSES
    assert stage_rank(OWN_STAGES[-1]) < stage_rank("tiled") < stage_rank("kernels")
    known = ["forward", "lowered", "fused", "tiled", "ordered", "kernels"]
    assert ordered_stages([*known, "lowered", "source"]) == ["source", *known]
    assert set(OWN_STAGES) <= set(STAGES)


def test_unchanged_stage_prints_the_same() -> None:
    def shown(artifact: Artifact) -> str:
        return artifact.text

    record = record_of("mlp", "cpu")
    assert shown(record["split[0/0 forward]"]) == shown(record["inlined[0/0 forward]"])


def decisions_of(fn: Callable[..., object], *args: torch.Tensor, mode: str) -> dict[str, list[Decision]]:
    record = explore(fn, args, options=parse_options(backend="tcompile", target="h100", mode=mode)).record
    assert not record.problems
    known = {entity.id for artifact in record.artifacts for entity in artifact.entities}
    assert {subject for found in record.decisions for subject in found.subjects} <= known
    names = ("cudagraphs", "tune")
    return {name: [found for found in record.decisions if found.pass_name == name] for name in names}


def layers(count: int) -> nn.Sequential:
    """Matmuls that are too large to be our own kernels."""
    return nn.Sequential(*(layer for _ in range(count) for layer in (nn.Linear(256, 256), nn.Softmax(1))))


def test_cuda_graph_decisions_state_copies_and_refusals() -> None:
    model = layers(5)
    halves = decisions_of(model, torch.randn(64, 256), mode="reduce-overhead")["cudagraphs"]
    assert [found.verdict for found in halves] == ["captured", "captured"]
    assert "10 of its 11 inputs stay where they are, the rest are copied in" in halves[0].why
    assert halves[0].numbers["operations"] == len(halves[0].subjects) > 1

    [refused] = decisions_of(lambda x: x.add_(1).sin(), torch.randn(8), mode="reduce-overhead")["cudagraphs"]
    assert refused.verdict == "refused"
    assert "inference: it writes into an input" in refused.why
    assert decisions_of(model, torch.randn(64, 256), mode="default") == {"cudagraphs": [], "tune": []}


def test_few_inference_launches_are_not_replayed() -> None:
    def few(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(0)

    [refused] = decisions_of(few, torch.randn(8, 8), mode="reduce-overhead")["cudagraphs"]
    assert refused.verdict == "refused"
    assert "inference: launched one by one, its steps (1) take the host less time than a replay" in refused.why
    [taken] = decisions_of(lambda x: (few(x) @ x @ x).relu(), torch.randn(256, 256), mode="reduce-overhead")[
        "cudagraphs"
    ]
    assert taken.verdict == "captured"


def test_short_forward_and_backward_are_not_replayed() -> None:
    halves = decisions_of(layers(1), torch.randn(64, 256), mode="reduce-overhead")["cudagraphs"]
    assert [found.verdict for found in halves] == ["refused", "refused"]
    assert "forward: launched one by one, its steps (2) take the host less time than a replay" in halves[0].why
    assert "backward: the forward is not replayed, and then the backward is not either" in halves[1].why


def test_unreplayed_training_graph_uses_default_mode_code() -> None:
    """Its backward may check whether the graph is retained, and overwrites donated buffers: a replay can't."""
    model, x = nn.Sequential(nn.Linear(64, 256), nn.GELU()), torch.randn(64, 64, requires_grad=True)
    default, reduced = (
        explore(model, (x,), options=parse_options(backend="tcompile", target="h100", mode=mode)).record
        for mode in ("default", "reduce-overhead")
    )
    texts = [[found.text for found in record.of_stage("kernels")] for record in (default, reduced)]
    assert texts[0] == texts[1]
    assert any("if kept else addmm" in text for text in texts[0])


def test_max_autotune_names_the_configs_it_would_time() -> None:
    [found] = decisions_of(lambda x: x.softmax(-1), torch.randn(64, 512), mode="max-autotune-no-cudagraphs")["tune"]
    assert found.verdict == "not timed"
    assert found.numbers["configurations"] > 1
    assert "by rule; also tried would be XBLOCK" in found.why


def test_code_comments_name_notebook_cells() -> None:
    code = "def f(x):\n    return x.sin() + 1\n"
    file = "/tmp/ipykernel_12/345678.py"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    names: dict[str, Callable[..., object]] = {}
    exec(compile(code, file, "exec"), names)
    record = explore(names["f"], (torch.randn(8),), options=parse_options(backend="tcompile", target="h100")).record
    [kernels] = [found for found in record.of_stage("kernels") if found.attrs.get("language") == "triton"]
    assert "# cell:2 return x.sin() + 1" in kernels.text
    assert "345678" not in kernels.text


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.table = nn.LayerNorm(16), nn.Embedding(10, 16)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.table(index))
        y = nn.functional.scaled_dot_product_attention(y, y, y)
        return (nn.functional.dropout(y, 0.25).tanh() * 3).sum()


def test_check_kernels_finds_the_wrong_triton_kernel() -> None:
    """Forward and backward, with random numbers, a GPU's attention kernel, and scatter-add to rows."""
    asked = parse_options(backend="tcompile", target="h100", check="kernels")
    explored = explore(Looked(), (torch.randint(0, 10, (1, 2, 32)),), options=asked)
    record = explored.record
    kernels = [kernel.id for kernel in record.kernels if kernel.language == "triton"]
    assert [check.subject for check in record.checks] == kernels
    assert {check.verdict for check in record.checks} <= {"equal", "close"}

    changed = tuple(replace(found, text=found.text.replace("1e-05", "1e-01")) for found in record.artifacts)
    with Interpreter() as interpreter:
        checks = [*kernel_checks(record.with_fields(artifacts=changed), explored.kept, interpreter)]
    assert [check.verdict for check in checks].count("differs") == 1
    [wrong] = [check for check in checks if check.verdict == "differs"]
    assert wrong.subject == kernels[0]
    assert wrong.max_absolute


def test_unchanged_extern_call_originates_from_itself() -> None:
    """A kernel may have the name of another matmul's result."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    record = explore(model, (torch.randn(4, 16, 64),), options=Options(backend="tcompile", target="h200")).record
    calls = [entity for stage in STAGES_OF_PASSES[1:] for artifact in record.of_stage(stage)
             for entity in artifact.entities if entity.kind == "extern"]  # fmt: skip
    targets = {entity.id: entity.attrs.get("target") for entity in record.entities()}
    assert len(calls) > len(STAGES_OF_PASSES)
    for call in calls:
        assert [targets[origin] for origin in call.origins] == [call.attrs["target"]], call.id


def test_kernel_links_to_its_step_despite_name_clash() -> None:
    record = record_of("mlp", "h100")
    steps = {entity.id: entity for artifact in record.of_stage("scheduled") for entity in artifact.entities}
    kernels = [kernel for kernel in record.kernels if kernel.category != "extern"]
    assert sum(kernel.category == "template" for kernel in kernels) > 2
    for kernel in kernels:
        (node,) = kernel.nodes
        assert steps[node].kind == "kernel"
        assert kernel.name == f"kernel_{steps[node].label}"
        assert kernel.bytes == sum(steps[node].attrs["moves"].values())


def test_long_signature_has_one_parameter_per_line() -> None:
    def mix(first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
        return first + second + third

    inputs = [torch.randn(4, 16, 64) for _ in range(3)]
    captured = explore(mix, inputs, options=Options(backend="eager")).record["captured"].text
    opening, *parameters, closing = captured.split("\n")[:5]
    assert opening == "def forward(self,"
    assert [line.split(": ")[1] for line in parameters] == ['"f32[4, 16, 64][1024, 64, 1]cpu",'] * 3
    assert closing == "):"
