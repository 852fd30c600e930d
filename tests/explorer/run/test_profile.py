"""Profiles of torch.profiler beside a record: what is read, matched, shown, written back and refused."""

from __future__ import annotations

import copy
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutators import damage_bytes, damage_structure
from compiler.logs.profiles import ProfileError, read_profile
from compiler.record import Artifact, Entity, Frame, GraphBreak, Kernel, Record
from compiler.record.options import Options
from explorer.run.profile import Profile, load_profile

Event = dict[str, Any]


def record() -> Record:
    """Two graphs of `model.py` with a break between them; the first has a backward."""
    lines = tuple(Entity(f"source[model.py].L{n}", "line", f"line {n}", {"line": n}) for n in (3, 4, 5))
    source = Artifact("source[model.py]", "source", "model.py", "python", "a\nb\nc\nd\ne\n", entities=lines)
    codes = [
        code("0/0", "forward", ["triton_poi_fused_relu_0", "extern_kernels.mm", "triton_poi_fused_relu_0"], 3),
        code("0/0", "backward", ["triton_poi_fused_relu_0", "extern_kernels.mm"], 3),
        code("1/0", "forward", ["triton_poi_fused_mul_0"], 5),
    ]
    kernels = tuple(
        Kernel(f"{each.id}.{name}", name, each.graph, each.id, "triton", "pointwise", (1, 1), half=each.half)
        for each in codes
        for name in dict.fromkeys(call.label for call in each.entities if call.kind == "call")
    )
    frames = (
        Frame("0/0", "forward", "model.py", 2, "compiled"),
        Frame("1/0", "torch_dynamo_resume_in_forward_at_4", "model.py", 4, "compiled", resumes="break[0/0].0"),
    )
    broken = GraphBreak("break[0/0].0", "0/0", "jump", "Data-dependent branching", "model.py", 4, "forward")
    return Record("model", Options(), artifacts=(source, *codes), kernels=kernels, frames=frames, breaks=(broken,))


def code(graph: str, half: Any, names: list[str], line: int) -> Artifact:
    made = f"kernels[{graph} {half}]"
    calls = tuple(
        Entity(
            f"{made}.call_L{at}", "extern" if name.startswith("extern") else "call", name, {"module": f"layers.{at}"},
            origins=(f"source[model.py].L{line}",),
        )
        for at, name in enumerate(names)
    )  # fmt: skip
    return Artifact(made, "kernels", made, "python", "\n".join(names), graph, entities=calls, half=half)


class Clock:
    """Writes events as torch.profiler does, in microseconds, on one host thread and one stream."""

    def __init__(self) -> None:
        self.now, self.events, self.launched = 1000.0, [], 0

    def span(self, name: str, *inside: Any, category: str = "cpu_op", **args: Any) -> Event:
        event = {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": 7, "ts": self.now, "args": args}
        self.events.append(event)
        self.now += 1
        for part in inside:
            part()
        self.now += 1
        event["dur"] = self.now - event["ts"]
        return event

    def kernel(self, operator: str, function: str, seconds: float) -> None:
        self.launched += 1
        number = self.launched
        self.span(
            operator, lambda: self.span("cuLaunchKernel", category="cuda_runtime", correlation=number),
            kernel_file="/nowhere/k.py", kernel_hash="k",
        )  # fmt: skip
        self.events.append(
            {"ph": "X", "cat": "kernel", "name": function, "pid": 0, "tid": 7, "ts": self.now + 3, "dur": seconds * 1e6,
             "args": {"device": 0, "stream": 7, "correlation": number, "External id": number}},
        )  # fmt: skip

    def graph(self, key: str, *kernels: tuple[str, str, float]) -> None:
        runs = [lambda each=each: self.kernel(*each) for each in kernels]
        self.span(f"## Call CompiledFxGraph {key} ##", *runs)


def gpu_events() -> list[Event]:
    """A step that compiles a graph and passes a graph break, and a step that only runs."""
    clock = Clock()
    relu, mm = ("triton_poi_fused_relu_0", "triton_poi_fused_relu_0", 2e-6), ("aten::mm", "ampere_sgemm_128", 5e-6)

    def compilation() -> None:
        data = "dynamo_data: compile_id=0/0"
        clock.span("dynamo", lambda: clock.span(data, category="user_annotation"), lambda: wait(100))

    def wait(microseconds: float) -> None:
        clock.now += microseconds

    def resumed() -> None:
        clock.span("Torch-Compiled Region: 1/0", lambda: clock.graph("k3", ("triton_poi_fused_mul_0", "x", 1e-6)))

    def step(number: int, *before: Any) -> None:
        forward = [lambda: clock.span("CompiledFunction", lambda: clock.graph("k1", relu, mm, relu),
                                      **{"Sequence number": number})]  # fmt: skip
        outer = [*forward, lambda: wait(40), resumed]
        backward = [lambda: clock.graph("k2", relu, mm)]
        clock.span(
            f"ProfilerStep#{number}", *before, lambda: clock.span("Torch-Compiled Region: 0/0", *outer),
            lambda: clock.span("CompiledFunctionBackward", *backward, **{"Sequence number": number}),
            category="user_annotation",
        )  # fmt: skip

    step(0, compilation)
    step(1)
    flow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 7, "tid": 7, "ts": 1001}
    return [{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}}, flow, *clock.events]


def written(path: Path, events: list[Event], **more: Any) -> Path:
    path.write_bytes(json.dumps({"schemaVersion": 1, **more, "traceEvents": events}).encode())
    return path


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("profile") / "trace.json", gpu_events(), distributedInfo={"rank": 3})


@pytest.fixture(scope="module")
def profile(trace_file: Path) -> Profile:
    return load_profile(trace_file, record())


def test_each_kernel_has_its_graph_module_and_line(profile: Profile) -> None:
    found = profile.kernels.set_index(["graph", "half", "kernel"])
    mul = found.loc[("1/0", "forward", "triton_poi_fused_mul_0")]
    mm = found.loc[("0/0", "backward", "extern_kernels.mm")]
    assert len(found) == 6
    assert (mul.launches, mul.runs, mul.lines) == (2, 2, "source[model.py].L5")
    assert mul.seconds == pytest.approx(2e-6)
    assert (mm.launches, mm.modules) == (2, "layers.1")
    assert profile.trace.device == "cuda"
    assert profile.trace.rank == 3


def test_calls_of_one_kernel_are_told_apart(profile: Profile) -> None:
    relu = profile.kernels.query("kernel == 'triton_poi_fused_relu_0' and half == 'forward'")
    assert sorted(relu.modules) == ["layers.0", "layers.2"]
    assert list(relu.launches) == [2, 2]


def test_kernels_of_other_code_get_no_times(trace_file: Path) -> None:
    other = record()
    again = code("0/0#2", "forward", ["triton_poi_fused_relu_0"], 3)
    for changed, told, left in (
        (other.with_fields(target="cpu"), "the code of this run is for cpu", set()),
        (other.with_fields(artifacts=(*other.artifacts, again)), "0/0 is the number of 2 graphs", {"1/0"}),
    ):
        found = load_profile(trace_file, changed)
        assert any(told in problem for problem in found.problems)
        timed = found.run.record.kernel_times
        assert {time.call.partition("[")[2].partition(" ")[0] for time in timed if time.call} == left


def test_compilations_and_breaks_are_on_the_timeline(profile: Profile) -> None:
    first, second = profile.steps.itertuples()
    (broken,) = profile.breaks.itertuples()
    assert list(profile.compilations.graph) == ["0/0"]
    assert first.compiling == pytest.approx(104e-6)
    assert second.compiling == 0
    assert (broken.before, broken.after, broken.times, broken.line) == ("0/0", "1/0", 2, 4)
    assert broken.seconds == pytest.approx(2 * 41e-6)
    assert "Data-dependent branching" in str(profile)
    assert "model.py:4" in str(profile)


def test_a_run_has_the_times(profile: Profile) -> None:
    run = profile.run
    (stage,) = run.record.of_stage("profile")
    times = {(time.call, time.half): time.seconds for time in run.record.kernel_times}
    assert times["kernels[0/0 backward].call_L1", "backward"] == pytest.approx(5e-6)
    assert {time.line for time in run.record.line_times} == {"source[model.py].L3", "source[model.py].L5"}
    assert stage.entities[0].origins
    assert Record.from_json(run.record.to_json()).to_json() == run.record.to_json()


def test_annotated_trace_keeps_all_other_events(profile: Profile, tmp_path: Path) -> None:
    path = profile.save(tmp_path / "annotated.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    own, added = gpu_events(), [event for event in events if event["pid"] == "tcompile"]
    assert events[-len(own) :] == own
    assert {"compile 0/0", "0/0 forward", "0/0 backward", "graph break between 0/0 and 1/0"} <= {
        event["name"] for event in added
    }
    assert load_profile(path, record()).kernels.equals(profile.kernels)


def test_shown_in_a_notebook(profile: Profile) -> None:
    shown = profile._repr_html_()
    assert "image/svg+xml" in shown
    assert "Time by kernel" in shown


def test_wrong_rank_and_suffix_are_refused(profile: Profile, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ends in none of"):
        profile.save(tmp_path / "trace.txt")
    assert "a profile alone has no modules and lines" in load_profile(profile.trace.path).problems[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\x00\x01binary", "no profile of torch.profiler"),
        (b'{"artifacts": []}', "no profile of torch.profiler"),
        (b'{"traceEvents": 3}', "no profile of torch.profiler"),
        (b'{"traceEvents": [3]}', "damaged"),
        (b'{"traceEvents": []}', "no events with a duration"),
        (b'{"traceEvents": ' + b"[" * 100_000, "damaged"),
        (b'{"traceEvents": [{"ph": "X", "ts": ' + b"9" * 5000 + b', "dur": "x"}]}', "damaged|no events"),
        (gzip.compress(b'{"traceEvents": [' + b" " * 10_000)[:60], "archive is damaged"),
        (gzip.compress(b" " * 3_000), "more than 0 MB unpacked"),
    ],
    # Archives hold the time of writing: as names they would differ between the suite's workers.
    ids=(
        "empty", "binary", "other json", "number", "number event", "no events", "brackets", "digits", "cut archive",
        "large archive",
    ),
)  # fmt: skip
def test_bad_file_is_one_clear_line(
    content: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "unpacked" in reason:
        monkeypatch.setattr("compiler.logs.profiles.MOST_BYTES", 2_000)
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=reason) as raised:
        read_profile(path)
    assert "\n" not in str(raised.value)


def test_truncated_profile_is_read_as_far_as_it_goes(trace_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(trace_file.read_bytes()[:-400])
    profile = load_profile(path, record())
    assert "cut off" in profile.problems[0]
    assert len(profile.steps) == 2
    assert json.loads(profile.save(tmp_path / "whole.json").read_bytes())["traceEvents"]


def test_mutated_profile_is_shown_or_refused(trace_file: Path, tmp_path: Path) -> None:
    good, path, outcomes = json.loads(trace_file.read_bytes()), tmp_path / "mutant.json", set()
    for seed in range(60):
        chance = random.Random(seed)
        plain, data = copy.deepcopy(good), bytearray(trace_file.read_bytes())
        damage_structure(plain, chance)
        damage_bytes(data, chance)
        path.write_bytes(bytes(data) if seed % 3 == 0 else json.dumps(plain).encode())
        try:
            profile = load_profile(path, record())
        except ProfileError as error:
            outcomes.add("refused" if "\n" not in str(error) else str(error))
        else:
            outcomes.add("shown")
            assert str(profile)
            profile.save(tmp_path / "again.json")
    assert outcomes == {"refused", "shown"}
