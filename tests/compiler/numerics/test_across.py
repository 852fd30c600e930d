"""Values of two runs: the first divergence that is more than rounding, what explains it, and files from elsewhere."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from compiler import engine
from compiler.numerics.across import snapshot
from compiler.numerics.across.comparison import Comparison, compare
from compiler.numerics.across.snapshot import Snapshot, SnapshotError
from compiler.numerics.across.values import values_of_call
from compiler.record.options import Options


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(16, 96), nn.Linear(96, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        return self.norm(self.second(h)).abs().sum(0)


class _OtherActivation(_Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.silu(self.first(x))
        return self.norm(self.second(h)).abs().sum(0)


class _OtherOrder(_Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        return self.norm(self.second(h)).abs().flip(0).sum(0)


class _NoNorm(_Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        return self.second(h).abs().sum(0)


Compile = Callable[[torch.fx.GraphModule], Callable[..., object]]


def _values(
    kind: type[_Net] = _Net,
    change: Callable[[_Net], object] = lambda _: None,
    dtype: torch.dtype = torch.float32,
    compile_graph: Compile | None = None,
) -> Snapshot:
    torch.manual_seed(0)
    model = kind().to(dtype)
    with torch.no_grad():
        change(model)
    x = torch.linspace(-3, 3, 32 * 16).reshape(32, 16).cos().to(dtype)
    options = Options(target="cpu", stages=("captured",))
    return values_of_call(engine.explore(model, (x,), options=options, copies_inputs=True), {}, compile_graph)


@pytest.fixture(scope="module")
def base() -> Snapshot:
    return _values()


def _first(found: Comparison) -> tuple[str, str]:
    assert found.first is not None
    return found.first.operation.module, found.cause_of(found.first)


def test_equal_runs_are_equal_after_a_file(base: Snapshot, tmp_path: Path) -> None:
    (tmp_path / "run.npz").write_bytes(base.to_bytes())
    found = compare(Snapshot.load(tmp_path / "run.npz"), _values())
    assert found.verdict == "equal"
    assert {pair.operation.kind for pair in found.pairs} == {"input", "operation", "result", "gradient"}


def test_changed_weight_is_named(base: Snapshot) -> None:
    found = compare(base, _values(change=lambda model: model.second.weight[2, 3].add_(0.1)))
    assert [pair.operation.op for pair in found.inputs] == ["second.weight"]
    assert _first(found) == ("second", "its input second.weight differs")


def test_one_wrong_element_of_a_large_tensor_is_found(base: Snapshot) -> None:
    assert not next(each.is_whole for each in base.header.operations if each.op == "torch.relu")
    found = compare(base, _values(change=lambda model: model.first.bias[40].add_(0.01)))
    assert _first(found) == ("first", "its input first.bias differs")


def test_changed_operation_is_named(base: Snapshot) -> None:
    _, cause = _first(compare(base, _values(_OtherActivation)))
    assert "relu in the first" in cause
    assert "silu in the second" in cause


def test_reordered_sum_is_rounding(base: Snapshot) -> None:
    found = compare(base, _values(_OtherOrder))
    assert found.verdict == "rounding only; operations differ"
    assert [pair.change for pair in found.changed] == ["only in the second"]


def test_other_dtype_is_rounding_up_to_what_amplifies_it(base: Snapshot) -> None:
    found = compare(base, _values(dtype=torch.bfloat16))
    before = [pair.verdict for pair in found.pairs if pair.operation.op in ("torch.linear", "torch.relu")]
    assert set(before) == {"close"}
    assert _first(found) == ("norm", "float32 in the first, bfloat16 in the second")


def test_missing_operation_is_named(base: Snapshot) -> None:
    _, cause = _first(compare(base, _values(_NoNorm)))
    assert cause == "it takes other values: torch.nn.functional.batch_norm is only in the first"


def test_compiled_graph_agrees_and_a_broken_one_does_not(base: Snapshot) -> None:
    assert compare(base, _values(compile_graph=lambda graph: torch.compile(graph, backend="aot_eager"))).first is None

    def break_relu(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
        for node in graph.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = torch.tanh
        graph.recompile()
        return graph

    found = compare(base, _values(compile_graph=break_relu))
    assert found.first is not None
    assert found.first.operation.op == "torch.relu"
    assert found.cause_of(found.first) == "its inputs agree, so it is this operation"


def _archive(**entries: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name.replace("__", "/").replace("_npy", ".npy").replace("_json", ".json"), content)
    return data.getvalue()


def test_foreign_files_are_refused(base: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MOST_BYTES", 2**21)
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    header = zipfile.ZipFile(io.BytesIO(base.to_bytes())).read("header.json")
    files = {
        "text": b"no archive",
        "empty": _archive(),
        "pickle": pickle.dumps({}),
        "no json": _archive(header_json=b"{"),
        "other schema": _archive(header_json=header.replace(b'"schema":1', b'"schema":99')),
        "object array": _archive(header_json=header, values__0_npy=pickled.getvalue()),
        "cut off": base.to_bytes()[:-300],
        "bomb": _archive(header_json=header, values__0_npy=bytes(2**22)),
    }
    for name, content in files.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(SnapshotError):
            Snapshot.load(path)
