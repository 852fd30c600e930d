"""The adviser on real records: each rule finds its case, cites evidence, and claims no more than it shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from compiler.advise import RULES, Advice, advise, can_try
from compiler.advise.closing import nothing_to_gain
from compiler.advise.facts import percent, seconds
from compiler.advise.reading import Reading
from compiler.engine import Exploration, explore
from compiler.option_checks import parse_options
from compiler.record import Decision, Problem, Record
from compiler.record.measure_facts import Candidate, HostTime, KernelTime, Measurement
from compiler.record.options import Options
from explorer.findings.advice.words import snippet
from explorer.findings.diagnosis import diagnose
from tests.compiler.advise.advice_cases import (
    Blocks,
    Cast,
    ListsInAList,
    TwoLists,
    norms,
    printing,
    products,
    transposed,
    writing,
)
from tests.compiler.models import MLP


def recorded(fn: Any, *args: Any, **options: Any) -> Record:
    return explore(fn, args, options=parse_options(**options)).record


def found(record: Record) -> dict[str, Advice]:
    return {advice.rule: advice for advice in advise(record)}


def timed(record: Record, own: Candidate, *others: Candidate) -> Record:
    """A record with hand-written measured times, because this machine has no GPU."""
    return record.with_fields(candidates=(own, *others))


def compiled(took: float, gpu: float | None = None, **facts: Any) -> Candidate:
    host = HostTime(guards=3e-6, wrapper=took / 2, launches=took / 4, gpu=gpu) if gpu is not None else None
    spread: dict[str, Any] = {"low": 0.98 * took, "high": 1.02 * took, "host": host}
    return Candidate("inductor", "inductor", "default", **({"seconds": took} | spread | facts))


def named(name: str, took: float) -> Candidate:
    return Candidate(name, seconds=took, low=0.98 * took, high=1.02 * took)


@pytest.fixture(scope="module")
def mlp() -> Record:
    torch.manual_seed(0)
    with Exploration(parse_options(target="h100")) as exploration:
        exploration.compile(MLP().train())(torch.randn(8, 64)).sum().backward()
    return exploration.record


@pytest.fixture(scope="module")
def matmuls() -> Record:
    return recorded(products, torch.randn(4096, 4096), torch.randn(4096, 4096), target="h100")


# Launches


def test_launch_bound_call_is_advised_cuda_graphs(mlp: Record) -> None:
    advice = found(mlp)["cuda-graphs"]
    assert advice.change is not None
    assert advice.change.options == {"mode": "reduce-overhead"}
    assert advice.gain is not None
    assert advice.gain.basis == "estimate"
    assert advice.evidence[0].basis == "estimate"
    assert set(advice.evidence[0].ids) <= {entity.id for entity in mlp.entities()}


def test_input_copies_cost_a_read_and_a_write(mlp: Record) -> None:
    graph = mlp["forward"]
    (given,) = [entity for entity in graph.entities if entity.attrs.get("bytes") == 8 * 64 * 4 and not entity.inputs]
    more = replace(given, attrs=given.attrs | {"bytes": given.attrs["bytes"] + 3_350_000})
    larger = replace(graph, entities=tuple(more if entity is given else entity for entity in graph.entities))
    changed = mlp.with_fields(artifacts=tuple(larger if artifact is graph else artifact for artifact in mlp.artifacts))
    before, after = (found(timed(record, compiled(900e-6, gpu=9e-6)))["cuda-graphs"].gain for record in (mlp, changed))
    assert before is not None
    assert after is not None
    assert before.seconds - after.seconds == pytest.approx(2 * 3_350_000 / 3.35e12, rel=0.01)


def test_busy_gpu_gets_no_launch_advice(mlp: Record) -> None:
    assert "cuda-graphs" not in found(timed(mlp, compiled(1e-3, gpu=0.95e-3)))


def test_measured_times_take_the_place_of_estimates(mlp: Record) -> None:
    advice = found(timed(mlp, compiled(200e-6, gpu=30e-6), named("inductor reduce-overhead", 120e-6)))["cuda-graphs"]
    assert advice.gain is not None
    assert advice.gain.basis == "measured"
    assert advice.gain.seconds == pytest.approx(80e-6)
    assert advice.evidence[0].basis == "measured"


def test_timed_mode_without_speedup_is_not_advised(mlp: Record) -> None:
    assert "cuda-graphs" not in found(
        timed(mlp, compiled(200e-6, gpu=30e-6), named("inductor reduce-overhead", 199e-6))
    )


def test_cuda_graphs_advice_names_the_mutated_input() -> None:
    advice = found(recorded(writing, torch.randn(100), target="h100"))["cuda-graphs"]
    assert advice.gain is None
    assert not advice.can_be_tried
    assert any("writes into its input L['x']" in item.text for item in advice.evidence)


def shifting(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, e: torch.Tensor) -> None:
    for x in (a, b, c, d, e):
        x.add_(1)


def test_many_mutated_inputs_are_one_line() -> None:
    advice = found(recorded(shifting, *(torch.randn(9) for _ in range(5)), target="h100"))["cuda-graphs"]
    [told] = [item for item in advice.evidence if "writes into" in item.text]
    assert "inputs L['a'], L['b'] and 3 more" in told.text
    assert len(told.ids) >= 5


def test_mutated_buffers_do_not_block_cuda_graphs_advice() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8)).train()
    advice = found(recorded(model, torch.randn(4, 8), target="h100"))["cuda-graphs"]
    assert advice.change is not None
    assert advice.change.options == {"mode": "reduce-overhead"}


def test_states_of_an_optimizer_do_not_block_cuda_graphs_advice() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    evidence = found(recorded(optimizer.step, target="h100"))["cuda-graphs"].evidence
    assert not any("writes into" in item.text for item in evidence)


def test_replay_input_copies_reduce_the_gain() -> None:
    assert "cuda-graphs" not in found(recorded(norms, torch.randn(8192, 4096), target="h100"))


def test_compiled_slower_than_eager_is_reported(mlp: Record) -> None:
    advice = found(timed(mlp, compiled(200e-6, gpu=30e-6), named("eager", 140e-6)))["eager-is-faster"]
    assert advice.change is not None
    assert advice.change.eager
    assert advice.gain is not None
    assert advice.gain.seconds == pytest.approx(60e-6)


def test_calls_below_break_even_are_counted(mlp: Record) -> None:
    record = timed(mlp, compiled(1e-3, gpu=0.99e-3, compile_seconds=10.0), named("eager", 2e-3))
    assert "after 10,000 calls. This run made 1 call." in found(record)["break-even"].found
    assert "break-even" not in found(record.with_fields(calls=20_000))


def test_too_small_graph_is_reported(mlp: Record, matmuls: Record) -> None:
    assert "too-small" in found(recorded(writing, torch.randn(100), target="h100"))
    assert "too-small" not in found(matmuls)
    assert "too-small" not in found(timed(mlp, compiled(1e-3, gpu=0.5e-3)))  # it was measured


def test_a_decomposed_operator_is_one_in_eager_mode() -> None:
    record = explore(lambda x: (x.relu() + 1).softmax(-1), calls=[(torch.ones(size, 4),) for size in (2, 3)]).record
    assert Reading(record).eager_operators == 3  # of the first call alone
    x = torch.ones(2, 4, requires_grad=True)
    assert Reading(recorded(lambda x: (x.relu() + 1).softmax(-1), x)).eager_operators == 5
    assert Reading(recorded(nn.Linear(4, 4), x)).eager_operators == 4  # two products and a sum in the backward


# Kernels


def test_tf32_is_advised_if_float32_matmuls_dominate(matmuls: Record, mlp: Record) -> None:
    advice = found(matmuls)["tf32"]
    assert advice.change is not None
    assert advice.change.settings == ('torch.set_float32_matmul_precision("high")',)
    assert advice.numbers
    assert "tf32" not in found(mlp)
    allowed = matmuls.with_fields(environment=replace(matmuls.environment, matmul_precision="high"))
    assert "tf32" not in found(allowed)


def test_record_has_the_float32_matmul_precision() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        record = recorded(products, torch.randn(64, 64), torch.randn(64, 64), stages=("captured",))
    finally:
        torch.set_float32_matmul_precision(before)
    assert record.environment.matmul_precision == "high"


def test_cpu_bound_call_gets_no_gpu_advice(matmuls: Record) -> None:
    busy = replace(compiled(5e-3, gpu=4.9e-3), host=HostTime(guards=0.0, wrapper=1e-4, launches=1e-4, gpu=4.9e-3))
    slow_host = replace(busy, host=HostTime(guards=0.0, wrapper=4e-3, launches=0.9e-3, gpu=4.9e-3))
    assert "tf32" in found(timed(matmuls, busy))
    assert "tf32" not in found(timed(matmuls, slow_host))
    own = HostTime(guards=None, wrapper=busy.seconds * 0.8, launches=0.0, gpu=busy.seconds * 0.75)  # T5 on an H200
    assert "tf32" not in found(timed(matmuls, replace(busy, host=own)))


def test_matmuls_advise_max_autotune_without_claiming_gain(matmuls: Record) -> None:
    advice = found(matmuls)["max-autotune"]
    assert advice.gain is None
    assert advice.can_be_tried
    kernels = {kernel.id for kernel in matmuls.kernels if kernel.category == "extern"}
    assert kernels & set(advice.evidence[0].ids)


def test_matmuls_at_peak_get_no_advice(matmuls: Record) -> None:
    matmuls = matmuls.with_fields(environment=replace(matmuls.environment, matmul_precision="high"))
    floors = {item.kernel.id: item.floor for item in Reading(matmuls).kernels}
    times = tuple(
        KernelTime("k", "compiled", "forward", floor / 0.91, 1, kernel=name) for name, floor in floors.items() if floor
    )
    took = sum(each.seconds for each in times)
    record = timed(matmuls, compiled(1.01 * took, gpu=took), named("eager", 1.01 * took))
    advice = found(record.with_fields(kernel_times=times))
    assert "max-autotune" not in advice
    assert "tf32" not in advice
    done = record.with_fields(kernel_times=times, candidates=(*record.candidates, named("inductor max-autotune", took)))
    share = next(item for item in _closing(done) if "in matmuls" in item)
    assert "at 91 % of the peak" in share


def _closing(record: Record) -> list[str]:
    """The closing sentence about where time goes, if there were no other advice."""
    closing = nothing_to_gain(Reading(record), ())
    assert closing is not None
    return [item.text for item in closing.evidence]


WRITERS = pytest.mark.parametrize("backend", ["inductor", "tcompile"])


@WRITERS
def test_layout_copies_are_found_with_their_line(backend: str) -> None:
    record = recorded(transposed, torch.randn(4096, 512), torch.randn(4096, 64), target="h100", backend=backend)
    advice = found(record)["layout-copies"]
    lines = [name for name in advice.evidence[0].ids if name.startswith("source[")]
    assert lines
    assert "dtype-casts" not in found(record)


@WRITERS
def test_repeated_weight_casts_are_found(backend: str) -> None:
    record = recorded(Cast(), torch.randn(64, 2048).bfloat16(), target="h100", grad=False, backend=backend)
    assert "dtype-casts" in found(record)
    assert "layout-copies" not in found(record)


TABLE = torch.linspace(0, 1, 100, dtype=torch.float64)


def widen(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    distances = (x[:, None] - x).abs()
    return norms(x), x * TABLE, (distances @ x).sum()


def test_tiny_reductions_float64_of_a_table_and_a_large_result_are_found() -> None:
    record = recorded(widen, torch.randn(100, 100), target="h100")
    assert found(record)["tiny-reductions"].evidence[0].ids
    lines = {each.rule: each.span.code for each in diagnose(record).findings if each.span is not None}
    assert "x * TABLE" in lines["float64"]
    assert "(x[:, None] - x)" in lines["large-intermediate"]
    record = recorded(lambda x: x * TABLE, torch.randn(100, 100, dtype=torch.float64), target="h100")
    assert "float64" not in found(record)


def test_scores_of_several_heads_are_known_as_attention() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v

    told = found(recorded(attention, *torch.randn(3, 2, 4, 512, 16), target="h100"))["large-intermediate"]
    assert told.change is not None
    assert "scaled_dot_product_attention" in told.change.text


def test_unfused_kernels_are_reported_with_bytes_and_reason() -> None:
    def three_ways(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y.sum(0), y.softmax(1), (y + y.t()).cos()

    record = recorded(three_ways, torch.ones(8192, 8192), target="h100", backend="tcompile")
    advice = found(record)["not-fused"]
    assert "they reduce over different elements. " in f"{advice.evidence[0].text} "
    assert "(torch:" not in advice.evidence[0].text
    assert set(advice.evidence[0].ids) <= {entity.id for entity in record.entities()}
    assert advice.change is not None
    assert "reduce over the same dimensions" in advice.change.text
    loops = next(entity.origins for entity in record["fused"].entities if len(entity.origins) > 1)
    fused_later = Decision("fuse", record["fused"].graph, loops[:2], "refused", "not yet", {"bytes": 10**9})
    assert found(record.with_fields(decisions=(*record.decisions, fused_later)))["not-fused"] == advice


@pytest.fixture(scope="module")
def slow_blocks() -> Record:
    """A record of equal blocks that took long to compile."""
    record = recorded(Blocks(), torch.randn(4, 16), target="h100", backend="tcompile")
    return record.with_fields(phases=tuple(replace(phase, seconds=phase.seconds + 10) for phase in record.phases))


def test_suggested_code_names_its_backend(slow_blocks: Record) -> None:
    advice = found(slow_blocks)
    graphs, regions = advice["cuda-graphs"].change, advice["regions"].change
    assert graphs is not None
    assert graphs.options == {"backend": "tcompile", "mode": "reduce-overhead"}
    assert regions is not None
    assert snippet(regions)[-1] == "    block.forward = torch.compile(block.forward, backend='tcompile')"


# Capture


def test_dynamic_is_suggested_where_it_helps() -> None:
    def changes(*sizes: int) -> list[dict[str, Any]]:
        calls = [(torch.randn(size, 8),) for size in sizes]
        options = parse_options(target="cpu", stages=("captured",))
        record = explore(lambda x: x * 2, calls=calls, options=options).record
        return [dict(each.change.options) for each in advise(record) if each.rule == "recompile" and each.change]

    assert changes(4, 5) == [{"dynamic": True}]
    assert changes(4, 1, 0) == [{}]  # each of these sizes has code of its own, also with dynamic=True


def test_break_advice_has_a_rewrite() -> None:
    record = recorded(printing, torch.randn(10), target="cpu")
    advice = found(record)["break"]
    assert advice.change is not None
    assert advice.change.suggestion is not None
    assert "torch._higher_order_ops.print" in advice.change.suggestion.rewrite
    assert advice.evidence[0].ids == tuple(f"breaks.{item.id}" for item in record.breaks)
    assert advice.gain is None


def test_timed_break_claims_the_measured_gain() -> None:
    record = recorded(printing, torch.randn(10), target="cpu")
    broken = replace(record.breaks[0], lost_seconds=2e-3, lost_note="3 ms with it, 1 ms without")
    gain = found(record.with_fields(breaks=(broken,)))["break"].gain
    assert gain is not None
    assert (gain.seconds, gain.basis) == (2e-3, "measured")


def test_recompile_advice_costs_measured_compile_time() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    record = explore(f, calls=[(torch.randn(4, 8),), (torch.randn(5, 8),)]).record
    advice = found(record)["recompile"]
    spent = sum(phase.seconds for phase in record.phases if not phase.parent and phase.graph == "0/1")
    assert advice.gain is not None
    assert advice.gain.seconds == pytest.approx(spent / 2)
    assert advice.change is not None
    assert advice.change.options == {"dynamic": True}


def test_joined_tensors_are_no_layout_copies_and_sizes_are_recorded_anew() -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([cache, x]) @ x.t()

    calls = [(torch.randn(size, 64), torch.randn(1, 64)) for size in (8, 9)]
    record = explore(step, calls=calls, options=parse_options(target="h100")).record
    assert any("cat" in kernel.name for kernel in record.kernels)
    told = found(record)
    assert "layout-copies" not in told
    assert told["cuda-graphs"].change is not None
    assert "Each size that comes is recorded anew" in told["cuda-graphs"].change.text


def test_specialized_size_is_reported_with_its_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * int(x.shape[0]) if x.shape[0] == 4 else x

    x = torch.randn(4, 8)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    record = recorded(f, x, stages=("captured",))
    symbols = [symbol for symbol in record.symbols if symbol.became and symbol.specialized_by]
    assert symbols
    assert any(advice.rule == "specialised" for advice in advise(record))


LAYER = nn.Linear(8, 4)


@pytest.mark.parametrize(
    ("fn", "asked_by", "change", "changed"),
    [
        (LAYER, "operator", "If a weight has that size, nothing has to change", None),
        (
            lambda x: x.reshape(5, 2, 4) * 2,
            "operator",
            "compute it from the shape of the input",
            lambda x: x.reshape(x.shape[0], 2, x.shape[1] // 2) * 2,
        ),
        (
            lambda x: sum(x[:, at] for at in range(x.shape[1])),
            "code",
            "no loop or list of that length",
            lambda x: x.sum(1),
        ),
    ],
    ids=["weight", "number", "loop"],
)
def test_specialized_size_is_told_apart_by_what_asked(fn: Any, asked_by: str, change: str, changed: Any) -> None:
    x = torch.randn(5, 8)
    options: dict[str, Any] = {"target": "cpu", "stages": ("captured",), "dynamic": True}
    record = recorded(fn, x, **options)
    assert {symbol.asked_by for symbol in record.symbols if symbol.became.isdigit()} == {asked_by}
    told = [advice.change.text for advice in advise(record) if advice.rule == "specialised"]
    assert told
    assert all(change in words for words in told)
    if changed is not None:
        torch.testing.assert_close(changed(x), fn(x))
        assert "specialised" not in found(recorded(changed, x, **options))


def test_regional_compilation_is_advised_for_equal_blocks(slow_blocks: Record) -> None:
    advice = found(slow_blocks)["regions"]
    assert advice.change is not None
    assert advice.change.regions == tuple(f"blocks.{number}" for number in range(6))
    assert advice.gain is not None
    assert advice.gain.of == "compile"
    assert advice.gain.share == pytest.approx(0.5 * 5 / 6 * 3 / 4, abs=0.01)  # half of five of six; sums are outside


def test_all_lists_of_blocks_are_compiled_as_told() -> None:
    model, x = TwoLists(), torch.randn(4, 16)
    record = recorded(model, x, target="h100", stages=("captured",))
    slow = record.with_fields(phases=tuple(replace(phase, seconds=phase.seconds + 10) for phase in record.phases))
    change = found(slow)["regions"].change
    assert change is not None
    assert change.regions == (*(f"encoder.{at}" for at in range(5)), *(f"decoder.{at}" for at in range(4)))
    assert "5 % of the operations, runs in eager mode" in change.text  # one softmax
    told = "\n".join(snippet(change))
    assert told.startswith("for block in (*model.encoder, *model.decoder):")
    graphs, expected = [], model(x)
    exec(
        told.replace(".forward)", ".forward, backend=note)"),
        {"torch": torch, "model": model, "note": lambda g, _: graphs.append(g) or g},
    )
    torch.testing.assert_close(model(x), expected)
    assert len(graphs) == 3  # the first of the encoder, its others, the decoder's


def test_lists_that_are_not_called_are_no_blocks() -> None:
    record = recorded(ListsInAList(), torch.randn(4, 16), target="h100", stages=("captured",))
    slow = record.with_fields(phases=tuple(replace(phase, seconds=phase.seconds + 10) for phase in record.phases))
    assert "regions" not in found(slow)


# CPU


def test_idle_cores_are_reported() -> None:
    record = recorded(lambda x: x.sin() * 2, torch.randn(300, 300), target="cpu")
    idle = record.with_fields(
        environment=replace(record.environment, cores=8), measurement=Measurement("cpu", threads=2)
    )
    advice = found(timed(idle, compiled(10e-3)))["threads"]
    assert advice.change is not None
    assert advice.change.settings == ("torch.set_num_threads(8)",)
    assert advice.gain is not None
    assert "threads" not in found(record.with_fields(measurement=Measurement("cpu", threads=record.environment.cores)))


def test_missing_compiler_is_reported() -> None:
    record = recorded(lambda x: x.sin() * 2, torch.randn(8), target="cpu")
    hint = "install a C++ compiler (on Debian: apt-get install g++), or leave out --time and --check"
    assert "no-compiler" in found(
        record.with_fields(problems=(Problem("kernels", "No working C++ compiler found", hint),))
    )


# All together


def test_advice_is_sorted_by_expected_gain(matmuls: Record) -> None:
    advice = advise(matmuls)
    gains = [item.gain.seconds for item in advice if item.gain is not None and item.gain.of == "call"]
    assert gains == sorted(gains, reverse=True)
    known = [item.gain is not None for item in advice]
    assert known == sorted(known, reverse=True)


def test_no_useful_advice_is_stated() -> None:
    record = recorded(lambda x: x.sin() * 2, torch.randn(300, 300), target="cpu")
    busy = replace(record.environment, threads=record.environment.cores)  # no core stands idle
    quick = record.with_fields(phases=(), environment=busy)  # and compiling took too little for a word of its own
    (advice,) = advise(timed(quick, compiled(1e-3), named("eager", 2e-3)))
    assert advice.rule == "nothing"
    assert advice.change is None
    assert "2.00 times as fast as eager" in advice.evidence[0].text


def test_saved_record_gives_the_same_advice(mlp: Record) -> None:
    assert advise(Record.from_json(mlp.to_json())) == advise(mlp)


def test_empty_record_claims_no_gain() -> None:
    (advice,) = advise(Record("", Options()))
    assert advice.gain is None
    assert advice.change is None


def test_advice_for_an_absent_gpu_cannot_be_tried(mlp: Record) -> None:
    advice = found(mlp)["cuda-graphs"]
    assert advice.can_be_tried
    assert not can_try(advice, mlp)
    assert can_try(advice, mlp.with_fields(target="cuda"))


def test_every_rule_has_a_docstring_and_unique_name() -> None:
    assert all(rule.__doc__ for rule in RULES)
    assert len({rule.__name__ for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("value", "text"), [(2.5, "2.5 s"), (0.41e-3, "410 µs"), (3.2e-6, "3.2 µs"), (8e-9, "8 ns"), (0.0, "0 ns")]
)
def test_seconds_are_formatted_with_units(value: float, text: str) -> None:
    assert seconds(value) == text


def test_percentages_never_round_to_all_or_none() -> None:
    assert [percent(share) for share in (0.001, 0.5, 0.999, 1.0)] == ["less than 1 %", "50 %", "over 99 %", "100 %"]
