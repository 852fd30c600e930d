"""Modes for a GPU that is not here: max-autotune's candidates, CUDA graphs, and the reasons against them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compiler.engine import Exploration
from compiler.inductor.candidates import candidate_source, candidates_artifact
from compiler.option_checks import parse_options
from compiler.record import Artifact, Decision, Entity, Record
from compiler.torch_api.kernel_choices import Candidate, Selection
from compiler.virtual_gpu.templates import Templates

triton = pytest.importorskip("triton", reason="Triton has no wheel for this platform")
OLD_TRITON = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)


class Gelu(nn.Module):
    """Linear, GELU, Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def explored(fn: Callable[..., Any], *args: Any, **options: Any) -> Record:
    """The record for a target, h100 unless told, of one call and, where there are gradients, its backward."""
    with Exploration(parse_options(**({"target": "h100"} | options))) as exploration:
        value = exploration.compile(fn)(*args)
        if isinstance(value, Tensor) and value.requires_grad:
            value.float().sum().backward()
    assert exploration.record.problems == ()
    return exploration.record


@cache
def trained(dtype: torch.dtype, mode: str = "max-autotune") -> Record:
    return explored(Gelu().to(dtype), torch.randn(64, 128, dtype=dtype), mode=mode)


@cache
def inferred() -> Record:
    return explored(Gelu().half(), torch.randn(64, 128).half(), mode="max-autotune", grad=False)


def decisions(record: Record, pass_name: str) -> list[Decision]:
    return [decision for decision in record.decisions if decision.pass_name == pass_name]


def templates(record: Record) -> list[str]:
    """The text of every Triton template kernel."""
    return [
        "\n".join(record[kernel.artifact].text.split("\n")[kernel.lines[0] - 1 : kernel.lines[1]])
        for kernel in record.kernels
        if kernel.category == "template"
    ]


def candidates(artifact: Artifact) -> list[Entity]:
    return [entity for entity in artifact.entities if entity.kind == "candidate"]


# max-autotune


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        (torch.bfloat16, "max-autotune"),
        (torch.float32, "max-autotune"),
        (torch.float16, "max-autotune-no-cudagraphs"),
    ],
    ids=str,
)
def test_every_matmul_is_a_template_with_listed_candidates(dtype: torch.dtype, mode: str) -> None:
    record = trained(dtype, mode)
    found = decisions(record, "autotuning")
    assert [decision.subjects[0].rpartition("[")[2] for decision in found] == [
        "0/0 forward].addmm", "0/0 forward].addmm_1", "0/0 backward].mm", "0/0 backward].mm_1", "0/0 backward].mm_2",
    ]  # fmt: skip
    entities = {entity.id for entity in record.entities()}
    for decision in found:
        assert decision.verdict.startswith("triton_mm BLOCK_M=")
        assert "extern_kernels." in decision.why
        assert "BLOCK_M×BLOCK_N×BLOCK_K×num_warps×num_stages: " in decision.why
        assert "the first Triton template is shown" in decision.why
        assert decision.numbers["candidates"] > decision.numbers["templates"] > 10
        assert set(decision.subjects) <= entities
    assert len(templates(record)) == 5
    assert bool(decisions(record, "cudagraphs")) == (mode == "max-autotune")


def test_matmul_epilogue_is_fused_into_the_template() -> None:
    first = templates(inferred())[0]
    assert "tl.dot" in first
    assert "libdevice.erf" in first


def test_shown_config_matches_the_kernel() -> None:
    record = inferred()
    for decision, text in zip(decisions(record, "autotuning"), templates(record), strict=True):
        settings = dict(setting.split("=") for setting in decision.verdict.split()[1:])
        assert f"num_warps={settings['num_warps']}," in text
        assert f"num_stages={settings['num_stages']}," in text
        assert f"BLOCK_M : tl.constexpr = {settings['BLOCK_M']}" in text


@pytest.mark.parametrize(
    ("fn", "inputs", "operation", "kernel"),
    [
        (lambda a, b: (a @ b).relu(), [(4, 64, 32), (4, 32, 64)], "bmm", "triton_bmm"),
        (torch.baddbmm, [(4, 64, 64), (4, 64, 32), (4, 32, 64)], "baddbmm", "triton_bmm"),
        (lambda a, b: a @ b, [(64, 32), (32, 64)], "mm", "triton_mm"),
        (nn.Conv2d(16, 32, 3).half(), [(2, 16, 32, 32)], "convolution", "triton_convolution2d"),
    ],
    ids=["bmm", "baddbmm", "mm", "convolution"],
)
def test_other_operations_have_templates_too(
    fn: Callable[..., Any], inputs: list[tuple[int, ...]], operation: str, kernel: str
) -> None:
    record = explored(fn, *(torch.randn(shape).half() for shape in inputs), mode="max-autotune", grad=False)
    (decision,) = decisions(record, "autotuning")
    assert decision.verdict.startswith(f"{kernel} BLOCK_M=")
    assert f"for {operation} of " in decision.why
    assert len(templates(record)) == 1


def test_dynamic_sizes_are_symbols_in_the_template() -> None:
    record = explored(Gelu().half(), torch.randn(64, 128).half(), mode="max-autotune", dynamic=True)
    assert len(templates(record)) == 5
    assert all("M = ks" in text or "N = ks" in text or "K = ks" in text for text in templates(record))


def test_only_requested_gemm_backends_are_considered() -> None:
    x = torch.randn(64, 128).half()
    only_triton = explored(Gelu().half(), x, grad=False, options={
        "max_autotune": True, "max_autotune_gemm_backends": "TRITON",
    })  # fmt: skip
    assert not any("extern_kernels" in decision.why for decision in decisions(only_triton, "autotuning"))
    only_aten = explored(Gelu().half(), x, grad=False, options={
        "max_autotune": True, "max_autotune_gemm_backends": "ATEN",
    })  # fmt: skip
    assert all(decision.verdict.startswith("extern_kernels.") for decision in decisions(only_aten, "autotuning"))
    assert templates(only_aten) == []


def test_cutedsl_template_is_a_linked_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's package is needed to run the kernel, not to write it."""
    monkeypatch.setattr("torch._inductor.utils.ensure_cute_available", lambda: True)
    a, b = torch.randn(256, 64).bfloat16(), torch.randn(4, 64, 128).bfloat16().mT.contiguous().mT
    ends = torch.tensor([64, 128, 192, 256], dtype=torch.int32)
    options = {"max_autotune": True, "max_autotune_gemm_backends": "CUTEDSL,ATEN"}
    record = explored(torch._grouped_mm, a, b, ends, target="b200", grad=False, options=options)
    (kernel,) = [kernel for kernel in record.kernels if kernel.language == "cutedsl"]
    assert "import cutlass.cute as cute" in record[kernel.artifact].text
    assert kernel.nodes == ("fused_ir[0/0 inference].op0",)


def test_requested_candidate_is_shown() -> None:
    asked = {"max_autotune": True, "test_configs.autotune_choice_desc_regex": "BLOCK_M=128"}
    record = explored(Gelu().half(), torch.randn(256, 128).half(), grad=False, options=asked)
    assert all("BLOCK_M : tl.constexpr = 128" in text for text in templates(record))


def test_small_gpu_has_no_templates_with_reason() -> None:
    record = explored(Gelu().half(), torch.randn(64, 128).half(), mode="max-autotune", target="t4", grad=False)
    for decision in decisions(record, "autotuning"):
        assert decision.verdict in ("extern_kernels.addmm", "extern_kernels.bias_addmm")
        assert "NVIDIA T4 16 GB has 40 multiprocessors, and Inductor considers its templates from 68 on" in decision.why


def test_amd_candidates_use_rocm_heuristics() -> None:
    """Heuristics are registered when torch is imported, for the vendor that torch was built for."""
    x = torch.randn(64, 128).bfloat16()
    record = explored(Gelu().bfloat16(), x, mode="max-autotune", target="mi300x", grad=False)
    configs = [e.attrs["config"] for a in record.of_stage("kernels") for e in candidates(a) if e.attrs["config"]]
    assert configs
    assert all("waves_per_eu" in config for config in configs)
    assert "'matrix_instr_nonkdim': 16" in templates(record)[0]
    nvidia = trained(torch.bfloat16)
    assert "waves_per_eu" not in nvidia["kernels[0/0 forward candidates]"].text


@contextmanager
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    found: list[Any] = []
    selections = Templates.selections

    def heard(self: Templates) -> Any:
        new = selections(self)
        found.extend(new)
        return new

    with monkeypatch.context() as patch:
        patch.setattr(Templates, "selections", heard)
        yield found


def test_candidate_code_can_be_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch) as selections:
        record = explored(Gelu().half(), torch.randn(64, 128).half(), mode="max-autotune", grad=False)
    artifact = record["kernels[0/0 inference candidates]"]
    entities = candidates(artifact)
    written = [candidate.source.strip("\n") for selection in selections for candidate in selection.candidates]
    assert [candidate_source(artifact, entity.id) for entity in entities] == written
    assert sum(map(len, written)) > 5 * len(artifact.text)
    for source in filter(None, written):
        ast.parse(source)
    assert sum(entity.attrs["shown"] for entity in entities) == len(selections) == 2


def test_candidates_may_repeat_what_another_has() -> None:
    sources = ("k(222)", "k(22)", "k(2)", "k(12)")
    made = tuple(Candidate("triton_mm", "template", {"BLOCK_M": source[2:-1]}, source) for source in sources)
    selection = Selection("mm", "mm", "2×2 by 2×2", made, 0, "it comes first")
    artifact = candidates_artifact([selection], artifact_id="kernels[0/0]", title="", graph="0/0", post_grad="")
    assert tuple(candidate_source(artifact, entity.id) for entity in artifact.entities) == sources


def test_candidates_link_to_the_python_line() -> None:
    record = inferred()
    sources = {entity.id for artifact in record.of_stage("source") for entity in artifact.entities}
    for entity in candidates(record["kernels[0/0 inference candidates]"]):
        assert record.linked_ids(entity.id) & sources
    rows = record["kernels[0/0 inference candidates]"].text.split("\n")
    assert sum(row.startswith("# shown triton_mm ") for row in rows) == 2


def test_equal_matmuls_are_shown_once() -> None:
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).half()
    record = explored(layers, torch.randn(64, 64).half(), mode="max-autotune", grad=False)
    artifact = record["kernels[0/0 inference candidates]"]
    assert len(decisions(record, "autotuning")) == 4
    assert artifact.text.count("@triton.jit") == 1
    assert artifact.text.count("addmm, addmm_1, addmm_2, addmm_3") == 1


def test_candidates_leave_no_process_state() -> None:
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.select_algorithm import TritonTemplate
    from torch._inductor.template_heuristics import registry

    def state() -> tuple[Any, ...]:
        caches = [dict(template._generated_code_cache._cache) for template in TritonTemplate.all_templates.values()]
        return len(PyCodeCache.modules), caches, dict(registry._TEMPLATE_HEURISTIC_REGISTRY)

    before = state()
    explored(Gelu().half(), torch.randn(64, 128).half(), mode="max-autotune", target="mi300x")
    assert state() == before


def test_the_default_mode_has_no_candidates() -> None:
    record = explored(Gelu(), torch.randn(64, 128), grad=False)
    assert decisions(record, "autotuning") == []
    assert [artifact.id for artifact in record.of_stage("kernels")] == ["kernels[0/0 inference]"]


# CUDA graphs


def graphs(record: Record) -> list[Decision]:
    return decisions(record, "cudagraphs")


def test_capturable_graph_is_captured_whole() -> None:
    record = explored(Gelu(), torch.randn(64, 128), mode="reduce-overhead")
    forward, backward = graphs(record)
    assert (forward.verdict, backward.verdict) == ("captured", "captured")
    assert "4 of its 5 inputs stay where they are" in forward.why  # two weights and two biases
    assert forward.numbers == {"operations": 3, "inputs": 5, "static inputs": 4}
    for decision in graphs(record):
        assert set(decision.subjects) <= {entity.id for entity in record.entities()}
    for artifact in record.of_stage("kernels"):
        assert "def partition_0(args):" in artifact.text
        assert "runner = Runner(partitions=[partition_0,])" in artifact.text


def test_kernels_in_partitions_link_to_their_calls() -> None:
    record = explored(Gelu(), torch.randn(64, 128), mode="reduce-overhead", grad=False)
    lines = record["kernels"].text.split("\n")
    calls = [entity for entity in record["kernels"].entities if entity.kind in ("call", "extern")]
    assert len(calls) == 3
    start = next(number for number, line in enumerate(lines, 1) if line.startswith("def partition_0"))
    assert all(entity.attrs["line"] > start for entity in calls)


def test_dynamic_sizes_capture_one_graph_each() -> None:
    record = explored(Gelu(), torch.randn(64, 128), mode="reduce-overhead", dynamic=True)
    assert all("one CUDA graph is recorded for each set of sizes" in decision.why for decision in graphs(record))


def test_mutated_input_refuses_cuda_graphs() -> None:
    def accumulated(x: Tensor, total: Tensor) -> Tensor:
        total.add_(x)
        return total * 2

    (decision,) = graphs(explored(accumulated, torch.randn(8), torch.randn(8), mode="reduce-overhead"))
    assert decision.verdict == "refused"
    assert "it writes into an input" in decision.why
    assert "torch: skipping cudagraphs due to mutated inputs (1 instances)" in decision.why


def test_mutated_buffers_allow_cuda_graphs() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).train()
    record = explored(net, torch.randn(2, 3, 8, 8), mode="reduce-overhead")
    assert [decision.verdict for decision in graphs(record)] == ["captured", "captured"]


def test_cpu_synchronization_splits_the_graph() -> None:
    def positions(x: Tensor) -> Tensor:
        return torch.nonzero(x.relu()).sum() + x.sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        record = explored(positions, torch.randn(8, 8), mode="reduce-overhead")
    whole, *parts = graphs(record)
    assert whole.verdict == "partitioned"
    assert whole.why.startswith("inference: 2 CUDA graphs, and ")
    assert [part.verdict for part in parts[:2]] == ["captured", "captured"]
    refused = [part for part in parts if part.verdict == "refused"]
    assert any("has to wait for its result to know a size" in part.why for part in refused)
    assert all("(torch: " in part.why and part.subjects for part in refused)
    assert re.search(r"Runner\(partitions=\[partition_0, *partition_1,?\]\)", record["kernels"].text)


def test_cpu_synchronization_without_partitions_refuses_the_graph() -> None:
    def positions(x: Tensor) -> Tensor:
        return torch.nonzero(x.relu()).sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        record = explored(positions, torch.randn(8, 8), options={"triton.cudagraphs": True, "graph_partition": False})
    (decision,) = graphs(record)
    assert decision.verdict == "refused"
    assert "it has an operator that waits for the GPU" in decision.why
    assert "aten.nonzero.default" in decision.why


def test_a_backward_is_not_captured_without_its_forward() -> None:
    asked = {"triton.cudagraphs": True, "triton.cudagraph_skip_dynamic_graphs": True}
    forward, backward = graphs(explored(Gelu(), torch.randn(64, 128), dynamic=True, options=asked))
    assert (forward.verdict, backward.verdict) == ("refused", "refused")
    assert "triton.cudagraph_skip_dynamic_graphs leaves such operations out" in forward.why
    assert "the forward half is not captured" in backward.why


def test_cond_is_decided_on_the_cpu() -> None:
    def either(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    (decision,) = graphs(explored(either, torch.randn(8, 8), mode="reduce-overhead"))
    assert decision.verdict == "refused"
    assert "the CPU decides which branch runs" in decision.why


def test_the_default_mode_has_no_cuda_graphs() -> None:
    assert graphs(explored(Gelu(), torch.randn(64, 128))) == []


def test_cpu_code_cannot_be_captured() -> None:
    record = explored(Gelu(), torch.randn(64, 128), mode="reduce-overhead", target="cpu", grad=False)
    assert [decision.verdict for decision in graphs(record)] == ["refused"]


def test_refusals_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """On the user's machine no CUDA graph would have been captured."""
    test_mutated_input_refuses_cuda_graphs()
    test_cpu_synchronization_without_partitions_refuses_the_graph()
    assert "cudagraphs" not in caplog.text


# Strides


def test_saved_activations_keep_their_layout_in_the_backward() -> None:
    """On a GPU Inductor uses channels-last convolutions, and saved activations keep that layout."""
    net = nn.Sequential(nn.Conv2d(128, 160, 3), nn.ReLU(), nn.Conv2d(160, 128, 3))
    record = explored(net, torch.randn(2, 128, 8, 8))
    saved = record["post_grad[0/0 backward]"].entity("relu")
    assert saved.attrs["shape"] == [2, 160, 6, 6]
    assert saved.attrs["stride"] == [160 * 36, 1, 6 * 160, 160]


# Beyond the source


@pytest.mark.skipif(OLD_TRITON, reason="the interpreter of Triton before 3.7 does not run with NumPy 2.4")
def test_templates_match_eager() -> None:
    record = explored(Gelu().half(), torch.randn(64, 128).half(), mode="max-autotune", check="kernels")
    checked = {check.subject: check for check in record.checks}
    shown = [kernel for kernel in record.kernels if kernel.category == "template"]
    assert len(shown) == 5
    for kernel in shown:
        assert checked[kernel.id].verdict in ("equal", "close"), checked[kernel.id]


def test_templates_are_compiled_to_machine_code() -> None:
    record = explored(Gelu().half(), torch.randn(64, 128).half(), mode="max-autotune", stages="all", grad=False)
    compiled = {binary.kernel: binary for binary in record.binaries}
    shown = [kernel for kernel in record.kernels if kernel.category == "template"]
    assert len(shown) == 2
    for kernel in shown:
        assert compiled[kernel.id].registers
        assert "mma" in record[f"ptx[{kernel.graph} inference {kernel.name}]"].text


def test_user_max_autotune_compilation_is_recorded() -> None:
    model, x = Gelu().half(), torch.randn(64, 128).half()
    with Exploration(parse_options(target="h100")) as exploration, torch.no_grad():
        torch.compile(model, mode="max-autotune", dynamic=False)(x)
    assert exploration.record.problems == ()
    assert {decision.pass_name for decision in exploration.record.decisions} >= {"autotuning", "cudagraphs"}
