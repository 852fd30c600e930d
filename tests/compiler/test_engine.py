"""explore() on real functions: every stage exists, the value is eager's, the process is unchanged."""

from __future__ import annotations

import logging
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from graphlib import TopologicalSorter

import pytest
import torch
from torch import nn

from compiler.engine import Event, Exploration, explore
from compiler.record import Record
from compiler.record.options import Options
from tests.compiler.broken import TORCH
from tests.compiler.models import MLP, gpt2

TRAINING = [
    "source",
    "bytecode",
    "captured",
    "pre_grad",
    "autograd",
    "joint",
    "forward",
    "backward",
    "post_grad",
    "ir",
    "fused_ir",
    "kernels",
]


def stages(record: Record) -> list[str]:
    return list(dict.fromkeys(artifact.stage for artifact in record.artifacts))


def softmax_of_matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1)


def breaks_in_the_middle(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x)
    print("in between")  # noqa: T201
    return y.sum() + x.mean()


@pytest.fixture(scope="module")
def mlp_record() -> Record:
    torch.manual_seed(0)
    model, x = MLP().train(), torch.randn(8, 64)
    with Exploration() as exploration:
        exploration.compile(model)(x).sum().backward()
    return exploration.record


def test_training_has_every_stage(mlp_record: Record) -> None:
    assert stages(mlp_record) == TRAINING
    assert mlp_record.problems == ()
    assert mlp_record.title == "MLP"


def test_inference_has_one_graph_and_no_joint() -> None:
    record = explore(softmax_of_matmul, (torch.randn(64, 128), torch.randn(128, 256))).record
    assert "inference" in stages(record)
    assert not {"joint", "forward", "backward"} & set(stages(record))


def test_record_survives_json(mlp_record: Record) -> None:
    assert Record.from_json(mlp_record.to_json()) == mlp_record


def test_values_gradients_and_dropout_match_eager() -> None:
    torch.manual_seed(0)
    model, x = MLP().train(), torch.randn(8, 64)
    torch.manual_seed(1)
    expected = model(x)
    expected.sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    after = torch.random.get_rng_state()
    model.zero_grad()
    torch.manual_seed(1)
    with Exploration() as exploration:
        value = exploration.compile(model)(x)
        value.sum().backward()
    assert torch.equal(value, expected)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.random.get_rng_state(), after)


def test_every_fx_call_has_its_facts(mlp_record: Record) -> None:
    for stage in ("captured", "forward", "backward", "post_grad"):
        for artifact in mlp_record.of_stage(stage):
            for entity in artifact.entities:
                if entity.kind == "call":
                    assert {"dtype", "shape", "stride", "device", "target"} <= set(entity.attrs), entity
                    assert entity.attrs["line"] > 0, entity


def test_every_line_map_points_at_entities(mlp_record: Record) -> None:
    for artifact in mlp_record.artifacts:
        ids = {entity.id for entity in artifact.entities}
        rows = artifact.text.count("\n")
        for number, found in artifact.lines.items():
            assert 1 <= number <= rows
            assert set(found) <= ids


def test_line_map_names_the_node_on_the_line(mlp_record: Record) -> None:
    forward = mlp_record["forward"]
    rows = forward.text.split("\n")
    for number, (identity,) in forward.lines.items():
        name = forward.entity(identity).label
        if forward.entity(identity).kind == "call":
            assert rows[number - 1].strip().startswith(f"{name}:"), rows[number - 1]


def test_backward_kernels_link_to_the_python_line(mlp_record: Record) -> None:
    lines = {e.id: e.attrs["code"] for a in mlp_record.of_stage("source") for e in a.entities}
    for kernel in mlp_record.kernels:
        reached = {lines[i] for i in mlp_record.linked_ids(kernel.id) if i in lines}
        assert any("self." in code for code in reached), kernel


def share_reaching_source(record: Record, artifact_id: str) -> float:
    parents = {entity.id: entity.origins for entity in record.entities()}
    lines = {entity.id for artifact in record.of_stage("source") for entity in artifact.entities}
    reached = dict.fromkeys(lines, True)

    def reaches(identity: str) -> bool:
        if identity not in reached:
            reached[identity] = False
            reached[identity] = any(reaches(parent) for parent in parents.get(identity, ()))
        return reached[identity]

    calls = [entity for entity in record[artifact_id].entities if entity.kind == "call"]
    return sum(reaches(entity.id) for entity in calls) / len(calls)


@pytest.mark.parametrize("stage", ["captured", "pre_grad", "joint", "forward", "backward", "post_grad"])
def test_gpt2_nodes_reach_python_source(gpt2_record: Record, stage: str) -> None:
    for artifact in gpt2_record.of_stage(stage):
        assert share_reaching_source(gpt2_record, artifact.id) >= 0.95, artifact.id


@pytest.fixture(scope="module")
def gpt2_record() -> Record:
    pytest.importorskip("transformers", reason="pip install transformers to explore GPT-2")
    model, arguments = gpt2(layers=2)
    with Exploration() as exploration:
        exploration.compile(model)(**arguments).loss.backward()
    return exploration.record


def test_gpt2_backward_blocks_collapse_without_a_cycle(gpt2_record: Record) -> None:
    backward = gpt2_record["backward"]
    calls = [entity for entity in backward.entities if entity.kind == "call"]
    assert any(entity.attrs.get("gradient_accumulation") for entity in calls)
    block = {entity.id: block_of(entity.attrs.get("module", "")) or entity.id for entity in calls}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for entity in calls:
        sources = {block[source] for source in entity.inputs if source in block}
        sorter.add(block[entity.id], *(sources - {block[entity.id]}))
    order = [name for name in sorter.static_order() if name.startswith("transformer.h.")]
    assert order == ["transformer.h.1", "transformer.h.0"]


def block_of(module: str) -> str:
    return ".".join(module.split(".")[:3]) if module.startswith("transformer.h.") else ""


def test_graph_break_gives_two_graphs_and_its_location(capsys: pytest.CaptureFixture[str]) -> None:
    record = explore(breaks_in_the_middle, (torch.randn(8, 8),)).record
    assert capsys.readouterr().out == "in between\n"
    assert len(record.of_stage("captured")) == 2
    (found,) = record.breaks
    assert found.code.startswith('print("in between")')
    assert found.gb_id.startswith("GB")
    assert found.hints


def test_fullgraph_failure_is_a_problem_and_still_returns(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(8, 8)
    explored = explore(breaks_in_the_middle, (x,), options=Options(fullgraph=True))
    assert torch.equal(explored.value, torch.relu(x).sum() + x.mean())
    assert capsys.readouterr().out == "in between\n"
    assert "print" in explored.record.problems[0].reason
    assert "--fullgraph" in explored.record.problems[0].hint
    assert len(explored.record.breaks) == 1


def test_user_error_is_raised_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.randn(3, 3)

    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        explore(wrong, (torch.randn(8, 8),))
    assert any(entry.name == "wrong" for entry in caught.traceback)
    assert capsys.readouterr().err == ""


def test_failing_lowering_is_a_problem_earlier_stages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.graph import GraphLowering

    def fails(self: object, *args: object) -> None:
        raise NotImplementedError("no lowering for this op")

    monkeypatch.setattr(GraphLowering, "codegen", fails)
    x = torch.randn(4, 4)
    explored = explore(softmax_of_matmul, (x, x))
    assert torch.equal(explored.value, softmax_of_matmul(x, x))
    assert "no lowering for this op" in explored.record.problems[0].reason
    assert "post_grad" in stages(explored.record)


def test_user_torch_compile_is_recorded() -> None:
    @torch.compile
    def own(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2

    x = torch.randn(16)
    with Exploration() as exploration:
        value = own(x)
    assert torch.allclose(value, torch.sin(x) * 2)
    assert "kernels" in stages(exploration.record)


def test_backends_without_code_say_where_they_end() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    eager = explore(softmax_of_matmul, (x, x), options=Options(backend="eager")).record
    assert stages(eager) == ["source", "bytecode", "captured", "autograd"]
    assert "does not go through AOTAutograd" in eager.problems[0].reason
    aot = explore(softmax_of_matmul, (x, x), options=Options(backend="aot_eager")).record
    assert stages(aot) == ["source", "bytecode", "captured", "autograd", "joint", "forward", "backward"]
    assert "generates no code" in aot.problems[0].reason


def test_events_come_in_order_with_artifacts() -> None:
    heard: list[Event] = []
    explore(softmax_of_matmul, (torch.randn(4, 4), torch.randn(4, 4)), listener=heard.append)
    seen = [event.stage for event in heard if event.kind == "artifact"]
    assert seen.index("captured") < seen.index("inference") < seen.index("ir") < seen.index("kernels")
    assert heard[-1].kind == "finished"


def test_nothing_compiled_is_reported() -> None:
    with Exploration() as exploration:
        pass
    assert "nothing was compiled" in exploration.record.problems[0].reason


# The process as it was


def process_state() -> dict[str, object]:
    import torch._dynamo.config as dynamo_config
    import torch._functorch.config as functorch_config
    import torch._inductor.config as inductor_config

    names = ("torch._dynamo", "torch._dynamo.convert_frame", "torch._subclasses.fake_tensor", "torch.__trace")
    return {
        "configs": [c.get_config_copy() for c in (dynamo_config, functorch_config, inductor_config)],
        "filters": warnings.filters[:],
        "logging": [(n, list(logging.getLogger(n).handlers), list(logging.getLogger(n).filters)) for n in names],
        "torch rng": torch.random.get_rng_state().tolist(),
        "python rng": random.getstate(),
        "recursion": sys.getrecursionlimit(),
        "globals": sorted(globals()),
        "counters": {k: dict(v) for k, v in torch._dynamo.utils.counters.items()},
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "hooks": _hooked(),
    }


def _hooked() -> list[object]:
    from torch._dynamo import convert_frame
    from torch._dynamo.output_graph import OutputGraph
    from torch._inductor import compile_fx
    from torch._inductor.graph import GraphLowering

    return [
        convert_frame._compile,
        dict(convert_frame._bytecode_hooks),
        OutputGraph._call_user_compiler,
        compile_fx.compile_fx,
        compile_fx._recursive_joint_graph_passes,
        GraphLowering.codegen,
        GraphLowering.compile_to_module,
    ]


@contextmanager
def untouched() -> Iterator[None]:
    """Check that the process is the same after the block as before."""
    explore(softmax_of_matmul, (torch.ones(2, 2), torch.ones(2, 2)))  # torch sets some state once, on first use
    before = process_state()
    yield
    after = process_state()
    for name, value in before.items():
        assert after[name] == value, name


def test_process_is_untouched_by_an_exploration() -> None:
    with untouched():
        explore(softmax_of_matmul, (torch.ones(4, 4), torch.ones(4, 4)))


def test_process_is_untouched_when_the_user_code_raises() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("mine")

    with untouched(), pytest.raises(ValueError, match="mine"):
        explore(fails, (torch.ones(2),))


def test_process_is_untouched_when_a_stage_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.scheduler import Scheduler

    def fails(*args: object) -> None:
        raise RuntimeError("broken")

    with untouched(), monkeypatch.context() as patch:
        patch.setattr(Scheduler, "codegen", fails)
        record = explore(softmax_of_matmul, (torch.ones(4, 4), torch.ones(4, 4))).record
    assert "broken" in record.problems[0].reason


@pytest.mark.parametrize("stage", ["captured", "joint", "forward", "fused_ir", "kernels", "backward", "bytecode"])
def test_process_is_untouched_by_an_interrupt(stage: str) -> None:
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32))
    x = torch.ones(2, 8, 32)

    def interrupt(event: Event) -> None:
        if event.kind == "artifact" and event.stage == stage:
            signal.raise_signal(signal.SIGINT)

    exploration = Exploration(listener=interrupt)

    def interrupted() -> None:
        with exploration:
            exploration.compile(model)(x)

    with untouched(), pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stage in stages(exploration.record)
    assert torch.allclose(explore(model, (x,)).value, model(x))


def test_user_compiled_functions_keep_their_caches() -> None:
    calls = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        calls.append(module)
        return module.forward

    compiled = torch.compile(softmax_of_matmul, backend=backend)
    x = torch.randn(4, 4)
    compiled(x, x)
    explore(softmax_of_matmul, (x, x))
    compiled(x, x)
    assert len(calls) == 1


def test_explorations_do_not_use_the_recompile_limit() -> None:
    def mine(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    calls = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        calls.append(module)
        return module.forward

    compiled = torch.compile(mine, backend=backend)
    compiled(torch.ones(4))
    for _ in range(torch._dynamo.config.recompile_limit + 1):
        assert explore(mine, (torch.ones(4, 4),), options=Options(backend="eager")).record.of_stage("captured")
    compiled(torch.ones(4, 4))
    assert len(calls) == 2


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_earlier_compilation_hides_no_stage(backend: str) -> None:
    def mine(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    x = torch.randn(4)
    torch.compile(mine, backend="eager")(x)
    assert explore(mine, (x,), options=Options(backend=backend)).record.of_stage("captured")


def test_settings_changed_by_user_code_stay() -> None:
    limit = sys.getrecursionlimit()
    try:
        with Exploration() as exploration:
            exploration.compile(softmax_of_matmul)(torch.ones(2, 2), torch.ones(2, 2))
            sys.setrecursionlimit(limit + 7)
            warnings.simplefilter("error", BytesWarning)
        assert sys.getrecursionlimit() == limit + 7
        assert warnings.filters[0][:3] == ("error", None, BytesWarning)
    finally:
        sys.setrecursionlimit(limit)
        warnings.filters.pop(0)


def test_exploration_does_not_make_the_next_one_dynamic() -> None:
    explore(softmax_of_matmul, (torch.randn(4, 8), torch.randn(8, 8)))
    record = explore(softmax_of_matmul, (torch.randn(6, 8), torch.randn(8, 8))).record
    assert record["captured"].entities[0].attrs["shape"] == [6, 8]


def test_torch_module_is_named_by_its_class() -> None:
    record = explore(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.randn(2, 4),)).record
    assert [frame.function for frame in record.frames] == ["Sequential"]
    assert not any("_dynamo" in artifact.id for artifact in record.of_stage("source"))


def test_frame_skipped_before_can_be_explored_again() -> None:
    x = torch.randn(4, 4)
    explore(breaks_in_the_middle, (x,), options=Options(fullgraph=True))
    assert len(explore(breaks_in_the_middle, (x,)).record.of_stage("captured")) == 2


def trains_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    (x * w).sum().backward()
    return w.grad * 2


def test_backward_inside_the_function_adds_no_frame() -> None:
    inputs = torch.ones(4), torch.ones(4, requires_grad=True)
    record = explore(trains_inside, inputs, options=Options(stages=("captured",))).record
    assert len(record.breaks) == 1
    names = {frame.function.partition("_at_")[0] for frame in record.frames}
    called = {"cast"} if TORCH < "2.12" else set()  # torch 2.11 follows typing.cast, which `backward` calls
    assert names == {"trains_inside", "torch_dynamo_resume_in_trains_inside", *called}


def breaks_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for n in range(3):
        if x.sum() > n:
            x = x + 1
    return x


def test_frame_skipped_by_user_torch_compile_is_explored() -> None:
    x = torch.ones(4)
    torch.compile(breaks_in_a_loop, backend="eager")(x)
    for _ in range(2):
        (found,) = explore(breaks_in_a_loop, (x,)).record.breaks
        assert (found.outcome, found.function) == ("skipped", "breaks_in_a_loop")


def test_links_cross_omitted_stages() -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    record = explore(softmax_of_matmul, (x, w), options=Options(stages=("captured", "kernels"))).record
    assert stages(record) == ["source", "captured", "kernels"]
    captured = {entity.id for entity in record["captured"].entities}
    for kernel in record.kernels:
        assert captured & record.linked_ids(kernel.id), kernel


def test_stages_not_requested_are_not_generated() -> None:
    model, x = MLP().eval(), torch.randn(8, 64)
    whole = explore(model, (x,)).record
    halves = explore(model, (x,), options=Options(stages=("joint", "forward", "backward"))).record
    assert (halves.problems, stages(halves)) == ((), ["source", "joint", "forward", "backward"])
    assert [halves[stage].text for stage in stages(halves)] == [whole[stage].text for stage in stages(halves)]
    assert not any("backward" in kernel.graph + kernel.artifact for kernel in halves.kernels)


def test_captured_stage_alone_runs_no_backend() -> None:
    x = torch.randn(4, 4)
    record = explore(softmax_of_matmul, (x, x), options=Options(stages=("captured",))).record
    assert stages(record) == ["source", "captured"]
    assert record.problems == ()


@pytest.mark.needs("g++")
def test_time_and_check_measure_the_users_call() -> None:
    x, w = torch.randn(64, 32, requires_grad=True), torch.randn(32, 32)
    record = explore(softmax_of_matmul, (x, w), options=Options(time="aot_eager", check=True)).record
    assert [candidate.name for candidate in record.candidates] == ["eager", "aot_eager"]
    assert [check.subject for check in record.checks if not check.stage] == [
        "the call",
        "output",
        "gradient of x",
    ]
    assert {check.verdict for check in record.checks} <= {"equal", "close"}
    assert x.grad is None


def test_timing_repeats_the_call_without_recompiling() -> None:
    """Neither another grad mode nor copies of an argument that is passed twice cause a recompilation."""

    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.relu() * y

    x = torch.ones(4)
    record = explore(
        scaled, (x, x), options=Options(stages=("captured",), backend="eager", grad=False, time="aot_eager")
    ).record
    assert [(found.name, found.what) for found in record.candidates] == [("eager", "forward"), ("aot_eager", "forward")]
    assert ([frame.id for frame in record.frames], record.recompiles) == (["0/0"], ())


@pytest.mark.parametrize("backend", ["inductor", "tcompile"])
def test_data_dependent_graph_keeps_every_kernel(backend: str) -> None:
    """Each kernel is in an artifact, also in the backward and in every part into which our backend splits the graph."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).relu()
        return (y[y.nonzero()[:, 0]] * 3).sin().sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        record = explore(fn, (torch.randn(16, requires_grad=True),), options=Options(backend=backend)).record
    assert not record.problems
    assert {kernel.half for kernel in record.kernels} == {"forward", "backward"}
    entities = {entity.id for artifact in record.artifacts for entity in artifact.entities}
    assert {kernel.id for kernel in record.kernels} <= entities
    if backend == "tcompile":
        texts = [artifact.text for artifact in record.artifacts if artifact.stage == "kernels"]
        names = [kernel.name for kernel in record.kernels if kernel.category != "extern"]
        assert all(any(f"def {name}(" in text for text in texts) for name in names)


@pytest.mark.parametrize("backend", ["inductor", "tcompile"])
@pytest.mark.parametrize("stage", ["inference", "joint"])
def test_failed_retracing_is_a_problem_of_its_stage(backend: str, stage: str) -> None:
    traced: list[torch.Tensor] = []
    with torch.library._scoped_library("tcompile_tests", "FRAGMENT") as library:
        library.define("traced_once(Tensor x) -> Tensor")
        library.impl("traced_once", torch.clone, "CompositeExplicitAutograd")

        def shape(x: torch.Tensor) -> torch.Tensor:
            traced.append(x)
            if len(traced) > 1:
                raise ValueError("the operator can't be traced again")
            return torch.empty_like(x)

        library._register_fake("traced_once", shape)

        def fn(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.tcompile_tests.traced_once(x * 2)

        x = torch.ones(4, requires_grad=stage == "joint")
        record = explore(fn, (x,), options=Options(backend=backend)).record
    assert [problem.stage for problem in record.problems] == [stage]
    assert "can't be traced again" in record.problems[0].reason


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile"])
def test_stance_is_why_nothing_was_compiled(stance: str) -> None:
    with torch.compiler.set_stance(stance):
        (problem,) = explore(torch.sin, (torch.ones(3),)).record.problems
    assert problem.reason == f'nothing was compiled: torch.compiler.set_stance("{stance}") is in effect'


def test_environment_is_why_nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    (problem,) = explore(torch.sin, (torch.ones(3),)).record.problems
    assert problem.reason == "nothing was compiled: the environment has TORCHDYNAMO_DISABLE=1"
