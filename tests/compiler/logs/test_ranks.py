"""Ranks of a job compared by their logs: equal ones, and ones that differ in one thing each."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from compiler.logs.cache_keys import RemoteCache, cache_outcomes, compare_caches, remote_caches
from compiler.logs.cold_start import cold_start_of, trace_of
from compiler.logs.compilations import compilations_of
from compiler.logs.events import Log
from compiler.logs.fingerprints import canonical, reasons_of
from compiler.logs.job import Job
from compiler.logs.ranks import Difference, compare_ranks
from compiler.record.plain_text import rank_words
from explorer.cli import main
from explorer.findings.cold_start import bypass_parts, cache_change_document, cold_start_document, flame_svg
from explorer.findings.job_ranks import rank_document
from explorer.render.text import document_text
from explorer.run.job_page import index_text, record_named

GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[8, 4][4, 1]cpu"):
        l_x_ = L_x_

        # File: /job/train.py:21 in step, code: y = x * 2
        y: "f32[8, 4][4, 1]cpu" = l_x_ * 2;  l_x_ = None

        # File: /job/train.py:22 in step, code: z = dist.all_reduce(y)
        z: "f32[8, 4][4, 1]cpu" = torch.ops._c10d_functional.all_reduce(y, 'sum', '0');  y = None
        return (z,)
"""
MORE = GRAPH.replace("l_x_ = None\n", 'l_x_ = None\n        w: "f32[8, 4][4, 1]cpu" = y + 1\n').replace("(y,", "(w,")
GUARDS = """
TREE_GUARD_MANAGER:
+- RootGuardManager
| +- GuardManager: source=L['self'], accessed_by=FrameLocalsGuardAccessor(key='self', framelocals_idx=0)
| | +- ID_MATCH: ___check_obj_id(L['self'], {address}), type=<class 'M'>  # y = x * 2  # job/train.py:21 in step
| | +- EQUALS_MATCH: L['self'].rank == {rank}                             # y = x * 2  # job/train.py:21 in step
| | +- EQUALS_MATCH: L['self'].flag == {flag}                             # y = x * 3  # job/train.py:23 in step
Guard latency = {address}.50 us
"""


class Events:
    """Builds the log of a rank. Interned strings get numbers that differ from rank to rank."""

    def __init__(self, rank: int) -> None:
        self.rank, self.time = rank, 0.0
        self.lines: list[str] = []
        self.add("str", ["/job/train.py", 40 + rank])

    def add(self, kind: str, fields: Any, payload: str = "", ids: str = "", seconds: float = 0.01) -> Events:
        self.time += seconds
        values: dict[str, Any] = {kind: fields, "rank": self.rank}
        if ids:
            values |= dict(zip(("frame_id", "frame_compile_id"), map(int, ids.split("/")), strict=True)) | {
                "attempt": 0
            }
        clock = f"10:{int(self.time // 60):02}:{self.time % 60:09.6f}"
        self.lines.append(f"V0102 {clock} {100 + self.rank} torch/x.py:1] {json.dumps(values)}")
        self.lines += ("\t" + line for line in payload.splitlines())
        return self

    def artifact(self, name: str, payload: str, ids: str = "0/0") -> Events:
        return self.add("artifact", {"name": name, "encoding": "string"}, payload, ids)

    def start(self, ids: str = "0/0", name: str = "step", line: int = 20) -> Events:
        return self.add("dynamo_start", {"stack": [{"line": line, "name": name, "filename": 40 + self.rank}]}, ids=ids)

    def end(self, ids: str = "0/0", **metrics: object) -> Events:
        return self.add("compilation_metrics", {"compile_id": ids, "fail_type": None, **metrics}, ids=ids)

    def compilation(
        self, graph: str = GRAPH, guards: Mapping[str, int] | None = None, ids: str = "0/0", **metrics: object
    ) -> Events:
        values = {"address": 140000000 + self.rank, "rank": self.rank, "flag": 1, **(guards or {})}
        self.start(ids).add("dynamo_output_graph", {}, graph, ids)
        return self.add("dynamo_cpp_guards_str", {}, GUARDS.format(**values), ids).end(ids, **metrics)

    def log(self) -> Log:
        text = "\n".join(self.lines) + "\n"
        return Log((f"rank_{self.rank}.log",), (text.encode(),), self.rank)


def differences(*make: Callable[[Events], Events]) -> list[Difference]:
    return list(compare_ranks({rank: of(Events(rank)).log() for rank, of in enumerate(make)}).differences)


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of two ranks on two H100s (torch 2.11, NCCL), trimmed: one job with equal ranks, one with another factor."""
    folder = tmp_path_factory.mktemp("logs")
    with tarfile.open(Path(__file__).with_name("two_gpus.tar.gz")) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_processes_without_a_rank_are_not_compared() -> None:
    made = [Events(number).compilation(graph).log() for number, graph in enumerate((GRAPH, MORE))]
    job = Job.of_logs("workers", [Log(log.names, log.texts) for log in made])
    assert (job.comparison.groups, repr(job)) == ((), "<Job workers: 2 processes, 10 events>")
    text = index_text(job)
    assert "2 compilations of 1 function in 2 processes" in text
    assert "Ranks" not in text
    with_rank = Job.of_logs("job", [made[0], Log(made[1].names, made[1].texts)])
    assert "on 1 rank and in 1 other process" in index_text(with_rank)
    forked = Log(made[1].names, made[1].texts, 0)  # its process id is higher, and it runs beside the other
    with_worker = Job.of_logs("job", [forked, made[0]])
    assert [with_worker.ranks[number].log for number in (0, 1)] == [made[0], forked]
    assert "on 1 rank and in 1 other process" in index_text(with_worker)


def test_equal_ranks_on_two_gpus_do_not_differ(gpus: Path) -> None:
    job = Job.load(gpus / "equal")
    assert (job.comparison.groups, job.differences) == (((0, 1),), ())
    assert document_text(rank_document(job.comparison)).startswith("All 2 ranks are equal")


def test_compilation_without_a_rank_is_that_of_the_first(gpus: Path) -> None:
    name = Job.load(gpus).ranks[0].compilations[0].id
    assert record_named(Job.load(gpus), name).title.endswith(f"compilation 0:{name}")


def test_other_factor_on_one_gpu_is_found_at_its_line(gpus: Path) -> None:
    [found] = Job.load(gpus / "odd").differences
    assert (found.kind, found.compile_id, found.file, found.line) == ("graph", "0/0", "/job/train.py", 22)
    assert "y * 2` on rank 0" in found.words
    assert "y * 3` on rank 1" in found.words
    assert {"autograd", "kernels"} <= set(found.follows)


def test_addresses_own_ranks_times_and_string_numbers_are_no_difference() -> None:
    def rank(events: Events) -> Events:
        estimate = {
            "ops": [{"name": "mm", "type": "compute", "estimated_runtime_ns": 7.5 + events.rank, "outputs": []}]
        }
        events.artifact("inductor_runtime_and_tensor_meta", json.dumps(estimate), ids="")
        events.artifact("inductor_runtime_and_tensor_meta", json.dumps(estimate))
        return events.compilation()

    assert differences(rank, rank, rank) == []


def test_missing_collective_ends_in_a_hang() -> None:
    lines = GRAPH.splitlines(keepends=True)
    without = "".join(line for line in lines if "all_reduce" not in line).replace("(z,)", "(y,)")
    found, *others = differences(Events.compilation, lambda events: events.compilation(without))
    assert not others
    assert (found.kind, found.line, found.ranks, found.others) == ("collectives", 22, (1,), (0,))
    assert found.hang.startswith("Rank 0 waits in all_reduce('sum', f32[8, 4][4, 1]cpu, 128 bytes), which rank 1 never")


def test_rank_that_stops_while_it_compiles_is_waited_for() -> None:
    equal, odd = Events.compilation, Events.start
    found = differences(equal, equal, odd, equal)
    assert [(each.kind, each.ranks, each.others) for each in found] == [("end of the log", (2,), (0, 1, 3))]
    assert found[0].hang.startswith("Rank 2 never reached all_reduce")
    assert found[0].hang.endswith("; ranks 0, 1, 3 wait there, at train.py:22 (graph 0/0).")


@pytest.mark.parametrize(("graph", "alarm"), [(MORE, ""), (GRAPH.replace("8, 4", "6, 4"), "Rank 1 enters all_reduce")])
def test_recompilation_on_one_rank_has_its_reason(graph: str, alarm: str) -> None:
    def odd(events: Events) -> Events:
        reason = ["0/0: L['flag'] == 1  # y = x * 3  # job/train.py:23 in step"]
        events.compilation().artifact("recompile_reasons", json.dumps(reason), "0/1")
        return events.compilation(graph, ids="0/1")

    [found] = differences(Events.compilation, odd)
    assert (found.kind, found.compile_id, found.line) == ("recompilation", "0/1", 23)
    assert "rank 1 compiled `step` again (0/1" in found.words
    assert found.words.endswith("L['flag'] == 1")
    assert found.hang[: len(alarm) or None] == alarm  # another rank may run a graph with the same collectives


@pytest.mark.parametrize(
    ("odd", "kind", "line"),
    [
        (lambda events: events.compilation(guards={"flag": 2}), "guards", 23),
        (lambda events: events.compilation(GRAPH.replace("f32[8, 4]", "f32[6, 4]")), "collectives", 22),
        (lambda events: events.compilation(GRAPH.replace("l_x_ * 2", "l_x_ / 2")), "graph", 21),
        (lambda events: events.compilation(MORE), "graph", 21),
        (lambda events: events.compilation(dynamo_config='{"recompile_limit": 2}'), "configuration", 20),
        (lambda events: events.compilation(pytorch_version="2.12.0"), "torch version", 20),
        (lambda events: events.start().end(fail_type="Unsupported", fail_reason="no"), "failure", 20),
        (lambda events: events.compilation().start("1/0", "extra", 50).end("1/0"), "compilations", 50),
        (lambda events: events.start(line=19).add("dynamo_output_graph", {}, GRAPH, "0/0").end(), "source", 19),
    ],
)  # fmt: skip
def test_difference_has_its_kind_and_line(odd: Callable[[Events], Events], kind: str, line: int) -> None:
    def usual(events: Events) -> Events:
        return events.compilation(dynamo_config='{"recompile_limit": 8}', pytorch_version="2.13.0")

    found = differences(usual, usual, odd)
    assert (kind, line) in [(each.kind, each.line) for each in found]
    assert all(each.ranks == (2,) for each in found)


def test_other_configuration_and_cache_outcome_are_found() -> None:
    def log_with_warps(warps: int, outcome: str) -> Callable[[Events], Events]:
        info = {"triton_poi_fused_mul_0": {"best_config": {"num_warps": warps}, "compile_time_us": 70 * warps}}
        untuned = {"triton_red_fused_sum_1": {"autotune_cache_state": "miss" if warps == 8 else "hit"}}
        return lambda events: (
            events.start()
            .artifact(f"fx_graph_cache_{outcome}", '{"key": "f"}')
            .artifact("triton_kernel_info", json.dumps(info | untuned))
            .end()
        )

    assert not differences(log_with_warps(4, "hit"), log_with_warps(4, "hit"))
    found = differences(log_with_warps(4, "hit"), log_with_warps(8, "miss"))
    assert [each.kind for each in found] == ["kernels", "cache"]
    assert "runs with num_warps=4 on rank 0, with num_warps=8 on rank 1" in found[0].words


def test_ids_in_guards_of_any_kind_are_no_difference() -> None:
    one, other = (f"___check_fake_script_type(L['m'], {number}), type=<class 'Mesh'>" for number in (94369492, 947536))
    assert canonical(one) == canonical(other)


def test_rank_words_name_ranges() -> None:
    assert [rank_words(ranks) for ranks in ((3,), (0, 1), (0, 2, 3, 4, 9))] == [
        "rank 3",
        "ranks 0, 1",
        "ranks 0, 2-4, 9",
    ]


# The time of a cold start


def timed(kind: str, name: str, at: float, ids: str = "0/0", **arguments: object) -> str:
    values = {
        "name": name,
        "ts": 1e15 + at * 1e6,
        "ph": kind,
        "tid": 0,
        "pid": 0,
        "args": {"compile_id": ids or "None", **arguments},
    }
    return json.dumps(values)


def test_cold_start_divides_time_by_phase_and_function() -> None:
    events = Events(0).compilation()
    spans = [("B", "dynamo", 0.0), ("B", "backend_compile", 1.0), ("E", "backend_compile", 3.0), ("E", "dynamo", 4.0)]
    for kind, name, at in spans:
        events.add("chromium_event", {}, timed(kind, name, at), "0/0")
    for kind, at in (("B", 1.5), ("B", 2.0), ("E", 2.5), ("E", 2.75)):  # two helper threads at once
        events.add("chromium_event", {}, timed(kind, "compile_file", at, ""))
    start = cold_start_of(events.log())
    assert (start.seconds, start.compiling) == (4.0, 4.0)
    assert start.by_phase == {"TorchDynamo": 2.0, "AOTAutograd": 2.0}
    assert start.by_function == {("step", "train.py:20"): 4.0}
    assert {span.thread for span in start.spans if span.is_helper} == {1, 2}
    text = document_text(cold_start_document(start))
    assert "Cold start: 4.0 s" in text
    assert "step (train.py:20)" in text
    assert flame_svg(start).count("<title>") == 4
    trace = trace_of({0: start, 1: start})["traceEvents"]
    outer = [event for event in trace if event["name"] == "step [0/0]"]
    assert [(event["pid"], event["ts"], event["dur"]) for event in outer] == [(0, 0.0, 4e6), (1, 0.0, 4e6)]
    assert outer[0]["args"]["where"] == "train.py:20"


def test_changed_part_of_a_cache_key_is_named() -> None:
    def run(size: str, limit: int, **settings: object) -> Log:
        parts = [
            f"[a{limit}] inductor_config[max_fusion_size]: {limit}",
            "[b] torch_version: \ufffd",
            f"[c{size}] gm: x * {size}",
        ]
        payload = json.dumps({"key": f"f{limit}{size}", "components": parts})
        values = {"dynamo_config": json.dumps(settings)}
        return Events(0).start().artifact("fx_graph_cache_miss", payload).end(**values).log()

    found = compare_caches(run("2", 64), run("2", 1))
    assert [(each.kind, each.name, each.was, each.now) for each in found.changes[0].changes] == [
        ("configuration", "inductor_config[max_fusion_size]", "64", "1")
    ]
    assert "max_fusion_size" in document_text(cache_change_document(found))
    assert [each.kind for each in compare_caches(run("2", 64), run("3", 64)).changes[0].changes] == ["source"]
    equal = document_text(cache_change_document(compare_caches(run("2", 64), run("2", 64))))
    assert equal.startswith("The keys are equal: 1 of 1 cache look-up")
    other = compare_caches(run("2", 64, recompile_limit=8), run("2", 64, recompile_limit=3))
    assert [(each.name, each.was, each.now) for each in other.process] == [("dynamo.recompile_limit", "8", "3")]


def test_bypasses_have_reasons_and_what_helps() -> None:
    why = "Unsupported call_function target autograd_function_apply.\n Function module: torch.ops, Function name: a"
    log = (
        Events(0)
        .start()
        .artifact("aotautograd_cache_bypass", json.dumps({"cache_bypass_reason": why}))
        .artifact("fx_graph_cache_bypass", json.dumps({"cache_bypass_reason": "Unsupported joint custom pass"}))
        .end(inductor_config='{"fx_graph_remote_cache": true}', inductor_fx_remote_cache_hit_count=0)
        .log()
    )
    outcomes = [one for one in cache_outcomes(log, compilations_of(log)) if one.outcome == "bypass"]
    text = document_text(tuple(bypass_parts(outcomes)))
    assert "Unsupported call_function target autograd_function_apply  step" in text
    assert "autograd_cache_allow_custom_autograd_functions" in text
    assert "derive it from CustomGraphPass" in text
    assert list(remote_caches(log)) == [RemoteCache("fx_graph", 0, 0)]


def test_command_shows_ranks_cold_start_and_changed_caches(
    gpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd, equal = str(gpus / "odd"), str(gpus / "equal")
    assert main(["show", odd, "ranks"]) == 0
    assert "Other graph: f (train.py:22)" in capsys.readouterr().out
    assert main(["show", odd, "cold_start"]) == 0
    assert "The log has no times" in capsys.readouterr().out  # the stored logs have no spans
    assert main(["show", odd, "changed_caches", equal]) == 0
    assert "logged no cache look-up" in capsys.readouterr().out
    assert main(["show", odd, "changed_caches"]) == 2
    assert main(["report", odd, "--trace", str(tmp_path / "trace.json")]) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == [
        "rank 0: torch.compile", "rank 1: torch.compile"
    ]  # fmt: skip
    assert main(["report", odd, "--trace", str(tmp_path / "trace.json"), "--only", "0/0"]) == 2


def test_reasons_of_any_depth_are_text() -> None:
    assert len(reasons_of("[" * 200_000)) == 1
    with_stack = '0/0: flag == True  # t.py:5 in f\nUser stack trace:\n  File "t.py", line 5, in f\n    return x\n'
    assert reasons_of(with_stack + "0/1: flag == False") == ["0/0: flag == True # t.py:5 in f", "0/1: flag == False"]


def test_collectives_that_autograd_adds_are_compared() -> None:
    added = MORE.replace("torch.ops._c10d_functional.all_reduce(", "torch.ops._c10d_functional.all_reduce.default(")
    gather = (
        "        v: \"f32[16, 4][4, 1]cpu\" = torch.ops._c10d_functional.all_gather_into_tensor.default(z, 2, '0')\n"
    )

    def of(forward: str) -> Callable[[Events], Events]:
        return lambda events: events.start().add("dynamo_output_graph", {}, GRAPH, "0/0").add(
            "aot_inference_graph", {}, forward, "0/0").end()  # fmt: skip

    found, *_ = differences(of(added), of(added.replace("        return", gather + "        return")))
    assert (found.kind, found.line) == ("collectives", 22)
    assert found.hang == "Rank 1 waits in all_gather_into_tensor(2, f32[8, 4][4, 1]cpu, 128 bytes), which rank 0 " \
        "never enters: the job hangs there."  # fmt: skip


def test_ranks_without_a_log_are_named() -> None:
    logs = {rank: Events(rank).compilation().log() for rank in (0, 1, 3)}
    found = compare_ranks(logs)
    assert (found.missing, found.differences) == ((2,), ())
    assert "No log of rank 2 is here" in document_text(rank_document(found))


def test_ranks_above_the_highest_log_are_known_from_groups() -> None:
    groups = "isolate_fails_code_str = None\n\n    setup_fake_process_groups({'0': {'size': 4, 'rank': 0}})\n"
    alone = compare_ranks({0: Events(0).start().artifact("fx_graph_runnable", groups).end().log()})
    assert (alone.groups, alone.missing) == (((0,),), (1, 2, 3))
    text = document_text(rank_document(alone))
    assert text.startswith("! No log of ranks 1-3 is here")
    assert text.endswith("One rank has a log, so there is nothing to compare.")


def test_logs_that_cant_be_read_come_before_the_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}.log").write_bytes(Events(rank).compilation().log().texts[0])
    (tmp_path / "rank_2.log").touch()
    assert main(["show", str(tmp_path), "ranks"]) == 0
    assert capsys.readouterr().out.startswith("! rank_2.log: it is empty\n\nAll 2 ranks are equal")


@pytest.mark.parametrize("odd", [0, 1])
def test_cut_log_is_named_and_no_hang_follows_from_it(odd: int) -> None:
    made = {rank: Events(rank).compilation().compilation(MORE, ids="1/0").log() for rank in range(3)}
    whole = bytes(made[odd].texts[0])
    for length in range(whole.index(b"dynamo_start"), len(whole) - 1, 7):
        logs = made | {odd: Log(made[odd].names, (whole[:length],), odd)}
        if not logs[odd].is_cut:  # between two events
            continue
        comparison = compare_ranks(logs)
        assert comparison.cut == (odd,)
        [found] = comparison.differences
        assert found.words.endswith("the process was ended there; what came after is not known")
        told, equal = document_text(rank_document(comparison)).split("\n\n")
        assert told.startswith(f"! The log of rank {odd} ends in the middle of an event")
        assert equal.startswith("The 3 ranks are equal as far as their logs go")
