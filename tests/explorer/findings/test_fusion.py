"""Fusion as a view, a text and tables: bytes moved before, after and at least, and pairs that were not fused."""

from __future__ import annotations

import pytest
import torch

from compiler.record import Record
from explorer import explore
from explorer.findings import findings, with_findings
from explorer.findings.fusion.finding import fusion_finding
from explorer.findings.fusion.fusion import Fusion, fusions, tree
from explorer.findings.fusion.traffic import read_again
from explorer.render.finding import Finding
from explorer.run.run import Run
from tests.explorer.explored import mlp_record
from tests.explorer.findings.documents import parts_of
from tests.explorer.golden import assert_golden

ROWS, COLUMNS = 64, 8192
SIZE = ROWS * COLUMNS * 4


def chain(x: torch.Tensor) -> torch.Tensor:
    return ((x + 1) * 2).relu()


def two_sizes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), y.cos()


def adding(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.add_(y.sin()) * 2


def looped_softmax(x: torch.Tensor) -> torch.Tensor:
    """Rows so long that a kernel reads them more than once."""
    return torch.softmax(x * 2, -1)


def turned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A matmul, and a pointwise operation that is not fused with it."""
    return (x @ w).relu()


def only(record: Record) -> Fusion:
    [half] = fusions(record)
    return half


def test_pointwise_chain_moves_input_and_output_once() -> None:
    half = only(explore(chain, torch.randn(ROWS, COLUMNS), target="h100").record)
    [kernel] = half.kernels
    assert (kernel.least, kernel.after, half.least) == (2 * SIZE, 2 * SIZE, 2 * SIZE)
    assert half.refusals == ()


def test_fused_nodes_that_share_a_function_are_one_launch() -> None:
    """C++ for a CPU has several loop nests in one function; the chip shows the actual number of launches."""
    record = explore(two_sizes, torch.randn(64), torch.randn(32), target="cpu").record
    half = only(record)
    assert len(half.kernels) == 2
    assert half.launches == sum(kernel.calls for kernel in record.kernels) == 1
    finding = fusion_finding(record)
    assert finding is not None
    assert finding.artifact.attrs["counted"] == "1 launch"


def test_input_written_in_place_is_moved_twice() -> None:
    half = only(explore(adding, torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS), target="h100").record)
    assert half.least == half.after == 4 * SIZE


def test_looped_reduction_moves_more_than_the_minimum() -> None:
    half = only(explore(looped_softmax, torch.randn(ROWS, COLUMNS), target="h100").record)
    assert half.least == 2 * SIZE
    assert half.after == half.least_each + sum(kernel.again for kernel in half.kernels)
    assert sum(kernel.again for kernel in half.kernels) >= SIZE
    assert half.before > half.after


def test_extern_call_is_an_unfusable_neighbour() -> None:
    half = only(explore(turned, torch.randn(64, 64), torch.randn(64, 64), target="h100").record)
    [refusal] = half.refusals
    assert refusal.words.startswith("one of them is an extern call")
    assert refusal.told == ""
    assert refusal.bytes == 2 * 64 * 64 * 4  # the matmul's result would be neither written nor read


def test_kernel_merge_steps_form_a_tree() -> None:
    for half in fusions(mlp_record()):
        for kernel in half.kernels:
            found, todo = [], [tree(kernel, half.merges)]
            while todo:
                node = todo.pop()
                found += [node] if isinstance(node, str) else []
                todo += node[2:] if not isinstance(node, str) else []
            assert sorted(found) == sorted(part.label for part in kernel.parts)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ("tl.load(in_ptr0 + (x0), xmask)", {}),
        (
            "tl.load(in_ptr0 + (x0), xmask)\n    tmp1 = tl.load(in_ptr0 + (x0), None, other=0.0)",
            100,
        ),
        ("tl.load(in_ptr0 + (x0), xmask)\n    tmp1 = tl.load(in_ptr0 + (4 + x0), xmask)", {}),
        ("tl.load(in_ptr0 + (tl.broadcast_to(x0, [XBLOCK])), xmask)\n    tl.load(in_ptr1 + (x0), xmask)", {}),
    ],
)
def test_repeated_loads_count_again(loads: str, expected: object) -> None:
    source = f"def kernel(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):\n    tmp0 = {loads}\n"
    call = "kernel.run(reinterpret_tensor(buf3, (4, 4), (4, 1), 0), buf1, buf4, 16, stream=raw_stream0)"
    found = read_again(source, call, {"buf3": 100, "buf1": 7, "buf4": 100})
    assert found == ({"buf3": expected} if expected else {})


def test_text_states_bytes_and_fusion_refusals() -> None:
    found = fusion_finding(mlp_record())
    assert found is not None
    assert_golden("fusion.txt", found.artifact.text.rstrip("\n"))


def test_every_kernel_links_to_code_and_lines() -> None:
    record = with_findings(mlp_record())
    known = {entity.id: entity for entity in record.entities()}
    kernels = [entity for entity in record["fusion"].entities if entity.label.startswith("triton")]
    assert kernels
    for entity in kernels:
        stages = {identity.partition("[")[0] for identity in record.linked_ids(entity.id)}
        assert {"kernels", "fused_ir", "ir", "post_grad"} <= stages
        assert any(known[identity].kind == "kernel" for identity in record.linked_ids(entity.id) if identity in known)
    [first] = [kernel for kernel in record.kernels if kernel.name == kernels[0].label]
    assert kernels[0].id in record.linked_ids(first.id)


def test_view_has_every_kernel_and_pair_by_reason() -> None:
    found = fusion_finding(mlp_record())
    assert isinstance(found, Finding)
    assert found.view == "document"
    [halves] = found.data["parts"]
    for half, (title, parts) in zip(fusions(mlp_record()), halves["options"], strict=True):
        assert title == half.title
        [kernels] = [table for table in parts_of(parts, "table") if table.get("style") == "kernels"]
        assert [row["ids"][0] for row in kernels["rows"]] == [
            f"fusion[{title}].{one.node.label}" for one in half.kernels
        ]
        assert [row["keys"][0] for row in kernels["rows"]] == [kernel.after for kernel in half.kernels]
        [pairs] = [table for table in parts_of(parts, "table") if table.get("groups")]
        ids = {row["ids"][0] for row in kernels["rows"]}
        assert {link["id"] for link in parts_of(pairs, "link")} <= ids
        for number, (words, count, _) in enumerate(half.reasons(), 1):
            assert pairs["groups"][number].endswith(words)
            assert sum(row["group"] == number for row in pairs["rows"]) == count
        assert len(pairs["rows"]) == len(half.refusals)


def test_tables_have_rows_per_kernel_and_pair() -> None:
    run = Run(mlp_record())
    halves = fusions(mlp_record())
    assert len(run.fusion.kernels) == sum(len(half.kernels) for half in halves)
    assert len(run.fusion.unfused) == sum(len(half.refusals) for half in halves)
    assert (run.fusion.kernels["bytes"] >= run.fusion.kernels["least_bytes"]).all()
    assert run.fusion.unfused["bytes"].is_monotonic_decreasing
    assert run.fusion.kernels["not_joined"].sum() == 2 * len(run.fusion.unfused)


def test_record_without_loops_has_no_fusion_finding() -> None:
    record = explore(chain, torch.randn(4), stages=("captured",)).record
    assert "fusion" not in {finding.artifact.stage for finding in findings(record)}
    run = Run(record)
    assert run.fusion.kernels.empty
    assert run.fusion.unfused.empty
    assert list(run.fusion.unfused.columns)
