"""Kernels compiled without their GPU: every stage, linked and with facts, and nothing left behind."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from compiler.binary import compile_record
from compiler.binary.sources import triton_sources
from compiler.engine import explore
from compiler.option_checks import parse_options
from compiler.record import Artifact, Record
from compiler.record.builder import Event, in_kernel_order
from compiler.record.options import OptionError
from compiler.targets import target
from compiler.virtual_gpu.gpu import virtual_gpu
from tests.compiler.hand_written import USERS, dot, many, pointwise, record_of
from tests.compiler.models import MLP

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

pytestmark = pytest.mark.usefixtures("nothing_is_left")

NVIDIA = ("ttir", "ttgir", "llir", "ptx", "sass")
AMD = ("ttir", "ttgir", "llir", "amdgcn")


def explored(model: Any, *args: Any, **options: Any) -> Record:
    found = explore(model, args, options=parse_options(**options))
    if isinstance(found.value, torch.Tensor) and found.value.requires_grad:
        raise AssertionError("explore training with an Exploration, so that backward is seen")
    return found.record


@pytest.fixture(scope="module")
def trained() -> Record:
    """An MLP, forward and backward, for an H100."""
    from compiler.engine import Exploration

    with Exploration(parse_options(target="h100")) as exploration:
        exploration.compile(MLP())(torch.randn(64, 64)).sum().backward()
    return exploration.record


@pytest.fixture(scope="module")
def built(trained: Record) -> Record:
    return compile_record(trained)


def test_every_training_kernel_passes_every_stage(built: Record) -> None:
    kernels = [kernel for kernel in built.kernels if kernel.language == "triton"]
    assert len(kernels) == 5
    for stage in NVIDIA:
        assert [artifact.attrs["kernel"] for artifact in built.of_stage(stage)] == [kernel.id for kernel in kernels]
    assert [binary.kernel for binary in built.binaries] == [kernel.id for kernel in kernels]
    assert not built.problems
    assert not built.of_stage("amdgcn")


def test_artifact_names_follow_the_contract(built: Record) -> None:
    kernel = next(kernel for kernel in built.kernels if kernel.language == "triton")
    ptx = built[f"ptx[0/0 forward {kernel.name}]"]
    assert (ptx.title, ptx.graph, ptx.language) == (kernel.name, "0/0", "ptx")
    assert ptx.attrs == {"kernel": kernel.id, "target": "h100", "config": built.binaries[0].config}
    assert [built.of_stage(stage)[0].language for stage in NVIDIA] == ["mlir", "mlir", "llvm", "ptx", "sass"]


@pytest.mark.parametrize("stage", NVIDIA)
def test_lines_link_to_their_triton_lines(built: Record, stage: str) -> None:
    for source, artifact in zip(triton_sources(built), built.of_stage(stage), strict=True):
        rows = source.text.split("\n")
        groups = {entity.id: entity for entity in artifact.entities if entity.kind == "instructions"}
        assert {name for names in artifact.lines.values() for name in names} <= {each.id for each in artifact.entities}
        assert sum(entity.attrs["instructions"] for entity in groups.values()) == len(artifact.lines) - 1
        for entity in groups.values():
            line = entity.attrs["line"]
            assert entity.id == f"{artifact.id}.L{line}"
            assert entity.origins == (f"{source.kernel.id}.L{line}",)
            assert entity.label == rows[line - 1].strip()
        stores = {number for number, row in enumerate(rows, 1) if "tl.store(" in row}
        assert stores <= {entity.attrs["line"] for entity in groups.values()}


@pytest.mark.parametrize(
    ("stage", "header"),
    [("ttir", "tt.func public @"), ("ttgir", "tt.func public @"), ("llir", "define "), ("ptx", ".visible .entry "),
     ("sass", ".text.")],
)  # fmt: skip
def test_header_line_links_to_the_kernel(built: Record, stage: str, header: str) -> None:
    artifact = built.of_stage(stage)[0]
    whole = artifact.entity("kernel")
    assert whole.origins == (artifact.attrs["kernel"],)
    (line,) = [line for line, names in artifact.lines.items() if names == (whole.id,)]
    assert artifact.text.split("\n")[line - 1].strip().startswith(header)


def test_texts_contain_no_local_paths(built: Record) -> None:
    for artifact in built.artifacts:
        if artifact.stage in NVIDIA:
            assert "site-packages" not in artifact.text
            assert tempfile.gettempdir() not in artifact.text


def test_equal_records_compile_to_equal_records(trained: Record, built: Record) -> None:
    assert compile_record(Record.from_json(trained.to_json()).with_trust("trusted"), workers=1) == built


def test_artifacts_are_in_kernel_order(built: Record) -> None:
    shuffled = replace(built, artifacts=built.artifacts[::-1], binaries=built.binaries[::-1])
    ordered = in_kernel_order(shuffled)
    kernels = [kernel.id for kernel in built.kernels if kernel.language == "triton"]
    assert [binary.kernel for binary in ordered.binaries] == kernels
    assert [artifact.attrs["kernel"] for artifact in ordered.of_stage("ptx")] == kernels
    assert [binary.kernel for binary in built.binaries] == kernels


def test_record_round_trips_through_json(built: Record) -> None:
    assert Record.from_json(built.to_json()) == built


def test_binary_facts_match_the_machine_code(built: Record) -> None:
    dropout = built.binaries[0]
    assert dropout.config == {"XBLOCK": 256, "num_warps": 4, "num_stages": 1}
    assert dropout.configs == (dropout.config, {"XBLOCK": 128, "num_warps": 4, "num_stages": 1})
    assert (dropout.threads, dropout.programs) == (128, 5)  # 64 × 20 elements in blocks of 256
    assert dropout.registers
    assert dropout.spill_bytes == 0
    assert dropout.occupancy == 1.0
    assert dropout.mix["global store"] == 2
    assert dropout.bytes == next(kernel.bytes for kernel in built.kernels if kernel.id == dropout.kernel)
    assert dropout.bound_seconds == dropout.bytes / target("h100").memory_bandwidth


@pytest.mark.parametrize("name", ["t4", "b200", "mi300x"])
def test_binaries_for_other_gpus(name: str) -> None:
    record = compile_record(explored(MLP().eval().requires_grad_(requires_grad=False), torch.randn(8, 64), target=name))
    stages = AMD if target(name).vendor == "amd" else NVIDIA
    assert not record.problems
    assert {artifact.stage for artifact in record.artifacts} >= set(stages)
    for binary in record.binaries:
        assert binary.target == name
        assert binary.registers
        assert binary.spill_bytes is not None
        assert binary.occupancy
        assert binary.mix
        assert binary.store_bits
        assert binary.threads % target(name).warp_size == 0


def test_other_config_is_added_to_the_first() -> None:
    record = compile_record(compile_record(record_of(pointwise())), config=1)
    assert [binary.config["XBLOCK"] for binary in record.binaries] == [256, 128]
    assert [binary.programs for binary in record.binaries] == [16, 32]
    assert [artifact.id for artifact in record.of_stage("ptx")] == [
        "ptx[0/0 inference triton_poi_0]",
        "ptx[0/0 inference triton_poi_0 config 1]",
    ]


def test_recompiling_a_compiled_kernel_changes_nothing(built: Record) -> None:
    assert compile_record(built, kernels=[built.binaries[0].kernel]) == built


@pytest.mark.parametrize("config", [2, 7])
def test_missing_config_is_reported(config: int) -> None:
    (problem,) = compile_record(record_of(pointwise()), config=config).problems
    assert problem.stage == "ttir"
    assert f"no configuration {config}: Inductor would try 2" in problem.reason


def test_equal_kernels_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler.binary import workers as processes

    given: list[int] = []
    outputs = processes.outputs
    monkeypatch.setattr(processes, "outputs", lambda jobs, count: given.append(len(jobs)) or outputs(jobs, count))
    one, other = record_of(pointwise()), record_of(pointwise())
    again = Artifact("kernels[0/0 backward]", "kernels", "backward", "python", other.artifacts[0].text, "0/0")
    second = replace(other.kernels[0], id="kernels[0/0 backward].triton_poi_0", artifact=again.id, half="backward")
    record = compile_record(one.with_fields(artifacts=(*one.artifacts, again), kernels=(*one.kernels, second)))
    assert given == [1]
    assert [binary.kernel for binary in record.binaries] == [one.kernels[0].id, second.id]
    first, copy = record.of_stage("sass")
    assert first.text == copy.text
    assert first.id != copy.id


def test_only_requested_stages_and_kernels_are_kept(trained: Record) -> None:
    wanted = trained.kernels[0]
    record = compile_record(trained, kernels=[wanted.id], stages=["ptx"])
    assert [artifact.id for artifact in record.artifacts if artifact.stage in NVIDIA] == [
        f"ptx[0/0 forward {wanted.name}]"
    ]
    assert [binary.kernel for binary in record.binaries] == [wanted.id]


def test_progress_is_reported() -> None:
    heard: list[tuple[int, int]] = []
    compile_record(many(3), listener=lambda done, total: heard.append((done, total)))
    assert heard == [(1, 3), (2, 3), (3, 3)]


def test_listener_exception_stops_compilation() -> None:
    def stop(_done: int, _total: int) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        compile_record(many(3), listener=stop)


def test_template_grid_is_read_from_the_call() -> None:
    call = "call = lambda: triton_tem_0.run(arg0_1, arg1_1, buf0, 7, 2, 1, stream=raw_stream0)\n"
    (binary,) = compile_record(record_of(dot(3), call=call)).binaries
    assert binary.programs == 14
    assert binary.mix["tensor core"] > 0
    assert binary.config == {"num_warps": 8, "num_stages": 3}
    assert binary.shared_memory
    assert binary.shared_memory >= 3 * 2 * 128 * 128 * 2 // 2


def test_user_kernel_with_a_helper_function() -> None:
    record = compile_record(record_of(("users_own_0", USERS)))
    assert not record.problems
    (binary,) = record.binaries
    assert (binary.config["BLOCK"], binary.programs) == (128, 16)
    assert "tt.func public @users_own(" in record["ttir"].text
    assert "f16" in record["ttir"].text
    assert record["ttir"].id == "ttir[0/0 inference users_own_0]"


@pytest.mark.parametrize(
    ("function", "inputs", "options"),
    [
        (lambda x: torch.softmax(x * 2, -1), (8, 300), {"dynamic": True}),
        (lambda x: (x.cumsum(-1), x.sort(-1)[0]), (8, 64), {}),
        (torch.sum, (1 << 18,), {"options": {"triton.cooperative_reductions": True}}),
        (lambda x: torch._foreach_add([x, x + 1], 1.0), (64,), {}),
        (lambda x: x.permute(2, 0, 1).contiguous() + 1, (16, 32, 64), {}),
    ],
    ids=["dynamic", "scan and sort", "cooperative", "foreach", "tiles"],
)
def test_every_kind_of_kernel_compiles(function: Any, inputs: tuple[int, ...], options: dict[str, Any]) -> None:
    record = compile_record(explored(function, torch.randn(inputs), target="h100", **options))
    assert not record.problems
    assert record.binaries
    for binary in record.binaries:
        assert (binary.programs == 0) == bool(options.get("dynamic"))


def test_user_environment_does_not_change_the_output(built: Record) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setenv("TRITON_DISABLE_LINE_INFO", "1")
        patch.setenv("TRITON_CACHE_DIR", "/nowhere")
        assert compile_record(built, kernels=[built.binaries[0].kernel]) == built


def test_thread_waits_for_another_virtual_gpu() -> None:
    found: list[Record] = []
    thread = threading.Thread(target=lambda: found.append(compile_record(record_of(pointwise()))))
    with virtual_gpu(target("t4")):
        thread.start()
        thread.join(timeout=0.5)
        assert not found
        assert torch.cuda.get_device_capability() == (7, 5)
    thread.join()
    assert found[0].binaries[0].target == "h100"


class Doubled(nn.Module):
    """Something to explore."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2


def listened(stages: Any, **options: Any) -> tuple[Record, list[Event]]:
    events: list[Event] = []
    found = explore(
        Doubled(), (torch.randn(8, 8),), options=parse_options(stages=stages, **options), listener=events.append
    )
    return found.record, events


def test_nothing_is_compiled_unless_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_args, **_named: pytest.fail("a process was started"))
    record, _ = listened(None, target="h100")
    assert not record.binaries
    assert not record.of_stage("ttir")


def test_all_stages_are_compiled_on_request() -> None:
    record, events = listened("all", target="h100")
    assert {artifact.stage for artifact in record.artifacts} > {"captured", "post_grad", "kernels", *NVIDIA}
    assert len(record.binaries) == 1
    heard = [(event.kind, event.stage) for event in events]
    assert ("started", "ttir") in heard
    assert [stage for kind, stage in heard if kind == "artifact" and stage in NVIDIA] == list(NVIDIA)
    assert heard[-1] == ("finished", "")


def test_requested_machine_stage_compiles_hidden_kernels() -> None:
    record, _ = listened("captured,ptx", target="h100")
    assert {artifact.stage for artifact in record.artifacts} == {"source", "captured", "ptx"}
    ptx, known = record["ptx"], {entity.id for entity in record.entities()}
    assert {origin for entity in ptx.entities for origin in entity.origins} <= known
    assert len(record.binaries) == 1


def test_interrupt_while_compiling_kernels_keeps_the_record() -> None:
    from compiler.engine import Exploration

    def stop(event: Event) -> None:
        if event.kind == "artifact" and event.stage == "llir":
            raise KeyboardInterrupt

    exploration = Exploration(parse_options(target="h100", stages="all"), listener=stop)
    with pytest.raises(KeyboardInterrupt), exploration:
        exploration.compile(Doubled())(torch.randn(8, 8))
    assert exploration.record.of_stage("kernels")
    assert exploration.record.of_stage("ttir")


def test_internal_error_becomes_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler.binary import mix

    monkeypatch.setattr(mix, "_RULES", {})
    record, _ = listened("all", target="h100")
    (problem,) = record.problems
    assert problem.reason.startswith("the kernels could not be compiled: ")
    assert record.of_stage("kernels")


def test_unknown_stage_is_refused() -> None:
    with pytest.raises(OptionError, match="did you mean 'ptx'"):
        parse_options(stages="ptxx")
