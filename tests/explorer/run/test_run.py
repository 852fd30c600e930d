"""`Run`: stages, tables, atomically written files, diffs with both sides named."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import graphviz
import pandas as pd
import pytest

import explorer
from compiler.record import Record, RecordError
from compiler.record.options import Options
from explorer.entry.load import load
from explorer.reading.columns import COLUMNS
from explorer.run import files
from explorer.run.compiling import KernelCompiler
from explorer.run.run import Run
from tests.explorer.explored import mlp_record
from tests.explorer.golden import assert_golden
from tests.explorer.small_record import small_record

OF_RANKS = ("buckets", "collective_lines", "collectives", "units")
"""Tables that have rows only in runs of distributed programs."""
TABLES = [name for name in (*COLUMNS, "ops") if name not in ("linked", "stage_times", "timings", *OF_RANKS)]
MOST_NAMES = 34  # 28, the x-ray and its patch, and of ranks: collectives, overlap, ranks
"""Public names of `Run`."""


class FakeWidget:
    """A stub with the parts of a widget that `Run` needs."""

    def __init__(self) -> None:
        self.selection: list[str] = []
        self.compiler = KernelCompiler(small_record())


@pytest.fixture
def run() -> Run:
    return Run(small_record(), value=42)


def test_every_table_is_in_tables(run: Run) -> None:
    absent = ("steps", "passes", "layouts", *OF_RANKS)
    assert dir(run.tables) == sorted([*TABLES, *absent])
    assert all(len(getattr(run.tables, name)) for name in TABLES)
    assert all(getattr(run.tables, name).empty for name in absent)
    assert len(run.timing.stages)
    assert len(run.timing.candidates)


def test_tables_print_as_a_list_with_their_meaning(run: Run) -> None:
    lines = str(run.tables).splitlines()
    assert sorted(line.split()[0] for line in lines) == dir(run.tables)
    assert all("One row " in line or "How often" in line for line in lines)


@pytest.mark.parametrize("name", ["breaks", "recompiles", "guards", "ops", "kernels", "binaries"])
def test_much_used_tables_are_properties_too(run: Run, name: str) -> None:
    pd.testing.assert_frame_equal(getattr(run, name), getattr(run.tables, name))


def test_run_has_few_public_names() -> None:
    assert len([name for name in dir(Run) if not name.startswith("_")]) <= MOST_NAMES


@pytest.mark.parametrize(
    ("name", "new"),
    [("timings", "run.timing.candidates"), ("level_ops", "run.decompose().operators"), ("frames", "run.tables.frames")],
)
def test_old_name_of_a_run_says_the_new_one(run: Run, name: str, new: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"run.{name} is no more: use {new}")):
        getattr(run, name)


def test_old_name_of_the_package_says_the_new_one() -> None:
    with pytest.raises(AttributeError, match=re.escape("explorer.operators is no more: tcompile.decompose()")):
        _ = explorer.operators


def test_unknown_names_are_errors(run: Run) -> None:
    with pytest.raises(AttributeError, match="a run has no attribute 'timming'"):
        _ = run.timming  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="there is no table 'kernals'; there are: breaks, "):
        _ = run.tables.kernals


def test_untimed_run_says_how_to_time_it(run: Run) -> None:
    untimed = Run(run.record.with_fields(candidates=(), measurement=None))
    assert str(untimed.timing) == "nothing was timed: run.timing.measure() does it"


def test_a_stage_prints_as_its_text(run: Run) -> None:
    assert str(run["forward"]) == small_record()["forward"].text
    assert run["forward[0/0]"] is run["forward"]


def test_a_run_holds_its_stages(run: Run) -> None:
    assert "forward" in list(run)
    assert [name in run for name in ("Forward", "forward[0/0]", "ptx", "nonsense", 0)] == [True, True] + [False] * 3
    assert all(str(run[name]) for name in run)


def test_missing_stage_gives_a_reason_or_the_choices(run: Run) -> None:
    with pytest.raises(KeyError, match="this machine has no Triton"):
        run["ttir"]
    with pytest.raises(KeyError, match="the kernels of this run have no stage 'sass', but llir, asm"):
        Run(run.record.with_fields(problems=()))["sass"]
    findings = "frame_map, breaks, guards, recompiles"
    with pytest.raises(KeyError, match=f"it has: source, {findings}, captured, forward, backward, kernels"):
        run["nonsense"]


def test_stages_complete_in_ipython(run: Run) -> None:
    assert {"forward", "forward[0/0]"} <= set(run._ipython_key_completions_())


def test_print_is_the_summary_and_repr_is_short(run: Run) -> None:
    assert str(run).startswith("f\ntorch 2.13.0")
    assert repr(run) == "<Run f: 5 stages; print(run) for a summary>"


def test_drawing_is_a_digraph(run: Run) -> None:
    assert isinstance(run.drawing("forward"), graphviz.Digraph)
    assert "rankdir=LR" in run.drawing("forward", direction="LR").source


def test_run_shows_text_and_html_without_script(run: Run) -> None:
    bundle = run._repr_mimebundle_()
    assert bundle["text/plain"] == str(run)
    assert bundle["text/html"].startswith('<div class="tcompile-twin"')


def test_selection_without_a_widget(run: Run) -> None:
    assert run.selection == ()
    run.selection = "forward[0/0].mm"
    assert run.selection == ("forward[0/0].mm",)
    run.selection = ["forward[0/0].mm", "source[cell].L2"]
    assert run.selection == ("forward[0/0].mm", "source[cell].L2")


def test_selection_is_forwarded_to_the_widget() -> None:
    widget = FakeWidget()
    run = Run(small_record(), widget=widget)
    run.selection = "forward[0/0].mm"
    assert widget.selection == ["forward[0/0].mm"]
    widget.selection = ["source[cell].L3"]
    assert run.selection == ("source[cell].L3",)
    assert run.widget() is widget


def test_widget_is_created_once_with_the_selection(run: Run) -> None:
    run.selection = "forward[0/0].mm"
    widget = run.widget()
    assert widget is run.widget()
    assert widget.selection == ["forward[0/0].mm"]
    widget.selection = ["source[cell].L3"]
    assert run.selection == ("source[cell].L3",)


def test_unknown_selection_suggests_a_similar_id(run: Run) -> None:
    with pytest.raises(ValueError, match=r"did you mean 'forward\[0/0\]\.mm'"):
        run.selection = "forward[0/0].mmm"
    assert run.selection == ()


def test_json_round_trip(run: Run, tmp_path: Path) -> None:
    path = run.save(tmp_path / "run.json")
    again = load(path)
    assert again.record == run.record
    assert again.value is None


def test_real_record_round_trips_through_json(tmp_path: Path) -> None:
    path = Run(mlp_record()).save(tmp_path / "run.json")
    assert load(path).record == mlp_record()


@pytest.mark.parametrize("name", ["run.pkl", "run", "run.htm", "run.json.gz"])
def test_unknown_suffix_is_refused_before_writing(run: Run, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"a run is saved as '\.html' \(a page to explore\) or '\.json' \(data\)"):
        run.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_failed_save_leaves_the_file_unchanged(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run.save(tmp_path / "run.json")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        Run(mlp_record()).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.json"]  # noqa: PTH208 names, hidden ones too


def test_saving_keeps_links_and_permissions(run: Run, tmp_path: Path) -> None:
    target = run.save(tmp_path / "run.json")
    target.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(target)
    Run(mlp_record()).save(link)
    assert link.is_symlink()
    assert load(target).record == mlp_record()
    assert target.stat().st_mode & 0o777 == 0o640


def test_damaged_file_is_refused_by_name_and_field(run: Run, tmp_path: Path) -> None:
    path = run.save(tmp_path / "run.json")
    path.write_text(path.read_text().replace('"line":2,', '"line":"two",', 1))
    with pytest.raises(RecordError, match=r"run\.json: .*`int`, got `str` - at `\$\.breaks\[0\]\.line`"):
        load(path)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "run.json")


def test_page_round_trip(run: Run, tmp_path: Path) -> None:
    path = run.save(tmp_path / "run.html")
    assert load(path).record == run.record


@pytest.mark.parametrize("content", [b"<!doctype html><p>hello</p>", b"\xff\xfe\x00"])
def test_other_page_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.html"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"run\.html: "):
        load(path)


def changed() -> Record:
    """The small record as in another mode: one op less, no kernels."""
    record = small_record()
    forward = record["forward"]
    less = replace(forward, text=forward.text.replace("    div = aten.div(mm)\n", ""))
    less = replace(less, entities=tuple(entity for entity in forward.entities if entity.label != "div"))
    artifacts = tuple(less if artifact is forward else artifact for artifact in record.artifacts[:-1])
    return record.with_fields(artifacts=artifacts, options=Options())


def test_diff_is_golden(run: Run) -> None:
    assert_golden("diff.txt", str(run.diff(changed())))


def test_diff_names_both_sides(run: Run) -> None:
    assert run.diff(changed()).names == ("f (mode=max-autotune stages=source,forward)", "f (default options)")
    assert run.diff(run.record.with_fields(title="g")).names == ("f", "g")
    assert run.diff(run).names == ("f (first)", "f (second)")


def test_diff_of_one_stage(run: Run) -> None:
    diff = run.diff(changed())["forward"]
    assert (diff.added, diff.removed) == (0, 1)
    assert re.findall(r"^-    .*$", str(diff), re.MULTILINE) == ["-    div = aten.div(mm)"]
    with pytest.raises(KeyError, match="neither side has an artifact or stage 'sass'"):
        run.diff(changed())["sass"]


def test_diff_counts_ops(run: Run) -> None:
    (row,) = run.diff(changed()).ops.to_dict("records")
    assert (row["stage"], row["op"], row["change"]) == ("forward", "aten.div.Tensor", -1)


def test_diff_of_equal_runs_says_so(run: Run) -> None:
    diff = run.diff(run)
    assert len(diff.ops) == 0
    assert "@@" not in str(diff)
    assert str(diff["forward"]) == "forward[0/0]: the same in f (first) and f (second)"


def test_diff_with_a_record_without_stages(run: Run) -> None:
    diff = run.diff(Record("nothing", Options()))
    assert {artifact.verdict for artifact in diff.artifacts} == {"only in f"}
    assert len(diff.ops) == 0


def test_diff_as_html_escapes_user_code(run: Run) -> None:
    other = changed()
    source = other["source"]
    more = replace(source, text=source.text + "# <script>alert(1)</script>\n")
    other = other.with_fields(artifacts=(more, *other.artifacts[1:]), title="<script>")
    html = run.diff(other)._repr_html_()
    assert "<script" not in html
    assert "+# &lt;script&gt;alert(1)" in html


def test_known_suffixes_are_case_insensitive(tmp_path: Path) -> None:
    assert files.known_suffix(tmp_path / "RUN.JSON") == ".json"
