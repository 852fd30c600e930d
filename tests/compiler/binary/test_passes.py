"""Triton's passes as diffs, what became of loops, and layouts drawn as Triton itself draws them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from compiler.binary import compile_record
from compiler.binary.layout_facts import bases_of
from compiler.binary.layouts import Group, describe, grid_rows, locate
from compiler.binary.pass_dumps import Dump, changes
from compiler.binary.pipelining import loop_words, warp_words
from compiler.record import Artifact, Record
from explorer.run import tables
from tests.compiler.hand_written import dot, pointwise, record_of

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.fixture(scope="module")
def record() -> Record:
    """A matmul in a loop and a pointwise kernel, compiled for an H100 with what each pass changed."""
    name, source = dot(3)
    matmul = name, source.replace("BLOCK : tl.constexpr = 128", "BLOCK : tl.constexpr = 64")
    return compile_record(record_of(matmul, pointwise()), stages=("ttgir", "passes", "layouts"))


def passes_of(artifact: Artifact) -> dict[str, Any]:
    return {entity.label: entity for entity in artifact.entities if entity.kind == "pass"}


def test_each_pass_that_changed_something_has_its_diff(record: Record) -> None:
    matmul, simple = record.of_stage("passes")
    assert not record.problems
    found = passes_of(matmul)
    assert {"TritonGPUCoalesce", "TritonGPUAccelerateMatmul", "TritonGPUPipeline, LowerLoops"} <= set(found)
    assert "TritonGPUAccelerateMatmul" not in passes_of(simple)
    assert "tritongpu-accelerate-matmul" in simple.attrs["idle"]
    accelerate = found["TritonGPUAccelerateMatmul"]
    rows = matmul.text.split("\n")[accelerate.attrs["line"] : accelerate.attrs["last"]]
    assert any(re.match(r"\+ .*ttng\.warp_group_dot", row) for row in rows)
    assert any(re.match(r"- .*tt\.dot ", row) for row in rows)
    assert accelerate.attrs["operations"] == "ttg.local_alloc +2, tt.dot -1, ttng.warp_group_dot +1"
    assert {entity.attrs["pipeline"] for entity in found.values()} == {"ttir", "ttgir", "llir"}


def test_rows_of_a_diff_link_to_their_triton_lines(record: Record) -> None:
    matmul, _ = record.of_stage("passes")
    rows = matmul.text.split("\n")
    line = next(number for number, row in enumerate(rows, 1) if re.match(r"\+ .*ttng\.warp_group_dot ", row))
    linked = [entity for entity in matmul.entities if entity.id in matmul.lines[line]]
    assert any("tl.dot" in entity.label for entity in linked)
    assert any(entity.kind == "pass" for entity in linked)


def test_what_became_of_the_loop_is_said(record: Record) -> None:
    matmul, simple = (artifact.attrs["notes"] for artifact in record.of_stage("passes"))
    assert any("pipelined in 3 stages: 2 of 2 loads up to 2 iterations ahead by cp.async" in note for note in matmul)
    assert any("wgmma" in note for note in matmul)
    assert simple[-1] == "Not warp-specialized: it has no loop."


LOOP = """\
  tt.func @f() {
    scf.for %i = %a to %b step %c {
      BODY
    }TAIL
  }"""


@pytest.mark.parametrize(
    ("body", "tail", "stages", "words"),
    [
        ("%x = tt.load %p", "", 3, "no `tl.dot` is in it"),
        ("%x = tt.load %p", " {tt.num_stages = 2 : i32}", 3, "num_stages=2: no load in it qualifies"),
        ("%x = tt.dot %p, %q, %r", "", 3, "it loads nothing"),
        ("%x = tt.load %p\n%y = tt.dot %x, %x, %x", "", 1, "num_stages is 1"),
        ("%x = tt.load %p\ngpu.barrier\n%y = tt.dot %x, %x, %x", "", 3, "it has a barrier"),
        ("scf.for %j = %a to %b step %c {\n      }", "", 3, "it has an inner loop"),
    ],
)
def test_a_loop_that_is_not_pipelined_has_a_reason(body: str, tail: str, stages: int, words: str) -> None:
    text = LOOP.replace("BODY", body).replace("TAIL", tail)
    _line, said = next(loop_words(text, text, "k.py", {"num_stages": stages}))
    assert said.startswith("not pipelined")
    assert words in said


def test_warp_specialization_says_why_not() -> None:
    asking = LOOP.replace("TAIL", " {tt.warp_specialize}")
    assert "no loop asks for it" in warp_words(LOOP, LOOP, 90)
    assert "sm_80 has no support" in warp_words(asking, asking, 80)
    assert "found nothing to divide" in warp_words(asking, asking, 100)
    assert "Hopper and Blackwell only" in warp_words(asking, asking, "gfx942")


@pytest.mark.parametrize("name", ["{} ({})", "{}: {}{{max-iterations=10   top-down=true}}"])  # of Triton 3.7 and 3.9
def test_renamed_values_are_no_change(name: str) -> None:
    head = f"// -----// IR Dump Before {name} ('builtin.module' operation) //----- //\n"
    before = "#blocked = #ttg.b<1>\nmodule {\n  %a = tt.load %p : tensor<4xf32, #blocked> loc(#loc1)\n}\n"
    after = before.replace("%a", "%a_3").replace("#blocked", "#blocked1").replace("#loc1", "#loc7")
    text = head.format("CSE", "cse") + before + head.format("SCCP", "sccp") + after
    first, failed = changes(Dump("ttgir", text, ""), "k.py")
    assert (first.argument, first.is_change) == ("cse", False)
    assert (failed.argument, failed.failed) == ("sccp", True)


@pytest.fixture(scope="module")
def linear() -> Any:
    """A function from one of Triton's layouts and a shape to the layout's bases."""
    from triton.backends.compiler import GPUTarget

    from compiler.torch_api.triton_passes import LayoutReader, draws_layouts

    if not draws_layouts():
        pytest.skip("this Triton does not draw layouts itself")
    reader = LayoutReader(GPUTarget("cuda", 90, 32))
    return lambda layout, shape: bases_of(reader.linear(layout, shape))


def distributed() -> list[tuple[Any, list[int]]]:
    from triton.experimental.gluon.language import _layouts as layouts

    blocked = layouts.BlockedLayout([1, 2], [4, 8], [2, 1], [1, 0])
    mma = layouts.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
    return [
        (blocked, [16, 32]),
        (blocked, [4, 8]),  # smaller than the warps: elements have several owners
        (layouts.SliceLayout(1, blocked), [16]),
        (layouts.SliceLayout(0, mma), [32]),
        (mma, [32, 16]),
        (layouts.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16]), [64, 32]),
        (layouts.DotOperandLayout(0, mma, 2), [32, 16]),
        (layouts.DotOperandLayout(1, mma, 2), [16, 16]),
        (layouts.DistributedLinearLayout([[0, 1], [8, 0]], [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], [[0, 8]], [],
                                         [16, 16]), [16, 16]),
    ]  # fmt: skip


def test_owners_of_elements_are_those_that_triton_draws(linear: Any) -> None:
    for layout, shape in distributed():
        bases = linear(layout, shape)
        lanes = 2 ** len(bases["lane"])
        found = [
            sorted((place["warp"] * lanes + place["lane"], place["register"]) for place in places)
            for _, places in sorted(locate(bases, shape).items())
        ]
        cells = re.findall(r"(?:\s*T\d+:\d+\|?)+", layout.format_tensor_view(shape))
        drawn = [sorted((int(t), int(r)) for t, r in re.findall(r"T(\d+):(\d+)", cell)) for cell in cells]
        assert found == drawn, layout


def test_offsets_in_shared_memory_are_those_that_triton_draws(linear: Any) -> None:
    from triton.experimental.gluon.language import _layouts as layouts

    for layout in (layouts.SwizzledSharedLayout(2, 1, 4, [1, 0]), layouts.NVMMASharedLayout(32, 16, 2)):
        shape = [8, 16]
        where = locate(linear(layout, shape), shape)
        drawn = re.findall(r"\(\s*(\d+):\s*(\d+)\)", layout.format_tensor_view(shape))
        assert [(str(row), str(column)) for _, row, column in sorted(
            (places[0]["offset"], *element) for element, places in where.items())] == drawn  # fmt: skip


def test_layouts_are_drawn_and_described(record: Record) -> None:
    matmul, _ = record.of_stage("layouts")
    shown = {entity.label.partition(",")[0]: entity.attrs for entity in matmul.entities}
    assert {"#blocked", "#mma", "#shared"} <= set(shown)
    assert any("swizzled" in words for words in shown["#shared"]["words"])
    assert "8 warps of 32 threads" in " ".join(shown["#mma"]["words"])
    assert "0-7: t0 r0-7" in matmul.text
    assert not any(attrs["problem"] for attrs in shown.values())


def test_tables_have_a_row_for_each_pass_and_layout(record: Record) -> None:
    passes, layouts = tables.passes(record), tables.layouts(record)
    assert (passes["removed"] + passes["added"] > 0).all()
    assert set(passes["kernel"]) == set(layouts["kernel"]) == {"triton_tem_0", "triton_poi_0"}
    tile = layouts[layouts["shape"] == "64 × 64"].iloc[0]
    assert (tile["threads"], tile["elements_a_thread"], tile["copies"]) == (256, 16, 1)


def test_what_is_not_drawn_says_so() -> None:
    group = Group("#x.y", (8,), {}, "ValueError: of 3 elements")
    assert "Not drawn: ValueError: of 3 elements" in describe(group)
    large = Group("#x.y", (1 << 21,), {"offset": [[1 << bit] for bit in range(21)]}, "")
    assert grid_rows(large) == ["Not drawn: 2,097,152 registers or addresses are more than are drawn here (1,048,576)"]
