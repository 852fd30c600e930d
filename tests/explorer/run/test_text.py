"""The record as text: golden summaries and listings, clipped to the width, coloured only for a terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from compiler.record import Artifact, Entity, Frame, Kernel, Record, Timing
from compiler.record.options import Options
from explorer.reading.plain_text import clip_name, text_lines
from explorer.reading.stages import counts, stage_seconds
from explorer.run import text
from tests.explorer.golden import assert_golden
from tests.explorer.small_record import small_record

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def test_golden_summary() -> None:
    assert_golden("summary.txt", text.summary(small_record()))


def test_listing_shows_numbers_and_source_lines() -> None:
    record = small_record()
    assert_golden("listing_forward.txt", text.listing(record, record["forward"]))
    assert_golden("listing_source.txt", text.listing(record, record["source"]))


def test_summary_of_nothing_says_so() -> None:
    assert text.summary(Record("", Options())).splitlines() == ["tcompile", "", "no stage was recorded"]


def test_summary_fits_the_width() -> None:
    record = small_record()
    wordy = replace(record.breaks[0], explanation="because " * 60)
    long_name = replace(record.kernels[0], name="triton_poi_fused_" + "add_" * 60)
    lines = text.summary(record.with_fields(breaks=(wordy,), kernels=(long_name,)), width=80).splitlines()
    assert max(map(len, lines)) == 80
    assert sum(line.endswith("…") for line in lines) >= 1


def test_a_long_name_leaves_room_for_every_number() -> None:
    record = small_record()
    kernels = tuple(
        replace(kernel, name="triton_red_fused_" + "add_" * 20, bytes=1_000_000)
        if kernel.category != "extern"
        else kernel
        for kernel in record.kernels
    )
    assert "  75 %\n" in text.summary(record.with_fields(kernels=kernels))


def test_a_problem_of_several_graphs_is_told_once() -> None:
    record = small_record()
    again = replace(record.problems[0], graph="0/1")
    shown = text.summary(record.with_fields(problems=(*record.problems, again)))
    assert "2 problems\n  TTIR 0/0, 0/1: this machine has no Triton\n    install triton\n" in f"{shown}\n"


def test_a_break_that_repeats_is_shown_once() -> None:
    record = small_record()
    shown = text.summary(record.with_fields(breaks=record.breaks * 3))
    assert "3 graph breaks" in shown
    assert shown.count("print(x)") == 1
    assert "(3 times)" in shown


def test_equal_recompiles_are_shown_once() -> None:
    record = small_record()
    last = replace(record.recompiles[0], id="recompile[0/2]", limit="recompile_limit (2)")
    shown = text.summary(record.with_fields(recompiles=(*record.recompiles, last)))
    assert "2 recompilations\n  f: size of `x` in dimension 0 was 8, is now 9  (2 times)\n" in shown
    assert "recompile_limit (2) is reached: torch gave up on it" in shown


def test_unexplained_recompile_shows_the_torch_text() -> None:
    record = small_record()
    bare = replace(record.recompiles[0], failures=(), advice="")
    unexplained = replace(record.breaks[0], what="", suggestions=())
    shown = text.summary(record.with_fields(recompiles=(bare,), breaks=(unexplained,)))
    assert "  f: expected 8, actual 9\n\n" in shown
    assert "  cell:2  print(x)  Dynamo does not know how to trace builtin operator `print`\n\n" in shown


def test_skipped_functions_say_why() -> None:
    record = small_record()
    skipped = Frame("1/0", "torch_dynamo_resume_in_g_at_7", "m.py", 7, "skipped", "a decorator keeps it out", code=1)
    shown = text.summary(record.with_fields(frames=(*record.frames, skipped)))
    assert "1 function left to Python\n  g (m.py:7): a decorator keeps it out" in shown


def test_kernels_are_summed_by_name_largest_first() -> None:
    record = small_record()
    totals = text.kernel_totals(record.with_fields(kernels=record.kernels * 2))
    assert totals == [("extern_kernels.mm", "extern", "2", "1.8 KiB"), ("cpp_fused_div_0", "reduction", "4", "1.0 KiB")]


def test_same_kernel_name_in_two_graphs_stays_separate() -> None:
    homes = [(half, f"kernels[0/0 {half}]") for half in ("forward", "backward")]
    kernels = [
        Kernel(f"{home}.{name}", name, "0/0", home, "triton", category, (1, 1), (), 1, size, half)
        for size, (half, home) in zip((512, 1024), homes, strict=True)
        for name, category in (("kernel_mm", "template"), (f"kernel_{half}", "pointwise"), ("aten.mm", "extern"))
    ]
    record = small_record().with_fields(kernels=tuple(kernels))
    totals = {name: (calls, size) for name, _, calls, size in text.kernel_totals(record)}
    assert totals == {
        "aten.mm": ("2", "1.5 KiB"),
        "kernel_mm (0/0 backward)": ("1", "1.0 KiB"),
        "kernel_backward": ("1", "1.0 KiB"),
        "kernel_mm (0/0 forward)": ("1", "512 B"),
        "kernel_forward": ("1", "512 B"),
    }


def test_kernels_are_listed_where_their_stage_was_asked_for() -> None:
    record = small_record()
    assert "cpp_fused_div_0" in text.summary(record)
    rest = tuple(artifact for artifact in record.artifacts if artifact.stage != "kernels")
    assert "cpp_fused_div_0" not in text.summary(record.with_fields(artifacts=rest))


def test_omitted_kernels_are_counted() -> None:
    record = small_record()
    many = tuple(Kernel(f"k{i}", f"k{i}", "0/0", "kernels", "cpp", "pointwise", (1, 1)) for i in range(40))
    assert "… and 28 more: run.kernels" in text.summary(record.with_fields(kernels=many))


def test_only_compile_times_are_summed() -> None:
    record = small_record()
    assert stage_seconds(record, "forward") == pytest.approx(0.0042)
    again = record.with_fields(timings=(*record.timings, Timing("forward[0/0]", "compile", 1.0)))
    assert stage_seconds(again, "forward") == pytest.approx(1.0042)


def test_only_changed_options_are_named() -> None:
    assert text.changed_options(Options()) == []
    assert text.changed_options(small_record().options) == ["mode=max-autotune", "stages=source,forward"]


def test_line_ends_only_at_a_newline() -> None:
    assert text_lines("a\x0cb\u2028c\nd\n") == ["a\x0cb\u2028c", "d"]


def test_colour_changes_no_character_and_no_line() -> None:
    record = small_record()
    artifact = replace(record["captured"], text='\n\ndef f():\n    """Two\n    lines."""\n    return 1  # x\n')
    plain, coloured = (text.listing(record, artifact, colour=colour) for colour in (False, True))
    assert "\x1b[" in coloured
    assert [line.rstrip() for line in ANSI.sub("", coloured).split("\n")] == plain.split("\n")


def test_a_language_without_a_lexer_is_shown_plain() -> None:
    record = small_record()
    artifact = replace(record["captured"], language="no such language")
    assert text.listing(record, artifact, colour=True) == text.listing(record, artifact)


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert text.wants_colour(terminal)
    assert not text.wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not text.wants_colour(terminal)


def test_excerpts_keep_the_numbers_of_their_file() -> None:
    record = small_record()
    excerpt = Artifact("source[m.py]", "source", "m.py", "python", "⋮\na = 1\nb = 2\n", attrs={"numbers": [0, 71, 72]})
    assert text.listing(record, excerpt).splitlines() == ["    ⋮", "71  a = 1", "72  b = 2"]


def test_call_chain_links_to_its_innermost_line() -> None:
    record = small_record()
    chain = ("source[cell].L2", "source[cell].L3")
    made = Entity("forward[1/0].mm", "call", "mm", {}, (), chain)
    artifact = Artifact("forward[1/0]", "forward", "t", "python", "mm\n", "1/0", {1: (made.id,)}, (made,))
    assert text.listing(record.with_fields(artifacts=(*record.artifacts, artifact)), artifact) == "1  cell:3  mm"


def test_rendered_bytecode_is_not_counted_as_instructions() -> None:
    instruction = Entity("bytecode[0/0].0", "instruction", "RESUME")
    statement = Entity("bytecode[0/0 as Python].L1", "statement", "return x")
    listing = Artifact("bytecode[0/0]", "bytecode", "f", "bytecode", "", entities=(instruction,))
    python = Artifact("bytecode[0/0 as Python]", "bytecode", "f", "python", "", entities=(statement,))
    assert counts([listing, python]) == "1 instruction"


def test_exports_of_one_call_are_not_added_up() -> None:
    op = Entity("exported.add", "call", "add")
    programs = {name: Artifact(f"exported[{name}]", "exported", name, "python", "", entities=(op,) * ops)
                for name, ops in (("non-strict", 2), ("strict", 2), ("other", 3))}  # fmt: skip
    assert counts(list(programs.values())) == "non-strict and strict: 2 ops; other: 3 ops"
    assert counts([programs["strict"]]) == "2 ops"
    record = small_record().with_fields(artifacts=tuple(programs.values())[:2])
    assert [row.cells[1] for row in text.stages_table(record).rows] == ["2"]


def test_names_are_clipped_in_their_middle() -> None:
    name = "triton_poi_fused_add_mul_relu_native_layer_norm_3"
    assert clip_name(name, 24) == "triton_poi_…_norm_3"
    assert clip_name(name, len(name)) == name
    assert all(len(clip_name(name, width)) <= width for width in range(5, len(name)))
