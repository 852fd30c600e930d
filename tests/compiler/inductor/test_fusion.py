"""Fusion recorded: every step with its round and score, every refusal with plain words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor

from compiler.inductor.fusion_words import REASONS, reason_words
from compiler.record import Record
from explorer import explore

SOURCES = Path(torch._inductor.__file__).parent


def normalised(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two kernels that cannot be fused: the second needs all of the first's sums."""
    y = torch.softmax(x * 2 + 1, -1)
    return torch.relu(y @ w), (x * 3).sum(0)


@pytest.fixture(scope="module")
def record() -> Record:
    return explore(normalised, torch.randn(64, 128), torch.randn(128, 32), target="h100").record


def texts_in(source: str) -> Iterator[str]:
    """The texts of `WhyNoFuse` calls, with `%s` for inserted values."""
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args):
        made_here = isinstance(call.func, ast.Call) and ast.unparse(call.func.func).startswith("WhyNoFuse")
        if made_here or ast.unparse(call.func) == "why":
            yield template(call.args[0])


def template(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        parts = (str(part.value) if isinstance(part, ast.Constant) else "%s" for part in node.values)
        return re.sub(r"\s+", " ", "".join(parts))
    return str(ast.literal_eval(node))


def test_every_torch_fusion_refusal_has_plain_words() -> None:
    """A new torch may have new texts: add words for them in compiler/inductor/fusion_words.py."""
    sources = [path.read_text() for path in SOURCES.rglob("*.py")]
    found = {text for source in sources if "WhyNoFuse(" in source for text in texts_in(source)}
    assert len(found) > 40
    assert found - set(REASONS) == set()


def test_refusal_with_sizes_has_plain_words() -> None:
    told = "numel/rnumel mismatch (reduce) (896, 128), (7180, 7)"
    assert reason_words(told) == "both are reductions, over loops of other sizes"
    assert reason_words("buf3 has aliasing or mutation").startswith("what follows the CUTLASS kernel")
    assert reason_words("something new") == "something new"


def test_merge_steps_rebuild_every_fused_node(record: Record) -> None:
    loops = {entity.label for entity in record["ir"].entities}
    steps = {merge.name: merge for merge in record.merges}
    fused = [entity for entity in record["fused_ir"].entities if entity.kind == "fused"]
    assert fused
    for entity in fused:
        todo, found = [entity.label], []
        while todo:
            name = todo.pop()
            found += [name] if name in loops else []
            todo += [steps[name].first, steps[name].second] if name in steps else []
        assert sorted(found) == sorted(entity.attrs["parts"])


def test_merge_has_its_round_and_shared_bytes(record: Record) -> None:
    assert record.merges
    assert {merge.round for merge in record.merges} <= set(range(1, 12))
    x = 64 * 128 * 4
    assert any(merge.saved == x for merge in record.merges)  # the input, or an intermediate result, in float32


def test_fusion_decisions_have_round_and_saved_bytes(record: Record) -> None:
    fusion = [decision for decision in record.decisions if decision.pass_name == "fusion"]
    fused = [decision for decision in fusion if decision.verdict == "fused"]
    assert fused
    assert all(decision.numbers["saved"] > 0 and decision.numbers["round"] >= 1 for decision in fused)
    refused = [decision for decision in fusion if decision.verdict == "refused"]
    assert refused
    assert all(decision.numbers["round"] >= 1 for decision in refused)


def test_node_bytes_are_split_by_buffer(record: Record) -> None:
    for entity in record["fused_ir"].entities:
        assert sum(entity.attrs["moves"].values()) == entity.attrs["bytes"]
        assert set(entity.attrs["moves"]) <= {*entity.attrs["reads"], *entity.attrs["writes"]}


def test_record_with_fusion_steps_round_trips_through_json(record: Record) -> None:
    assert Record.from_json(record.to_json()) == record


def test_no_fusion_means_no_steps() -> None:
    options = {"max_fusion_size": 1}
    record = explore(normalised, torch.randn(8, 8), torch.randn(8, 4), target="h100", options=options).record
    assert record.merges == ()
    whys = {reason_words(decision.why) for decision in record.decisions if decision.verdict == "refused"}
    assert any("max_fusion_size" in why for why in whys)


def test_cpu_records_fusion_steps() -> None:
    record = explore(normalised, torch.randn(8, 8), torch.randn(8, 4), target="cpu").record
    assert record.merges
