"""Kernels are compiled lazily: once, in order, and interruptibly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import compiler.binary
from compiler.engine import explore
from compiler.record import Record
from explorer.run.compiling import KernelCompiler, machine_stages
from explorer.run.run import Run
from explorer.run.widget import Explorer
from tests.explorer.findings import fused_record as fused
from tests.explorer.small_record import small_record


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The requests to the compiler, which returns hand-written results."""
    asked: list[dict[str, Any]] = []

    def growing(record: Record, **options: Any) -> Iterator[Record]:
        asked.append(options)
        return fused.growing(record, **options)

    monkeypatch.setattr(compiler.binary, "compile_incrementally", growing, raising=False)
    return asked


@pytest.fixture
def run(calls: list[dict[str, Any]]) -> Run:
    return Run(fused.fused_record())


def test_machine_stage_is_compiled_on_request(run: Run, calls: list[dict[str, Any]]) -> None:
    assert run.record == fused.fused_record()
    assert run["ptx"].title == fused.SUM
    assert run["SASS"].stage == "sass"
    assert run[f"ptx[0/0 inference {fused.DOUBLE}]"].title == fused.DOUBLE
    assert len(calls) == 1
    assert [artifact.stage for artifact in run.record.artifacts][-4:] == ["ptx", "ptx", "sass", "sass"]


def test_binaries_are_in_kernel_order(run: Run) -> None:
    names = [kernel.name for kernel in run.record.kernels]
    assert list(run.binaries["kernel"]) == names
    assert [artifact.title for artifact in run.record.of_stage("ptx")] == names


def test_kernels_table_has_facts_after_compilation(run: Run) -> None:
    assert run.kernels["registers"].isna().all()
    run.compile_kernels()
    assert list(run.kernels["registers"]) == [26, 26]
    assert list(run.kernels["occupancy_percent"]) == [50.0, 50.0]


def test_the_table_of_binaries(run: Run) -> None:
    row = run.binaries.iloc[0]
    assert (row["target"], row["bound"], row["limiter"], row["config"]) == ("h100", "memory", "registers", "XBLOCK=1")
    assert (row["bound_us"], row["intensity"], row["mix_fma"], row["mix_global_load"]) == (2.0, 0.244, 3, 2)


def test_other_config_is_added_to_the_first(run: Run, calls: list[dict[str, Any]]) -> None:
    assert run.compile_kernels(config=1) is run
    assert calls[0]["config"] == 1
    assert list(run.record.binaries[0].config.values()) == [8]
    run.compile_kernels(config=1)
    assert len(calls) == 1
    with pytest.raises(ValueError, match="counts launch configurations from 0"):
        run.compile_kernels(config=-1)


def test_kernel_text_starts_with_its_facts(run: Run) -> None:
    assert run.kernel(fused.SUM).source.startswith("import triton\n@triton.jit\n")
    assert "registers" not in str(run.kernel(fused.SUM))
    assert "26 registers" in str(run.compile_kernels().kernel(fused.SUM))
    with pytest.raises(KeyError, match=f"did you mean '{fused.SUM}'"):
        run.kernel(fused.SUM[:-1])


def test_linked_follows_a_line_to_its_instructions(run: Run) -> None:
    run.compile_kernels()
    table = run.linked("source[cell].L2").set_index("id")
    assert list(table.index)[:2] == ["source[cell].L2", "post_grad[0/0 inference].sigmoid"]
    instructions = table[table["stage"] == "sass"]
    assert list(instructions.index) == [f"sass[0/0 inference {fused.SUM}].{part}" for part in ("kernel", "L5", "L6")]
    assert list(instructions["line"]) == [1, 2, 5]
    ptx = set(run.linked(f"sass[0/0 inference {fused.SUM}].L5")["stage"])
    assert ptx == {"source", "post_grad", "kernels", "ptx", "sass"}
    with pytest.raises(ValueError, match="no entity has the id 'nothing'"):
        run.linked(["nothing"])


def test_failed_kernel_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.binary, "compile_incrementally", fused.failing, raising=False)
    run = Run(fused.fused_record())
    with pytest.raises(KeyError, match="too much shared memory"):
        run["ptx"]
    assert run.compiler.pending_stages() == {}
    assert list(run.tables.problems["stage"]) == ["ptx"]


def test_interrupt_keeps_finished_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(record: Record, **options: Any) -> Iterator[Record]:
        yield next(fused.growing(record, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(compiler.binary, "compile_incrementally", interrupted, raising=False)
    run = Run(fused.fused_record())
    with pytest.raises(KeyboardInterrupt):
        run.compile_kernels()
    assert [item.kernel for item in run.record.binaries] == [f"{fused.ARTIFACT}.{fused.DOUBLE}"]
    assert run.compiler.pending_stages()["ptx"] == 1


def test_stages_depend_on_the_target() -> None:
    assert machine_stages(fused.fused_record("a100")) == ("ttir", "ttgir", "llir", "ptx", "sass")
    assert machine_stages(fused.fused_record("mi300x")) == ("ttir", "ttgir", "llir", "amdgcn")
    assert machine_stages(small_record()) == ("llir", "asm")
    assert machine_stages(small_record().with_fields(kernels=())) == ()


class Gate:
    """A compiler that makes one kernel and then waits for permission to continue."""

    def __init__(self) -> None:
        self.first_done, self.go_on = threading.Event(), threading.Event()
        self.closed = False

    def growing(self, record: Record, **options: Any) -> Iterator[Record]:
        try:
            steps = fused.growing(record, **options)
            yield next(steps)
            self.first_done.set()
            assert self.go_on.wait(30)
            yield next(steps)
        finally:
            self.closed = True


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(compiler.binary, "compile_incrementally", gate.growing, raising=False)
    return gate


def test_widget_compiles_in_background_with_progress(gate: Gate) -> None:
    run = Run(fused.fused_record())
    widget = run.widget()
    assert {stage["name"]: stage["pending"] for stage in widget.manifest["stages"]}["ptx"] == 2
    widget._on_message(widget, {"type": "compile"}, [])
    assert gate.first_done.wait(30)
    assert widget.compiling == {"done": 1, "total": 2}
    gate.go_on.set()
    run.compiler.join(30)
    assert widget.compiling == {}
    assert [artifact["id"] for stage in widget.manifest["stages"] for artifact in stage["artifacts"]][-1:] == [
        f"sass[0/0 inference {fused.DOUBLE}]"
    ]
    assert run["ptx"].title == fused.SUM


def test_cancelled_compilation_keeps_finished_kernels(gate: Gate) -> None:
    compiler_ = KernelCompiler(fused.fused_record())
    widget = Explorer(compiler_)
    widget._on_message(widget, {"type": "compile"}, [])
    assert gate.first_done.wait(30)
    widget._on_message(widget, {"type": "cancel"}, [])
    gate.go_on.set()
    compiler_.join(30)
    assert gate.closed
    assert len(compiler_.record.binaries) == 2
    assert widget.compiling == {}


def test_compiling_resumes_after_a_cancel(run: Run) -> None:
    run.compiler.cancel()
    run.compile_kernels()
    assert run.compiler.pending_stages() == {}
    assert len(run.record.binaries) == 2


def test_background_error_is_shown_on_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(record: Record, **_: Any) -> Iterator[Record]:
        raise OSError("no processes left")

    monkeypatch.setattr(compiler.binary, "compile_incrementally", broken, raising=False)
    made = KernelCompiler(fused.fused_record())
    widget = Explorer(made)
    made.start()
    made.join(30)
    assert [problem.reason for problem in made.record.problems if problem.stage == "ptx"] == [
        "the kernels could not be compiled: OSError: no processes left"
    ]
    assert "no processes left" in str(widget.manifest["stages"])


def test_closed_widget_receives_no_updates(run: Run) -> None:
    widget = run.widget()
    widget.close()
    run.compile_kernels()
    assert widget.compiling == {}
    assert "ptx" not in [stage["name"] for stage in widget.manifest["stages"] if stage["artifacts"]]


def test_missing_config_is_an_error_without_side_effects() -> None:
    pytest.importorskip("triton")
    run = Run(explore(torch.nn.functional.gelu, (torch.randn(64),)).record)
    before = run.record
    with pytest.raises(ValueError, match="there is no configuration 99: Inductor would try"):
        run.compile_kernels(config=99)
    assert run.record == before
    assert run.compile_kernels().record.binaries
