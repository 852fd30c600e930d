"""Generated code linked to its operations, on programs with known kernels."""

from __future__ import annotations

import pytest
import torch

from compiler.engine import explore
from compiler.record import Record
from compiler.record.options import Options
from compiler.targets import target as target_of
from compiler.torch_api.triton_kernels import load_kernel, reading_kernels
from compiler.virtual_gpu.gpu import virtual_gpu
from tests.compiler.hand_written import USERS


def record_of(fn: object, *args: torch.Tensor, target: str = "") -> Record:
    return explore(fn, args, options=Options(target=target)).record


def two_kernels_and_a_matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.sigmoid(x) + 1
    z = y @ w
    return torch.tanh(z).sum(0)


@pytest.mark.parametrize(("target", "language"), [("cpu", "cpp"), ("h100", "triton")])
def test_kernels_of_a_known_program(target: str, language: str) -> None:
    record = record_of(two_kernels_and_a_matmul, torch.randn(32, 16), torch.randn(16, 8), target=target)
    assert [(kernel.category, kernel.language) for kernel in record.kernels] == [
        ("pointwise", language),
        ("reduction", language),
        ("extern", "aten"),
    ]
    pointwise, reduction, extern = record.kernels
    assert lines_of(record, pointwise.id) == {"y = torch.sigmoid(x) + 1"}
    assert lines_of(record, reduction.id) == {"return torch.tanh(z).sum(0)"}
    assert lines_of(record, extern.id) == {"z = y @ w"}


def lines_of(record: Record, identity: str) -> set[str]:
    lines = {e.id: e.attrs["code"] for a in record.of_stage("source") for e in a.entities}
    found = {lines[linked] for linked in record.linked_ids(identity) if linked in lines}
    return {code for code in found if "explore(" not in code}


def test_bytes_count_one_read_and_one_write() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    (kernel,) = record_of(doubled, torch.randn(1024)).kernels
    assert kernel.bytes == 2 * 4 * 1024


def test_embedding_bytes_count_only_the_rows_read() -> None:
    def normed(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(torch.nn.functional.embedding(ids, table), (64,))

    (kernel,) = record_of(normed, torch.randn(5000, 64), torch.randint(0, 5000, (16,)), target="h100").kernels
    index, row = 8, 4 * 64
    assert kernel.bytes == 16 * (index + row + row)  # read, read, and written


def test_calls_follow_data_flow() -> None:
    record = record_of(two_kernels_and_a_matmul, torch.randn(32, 16), torch.randn(16, 8))
    calls = [entity for entity in record["kernels"].entities if entity.kind in ("call", "extern")]
    first, second, third = calls
    assert first.inputs == ()
    assert second.inputs == (first.id,)
    assert third.inputs == (second.id,)
    assert [call.kind for call in calls] == ["call", "extern", "call"]


def test_kernel_launched_twice_has_two_calls() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ w)
        return torch.relu(y @ w)

    record = record_of(twice, torch.randn(16, 16), torch.randn(16, 16))
    (relu,) = [kernel for kernel in record.kernels if kernel.category == "pointwise"]
    assert relu.calls == 2
    calls = [entity for entity in record["kernels"].entities if entity.kind == "call"]
    assert len({call.origins for call in calls}) == 2


def test_definition_lines_span_the_kernel() -> None:
    endings = {"cpp": "''')", "triton": "''', device_str='cuda')"}
    for target in ("cpu", "h100"):
        record = record_of(two_kernels_and_a_matmul, torch.randn(32, 16), torch.randn(16, 8), target=target)
        rows = record["kernels"].text.split("\n")
        for kernel in record.kernels:
            first, last = kernel.lines
            assert kernel.name.rsplit(".", 1)[-1] in rows[first - 1]
            assert rows[last - 1].endswith(endings.get(kernel.language, ""))


def test_code_contains_no_local_paths() -> None:
    record = record_of(two_kernels_and_a_matmul, torch.randn(32, 16), torch.randn(16, 8))
    for artifact in (artifact for artifact in record.artifacts if artifact.stage != "source"):
        assert "/tmp/" not in artifact.text, artifact.id
        assert "torchinductor_" not in artifact.text, artifact.id
        assert __file__ not in artifact.text, artifact.id


def test_fusion_says_what_was_fused_and_why_not() -> None:
    def softmax_beside_a_column_sum(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(x, -1) * 2, x.sum(0)

    record = record_of(softmax_beside_a_column_sum, torch.randn(64, 32))
    verdicts = {decision.verdict for decision in record.decisions}
    assert verdicts == {"fused", "refused"}
    refused = [decision for decision in record.decisions if decision.verdict == "refused"]
    assert all(decision.why for decision in refused)
    known = {entity.id for entity in record["ir"].entities}
    assert all(set(decision.subjects) & known for decision in record.decisions)


def test_user_kernel_launches_with_the_requested_config() -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    with reading_kernels(virtual_gpu(target_of("h100"))):
        blocks = [load_kernel("users_own", USERS, config).configs[0].kwargs["BLOCK"] for config in (0, 1)]
    assert blocks == [128, 256]
