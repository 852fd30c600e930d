"""What a log's index tells of compilations that torch logs under its own names, or under no id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compiler.logs.capture import failure_of
from compiler.logs.cold_start import cold_start_of
from compiler.logs.events import Log
from compiler.logs.guard_text import telling_reason
from compiler.logs.job import Job
from explorer.findings.job_names import RankCompilations
from explorer.findings.job_tables import breaks_of_job, graphs_of_job, recompiles_of_job
from explorer.render.document import Document
from explorer.render.text import document_text

WRAPPER = "/venv/lib/python3.12/site-packages/torch/_dynamo/external_utils.py"
MODULE = (
    "\t| +- GuardManager: source=L['fn'], accessed_by=X, type=<class 'torch.nn.modules.{}'>, tag_safe=(False, False)"
)
SIZE = "0/0: tensor 'args[0]' size mismatch at index 0. expected 4, actual 6"


def event(kind: str, fields: object = None, payload: str = "", ids: str = "") -> str:
    values: dict[str, Any] = {kind: {} if fields is None else fields}
    if ids:
        frame, number = map(int, ids.split("/"))
        values |= {"frame_id": frame, "frame_compile_id": number, "attempt": 0}
    body = f"\n{payload}" if payload else ""
    return f"V0101 00:00:01.000000 1 torch/_dynamo/utils.py:1] {json.dumps(values)}{body}"


def wrapped(ids: str, line: int, module: str, reasons: str = "") -> list[str]:
    """The events of one compilation of a module of torch."""
    stack = [
        {"filename": 1, "line": line, "name": "<module>", "loc": f"net{line}(x)"},
        {"filename": 0, "line": 67, "name": "inner", "loc": ""},
    ]
    code = {"co_name": "inner", "co_filename": WRAPPER, "co_firstlineno": 67}
    metrics = {**code, "duration_us": 1_000, "graph_op_count": 3}
    again = [event("artifact", {"name": "recompile_reasons"}, "\t" + json.dumps([reasons]), ids)] if reasons else []
    guards = [event("dynamo_cpp_guards_str", {}, MODULE.format(module), ids)] if module else []
    start, end = event("dynamo_start", {"stack": stack}, "", ids), event("compilation_metrics", metrics, "", ids)
    return [*again, start, event("dynamo_output_graph", {}, "\tgraph", ids), *guards, end]


def job_of(*lines: str) -> Job:
    names = [event("str", [WRAPPER, 0]), event("str", ["/code/train.py", 1])]
    return Job.of_logs(Path("trace"), [Log(("a.log",), ("\n".join([*names, *lines, ""]).encode(),))])


def text_of(document: Document) -> str:
    return document_text(document)


def test_modules_of_torch_have_their_class_and_the_users_call() -> None:
    job = job_of(
        *wrapped("0/0", 5, "container.Sequential"),
        *wrapped("0/1", 5, "container.Sequential", SIZE),
        *wrapped("0/2", 9, "linear.Linear", SIZE),
        *wrapped("1/0", 11, ""),
    )
    found = job.ranks[0].compilations
    assert [(one.function, one.place) for one in found] == [
        ("Sequential", "train.py:5"),
        ("Sequential", "train.py:5"),
        ("Linear", "train.py:9"),
        ("net11(x)", "train.py:11"),
    ]
    assert found[2].reason == "shares a function of torch with Sequential"
    recompiles = text_of(recompiles_of_job([RankCompilations(None, found)]))
    assert "size of `args[0]` in dimension 0 was 4, is now 6" in recompiles
    assert "`tcompile show LOGS 0/1 recompiles`" in recompiles
    assert "4 graphs with 12 operations" in text_of(graphs_of_job([RankCompilations(3, found)]))
    assert text_of(breaks_of_job([RankCompilations(None, found)])) == "No graph breaks."


def test_reason_of_the_entry_that_held_longest_is_first() -> None:
    guards = "source=L['x'], accessed_by=1\nsource=L['flag'], accessed_by=2\n"
    flag, rank = "0/1: L['flag'] == True", "0/2: tensor 'x' rank mismatch. expected 2, actual 3"
    size = "0/0: tensor 'x' size mismatch at index 1. expected 2, actual 3"
    assert telling_reason([size, flag], guards) == 1
    assert telling_reason([rank, size], guards) == 1
    assert telling_reason(["GLOBAL_STATE changed: grad_mode ", size], guards) == 1
    assert telling_reason([flag, "0/0: 2 <= L['n']"], guards) == 1


PROGRAM = """\tExportedProgram:
\t    class GraphModule(torch.nn.Module):
\t        def forward(self, x: "f32[5]"):
\t            # File: /code/train.py:7 in forward, code: return x.sin()
\t            sin: "f32[5]" = torch.ops.aten.sin.default(x);  x = None
\t            return (sin,)
\t
\tGraph signature:
\t    # inputs
\t    x: USER_INPUT"""
PARTIAL = "\t    # File: /code/train.py:9 in forward, code: if x.sum() > 0:\n\t    gt = torch.ops.aten.gt.Scalar(x, 0)"
STRICT: Mapping[str, Any] = {
    "fail_type": "Unsupported",
    "fail_reason": 'Branch on data\n\n  File "/code/train.py", line 12, in forward\n    if x:',
}


def test_exports_and_their_failures_are_listed() -> None:
    job = job_of(
        event("exported_program", {}, PROGRAM),
        event("artifact", {"name": "make_fx_fail_partial"}, PARTIAL),
        event("compilation_metrics", STRICT),
        event("missing_fake_kernel", {"op": "lib.op"}, "", "4/0"),
        event("exported_program", {}, PROGRAM, "4/0"),
        event("artifact", {"name": "make_fx_fail_partial"}, PARTIAL, "4/0"),
    )
    found = job.ranks[0].compilations
    assert [(one.id, one.status, one.place) for one in found] == [
        ("export", "exported", "train.py:7"),
        ("export#2", "failed", "train.py:9"),
        ("export#3", "failed", "train.py:12"),
        ("4/0", "exported", "train.py:7"),
        ("4/0#2", "failed", "train.py:9"),
    ]
    assert [one.reason for one in found][1:3] == ["tracing stopped at train.py:9: if x.sum() > 0", "Branch on data"]
    record = job.ranks[0].record_of("4/0")
    assert record["exported[4/0]"].text.splitlines()[-1].lstrip("# ") == "x: USER_INPUT"
    assert "an operator has no fake kernel: lib.op" in [problem.reason for problem in record.problems]


def test_graphs_compiled_without_dynamo_are_not_exports() -> None:
    graph = '\tdef forward(self, x):\n\t    mm: "f32[8, 8]" = torch.ops.aten.mm.default(x, x)'
    code = event("inductor_output_code", {"filename": "/a.py"}, "\tk = async_compile.triton('k')")
    job = job_of(event("aot_inference_graph", {}, graph), code, event("aot_inference_graph", {}, graph), code)
    assert [(one.status, one.nodes, one.kernels) for one in job.ranks[0].compilations] == [("compiled", 1, 1)] * 2
    assert "without TorchDynamo" in job.ranks[0].compilations[0].reason
    [problem] = [each for each in job.ranks[0].record_of("export#2").problems if each.stage == "captured"]
    assert "compiled without TorchDynamo" in problem.reason


def test_errors_of_backends_and_skipped_cuda_graphs_have_reasons() -> None:
    skip = 'skipping cudagraphs due to cpu device (x). Found from : \n   File "t.py"'
    failure = "backend='<Backend object at 0x7f>' raised:\nAssertionError: no kernel for x\n\nSet TORCHDYNAMO_VERBOSE=1"
    fails = {"fail_type": "BackendCompilerFailed", "fail_reason": failure}
    job = job_of(
        event("dynamo_start", {"stack": []}, "", "0/0"),
        event("dynamo_output_graph", {}, "\tg", "0/0"),
        event("compilation_metrics", {"cudagraph_skip_reason": skip}, "", "0/0"),
        event("dynamo_start", {"stack": []}, "", "1/0"),
        event("compilation_metrics", fails, "", "1/0"),
    )
    first, second = job.ranks[0].compilations
    assert (first.status, first.reason[:32]) == ("compiled", "no CUDA graphs: cpu device (x). ")
    assert (second.status, second.reason) == ("failed", "BackendCompilerFailed: AssertionError: no kernel for x")


def span(ph: str, name: str, at: int, ids: str) -> str:
    return event("chromium_event", {}, "\t" + json.dumps({"name": name, "ts": at, "ph": ph, "args": {}}), ids)


def test_job_that_ends_in_a_backward_is_unfinished() -> None:
    lines = wrapped("0/0", 5, "container.Sequential")
    begun = span("B", "entire_backward_compile", 10, "0/0")
    [cut] = job_of(*lines, begun).ranks[0].compilations
    assert (cut.status, cut.reason) == ("unfinished", "the log ends while its backward is compiled")
    [whole] = job_of(*lines, begun, span("E", "entire_backward_compile", 20, "0/0")).ranks[0].compilations
    assert whole.status == "compiled"


def test_log_without_its_beginning_has_graphs_by_its_metrics() -> None:
    lines = [line for line in wrapped("0/0", 5, "") if "dynamo_output_graph" not in line]
    [found] = job_of(*lines).ranks[0].compilations
    assert (found.status, found.nodes) == ("compiled", 3)


def test_frames_without_guards_name_the_later_reason_before_the_grad_mode() -> None:
    reasons = ["0/1: GLOBAL_STATE changed: grad_mode", "0/0: not ___dict_contains('log', L['self'].__dict__)"]
    assert telling_reason(reasons, "") == 1
    again = event("artifact", {"name": "recompile_reasons"}, "\t" + json.dumps(reasons), "0/2")
    [found] = job_of(again, *wrapped("0/2", 5, "")).ranks[0].compilations
    assert found.recompile_reasons[0] == reasons[1]


def test_functions_compiled_after_a_reset_have_their_own_time() -> None:
    lines = []
    for line, at in ((5, 0), (9, 100)):
        timed = (span("B", "dynamo", at, "0/0"), span("E", "dynamo", at + 10 * line, "0/0"))
        lines += [*wrapped("0/0", line, "container.Sequential"), *timed]
    start = cold_start_of(job_of(*lines).ranks[0].log)
    assert {place: round(1e6 * seconds) for (_, place), seconds in start.by_function.items()} == {
        "train.py:9": 90, "train.py:5": 50,
    }  # fmt: skip


def test_reasons_have_words_for_races_lengths_and_conditions() -> None:
    race = failure_of("0/0", "Unexpected recompilation: runtime guards failed even though they passed", ())
    assert (race.cause, race.words) == ("race", "another thread compiled the same code meanwhile")
    assert failure_of("0/0", "len(L['xs']) == 1", ()).words == "length of `xs` was 1, is now another"
    assert failure_of("0/0", "not ___dict_contains('log', L['self'].__dict__)", ()).argument.startswith("self")
