"""Comparison of output codes: ignored differences, equality, and the report of the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fidelity
from benchmarks.fidelity import Case, Row, make, make_all, rows, write
from benchmarks.same_kernels import Code, Comparison, compared

KERNEL = """
import triton
@triton_heuristics.pointwise(size_hints={{'x': 8}}, inductor_meta={{'kernel_name': '{name}', 'backend_hash': '{hash}'}})
@triton.jit
def {name}(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    tmp0 = tl.load(in_ptr0 + {index})
    tl.store(out_ptr0, tmp0)
"""


def kernel(name: str, index: str = "x0", hash_of_triton: str = "AB12") -> str:
    return KERNEL.format(name=name, index=index, hash=hash_of_triton)


def code(*kernels: tuple[str, str], calls: tuple[str, ...] = (), path: str = "/tmp/a") -> str:
    """Output code like Inductor's, with these kernels (name, source) and these statements in the wrapper."""
    lines = ["# AOT ID: ['3_inference']", "async_compile = AsyncCompile()"]
    for name, source in kernels:
        lines += [f"# kernel path: {path}/{name}.py", f"{name} = async_compile.triton('{name}', '''{source}''')"]
    lines += ["def call(args):", *(f"    {call}" for call in calls), "    return args"]
    return "\n".join(lines) + "\n"


def side(*texts: str) -> list[list[Any]]:
    return [[number, "inference", text] for number, text in enumerate(texts)]


def test_paths_and_hashes_are_ignored() -> None:
    real = code(("triton_poi_0", kernel("triton_poi_0", hash_of_triton="AB12")), path="/tmp/a")
    virtual = code(("triton_poi_0", kernel("triton_poi_0", hash_of_triton="")), path="/tmp/b")
    found = compared(side(real), side(virtual))
    assert (found.equal, found.total, found.same_text, found.differences) == (1, 1, True, ())


def test_other_code_differences_count() -> None:
    real = code(("triton_poi_0", kernel("triton_poi_0", "x0")))
    virtual = code(("triton_poi_0", kernel("triton_poi_0", "x1")))
    found = compared(side(real), side(virtual))
    assert (found.equal, found.total, found.same_text) == (0, 1, False)
    (difference,) = found.differences
    assert (difference.real, difference.virtual) == ("triton_poi_0", "triton_poi_0")
    assert "-    tmp0 = tl.load(in_ptr0 + x0)" in difference.diff
    assert "+    tmp0 = tl.load(in_ptr0 + x1)" in difference.diff


def test_renumbered_kernel_is_counted_as_renumbered() -> None:
    real = code(("triton_poi_0", kernel("triton_poi_0")))
    virtual = code(("triton_poi_1", kernel("triton_poi_1")))
    found = compared(side(real), side(virtual))
    assert (found.equal, found.renumbered, found.total) == (0, 1, 1)


def test_kernels_compare_as_multisets_and_order_is_reported() -> None:
    one, two = ("triton_poi_0", kernel("triton_poi_0")), ("triton_red_1", kernel("triton_red_1", "x5"))
    found = compared(side(code(one, two)), side(code(two, one)))
    assert (found.equal, found.total, found.same_order) == (2, 2, False)


def test_total_is_the_larger_kernel_count() -> None:
    one, two = ("triton_poi_0", kernel("triton_poi_0")), ("triton_red_1", kernel("triton_red_1", "x5"))
    more = compared(side(code(one)), side(code(one, two)))
    assert (more.equal, more.total) == (1, 2)
    assert [(d.real, d.virtual) for d in more.differences] == [("", "triton_red_1")]
    missing = compared(side(code(one)), [])
    assert (missing.equal, missing.total) == (0, 1)


def test_graphs_are_paired_in_order() -> None:
    """Numbers may differ: one side numbers frames, the other graphs."""
    one = code(("triton_poi_0", kernel("triton_poi_0")))
    two = code(("triton_poi_0", kernel("triton_poi_0", "x7")))
    found = compared([[0, "inference", one], [1, "inference", two]], [[1, "inference", one], [3, "inference", two]])
    assert (found.equal, found.total) == (2, 2)


def test_aten_calls_are_compared_by_name() -> None:
    calls = ("extern_kernels.mm(a, b, out=c)", "d = torch.ops.aten._flash.default(c)")
    real, virtual = code(calls=calls), code(calls=(calls[0], "d = torch.ops.aten._efficient.default(c)"))
    assert Code.of(real).calls == ("extern_kernels.mm", "torch.ops.aten._flash.default")
    found = compared(side(real), side(virtual))
    assert (found.equal_calls, found.calls) == (1, 2)
    assert found.other_calls == {
        "0 inference real": ["torch.ops.aten._flash.default"],
        "0 inference virtual": ["torch.ops.aten._efficient.default"],
    }


def test_comparisons_add_up() -> None:
    total = Comparison(equal=3, total=4, same_order=False) + Comparison(equal=1, total=1)
    assert (total.equal, total.total, total.same_order, total.same_text) == (4, 5, False, True)


def keep(folder: Path, side_name: str, text: str, version: str = "2.11.0") -> Case:
    case = Case("MLP", "inference", "fp32")
    content = {"codes": side(text), "problems": [], "torch": version, "triton": "3.6.0"}
    case.file(folder, side_name).write_text(json.dumps(content))
    return case


def test_saved_sides_are_compared(tmp_path: Path) -> None:
    text = code(("triton_poi_0", kernel("triton_poi_0")))
    case = keep(tmp_path, "real", text, "2.11.0+cu130")
    assert list(rows([case], tmp_path)) == []
    keep(tmp_path, "virtual", text, "2.11.0+cpu")
    (row,) = rows([case], tmp_path)
    assert "1 of 1" in row.line()
    assert "100.0 %" in row.line()
    assert "wrappers equal" in row.line()


def test_sides_of_different_versions_are_refused(tmp_path: Path) -> None:
    text = code(("triton_poi_0", kernel("triton_poi_0")))
    keep(tmp_path, "real", text, "2.11.0")
    case = keep(tmp_path, "virtual", text, "2.13.0")
    with pytest.raises(ValueError, match=r"torch 2\.11\.0 made the real side, 2\.13\.0 the virtual one"):
        list(rows([case], tmp_path))


def test_existing_results_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(fidelity, "measured", lambda *asked, **_: made.append(asked[1]) or {"codes": []})
    case = keep(tmp_path, "real", code())
    assert make_all([case], ["real", "virtual"], tmp_path, "h200", 2) == []
    assert made == ["virtual"]


def test_failing_side_is_reported(tmp_path: Path) -> None:
    message = make(Case("no-such-model", "inference", "fp32"), "virtual", tmp_path, "h200")
    assert "no-such-model, inference, fp32" in message
    assert "invalid choice" in message


def test_no_code_is_not_100_percent(tmp_path: Path) -> None:
    row = Row(Case("LSTM", "inference", "fp32"), compared([], []), ("captured: left to eager\nmore",))
    assert "no code" in row.line()
    assert row.line().endswith("captured: left to eager")
    write([row], row.comparison, [], tmp_path / "fidelity.json")
    assert json.loads((tmp_path / "fidelity.json").read_text())["kernels"] == 0
