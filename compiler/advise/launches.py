"""Rules about calls that wait for the CPU: launches, guards, small graphs, compile time not paid back."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.advise.facts import Advice, Change, Evidence, Gain, percent, seconds
from compiler.advise.reading import Reading
from compiler.advise.waiting import CALL_SECONDS, LAUNCH_SECONDS, MUCH, Waiting, find_waiting, host_seconds
from compiler.record import Entity
from compiler.record.measure_facts import Candidate
from compiler.record.plain_text import pluralize, size_text
from compiler.timing.spread import calls_to_pay, saved_seconds

CLAIMED = 0.7
"""Share of the GPU's waiting time that CUDA graphs are expected to remove, before the cost of a replay."""
REPLAY_SECONDS, REPLAYS_SECONDS = 0.25e-3, 0.6e-3
"""Wait that remains in a call with CUDA graphs: without and with a backward."""
CLAIMED_OF_SHORT = 0.25
"""Minimum share of the wait that is expected to be removed; it applies to short calls."""
LAUNCH_SAVED = 15e-6
"""Maximum expected saving of CUDA graphs for each launch of generated code after the first. With these constants, the
claims hold for all 26 launch-bound cases of benchmarks/suite.py on an H200 (LSTM's one launch of many kernels and the
chain of pointwise operations have no claim); on average they are 45 % of the actual gain."""
WORTH = 0.05
"""A gain below this share of a call is not reported."""
SMALL = 4.0
"""A graph is small if this many times its kernels' floor is still less than the CPU time of calling it."""
EAGER_SECONDS = 10e-6
"""Eager mode's CPU time for one operator: 12 to 16 µs on an H200's host, torch 2.11."""
NO_FASTER = 0.8
"""Compiled code is considered no faster if it takes at least this share of eager's time."""


def cuda_graphs(reading: Reading) -> Iterator[Advice]:
    """If the call is launch-bound, suggest CUDA graphs, or report what prevents them."""
    options = reading.record.options
    has_them = options.mode in ("reduce-overhead", "max-autotune") or options.options.get("triton.cudagraphs")
    if not reading.on_gpu or has_them:
        return
    waits = find_waiting(reading)
    if waits is None or waits.share < MUCH:
        return
    obstacles = tuple(_obstacles(reading))
    is_known = waits.evidence.basis == "measured"
    found = (
        f"{'The GPU waits' if is_known else 'By what launches usually take, the GPU waits'} for the CPU in "
        f"{percent(waits.share)} of a call: {pluralize(reading.launches, 'launch', 'launches')} are made one by one, "
        "and the kernels are short."
    )
    if obstacles:
        found = f"{found} CUDA graphs would replay them as one launch, but something here stands against that."
        change = Change("Take away what stands against CUDA graphs, then compile with mode='reduce-overhead'.")
        evidence = (waits.evidence, *obstacles)
        yield Advice("cuda-graphs", "Launch-bound, and no CUDA graph", found, evidence, None, change)
        return
    timed = reading.in_mode("reduce-overhead")
    gain = measured_gain(reading, timed.name) if timed is not None else _graph_gain(reading, waits)
    if gain is None:
        return  # it was tried and is no faster, or the gain is too small
    told = (
        "Compile with mode='reduce-overhead': CUDA graphs replay all launches as one. It needs memory for the graphs, "
        "and results are overwritten by the next call: clone what you keep."
    )
    if any(not symbol.became for symbol in reading.record.symbols):
        told = f"{told} Each size that comes is recorded anew: it pays where few sizes come often."
    change = Change(told, {"mode": "reduce-overhead"})
    yield Advice("cuda-graphs", "Launch-bound", found, (waits.evidence,), gain, change)


def _graph_gain(reading: Reading, waits: Waiting) -> Gain | None:
    """Launch time saved by a CUDA graph, less the time to copy its inputs in each call; None if too small."""
    launches = sum(max(kernel.calls, 1) for kernel in reading.record.kernels) - 1
    copied = sum(int(entity.attrs.get("bytes") or 0) for entity in _inputs(reading) if not _is_kept(reading, entity.id))
    copying = 2 * copied / reading.gpu.memory_bandwidth if reading.gpu is not None else 0.0
    own = REPLAYS_SECONDS if reading.trains else REPLAY_SECONDS
    of_wait = max(CLAIMED * waits.seconds - own, CLAIMED_OF_SHORT * waits.seconds)
    gained = min(of_wait, LAUNCH_SAVED * launches) - copying
    if gained < WORTH * waits.whole:
        return None
    how = (
        f"{percent(CLAIMED)} of the time in which the GPU waits but for {seconds(own)} of the replay, or "
        f"{percent(CLAIMED_OF_SHORT)} where that is more; at most {seconds(LAUNCH_SAVED)} for each launch of generated "
        "code but one"
    )
    how += f", less {seconds(copying)} to copy {size_text(copied)} of inputs" if copying > 1e-6 else ""
    return Gain(gained, "call", how, "estimate", gained / waits.whole)


def _obstacles(reading: Reading) -> Iterator[Evidence]:
    """Yield reasons why torch would not capture a CUDA graph: its own decision, or conditions that it checks."""
    decided = (found.subjects[0] for found in reading.decisions("functionalization", "mutated input"))
    if moving := [subject for subject in decided if not _is_kept(reading, subject)]:
        names = [_name_of_input(reading, subject) for subject in moving]
        more = f" and {len(names) - 2} more" if len(names) > 3 else ""
        listed = f"inputs {', '.join(names[: 2 if more else 3])}{more}" if len(names) > 1 else f"input {names[0]}"
        told = (
            f"The call writes into its {listed}: a replay writes to the address of the recording, and the "
            "input of the next call may be elsewhere. Return the new value instead."
        )
        yield Evidence(told, "recorded", (*moving, *reading.lines(moving)))
    on_cpu = [each.id for each in _inputs(reading) if each.attrs.get("device") == "cpu" and each.attrs.get("shape")]
    if on_cpu:
        count = pluralize(len(on_cpu), "input")
        told = f"{count} on the CPU: a CUDA graph holds only what the GPU does. Move it to the GPU."
        yield Evidence(told, "recorded", tuple(on_cpu))
    names = sorted({symbol.name for symbol in reading.record.symbols if not symbol.became})
    if names and reading.record.options.options.get("triton.cudagraph_skip_dynamic_graphs"):
        setting = "triton.cudagraph_skip_dynamic_graphs"
        yield Evidence(f"Sizes are symbolic ({', '.join(names)}), and {setting} leaves such graphs out.")


def _name_of_input(reading: Reading, subject: str) -> str:
    entity = reading.entities.get(subject)
    return reading.source_of(subject) or (entity.label if entity is not None else subject)


def _inputs(reading: Reading) -> Iterator[Entity]:
    for stage in ("forward", "inference"):
        for artifact in reading.record.of_stage(stage):
            yield from (entity for entity in artifact.entities if entity.kind == "placeholder")


_OF_MODULE = ("self.get_parameter(", "self.get_buffer(")
"""How AOTAutograd describes what the captured graph itself holds, as an optimizer's parameters and states."""


def _is_kept(reading: Reading, name: str) -> bool:
    """Whether an input is a parameter or buffer: its address is stable, so in-place writes are no obstacle."""
    known = str(reading.entities[name].attrs.get("description", "")) if name in reading.entities else ""
    source = reading.source_of(name)
    return "_buffers" in source or "_parameters" in source or known.startswith(_OF_MODULE)


def eager_is_faster(reading: Reading) -> Iterator[Advice]:
    """Report compiled code that was measured to be slower than eager."""
    own, eager = reading.own, reading.eager
    gain = _faster_by(eager, own)
    if gain is None or own is None or eager is None or own.seconds is None or eager.seconds is None:
        return
    found = f"Compiled, a call takes {seconds(own.seconds)}; in eager mode {seconds(eager.seconds)}."
    change = Change(
        "Leave this call to eager mode, or compile more at once: the training step, or a larger batch.", eager=True
    )
    yield Advice("eager-is-faster", "Eager is faster here", found, tuple(_why_slow(reading, own)), gain, change)


def _why_slow(reading: Reading, own: Candidate) -> Iterator[Evidence]:
    host = own.host
    if host is not None and host.guards:
        yield Evidence(f"Checking the guards takes {seconds(host.guards)} of each call.", "measured", reading.guard_ids)
    if own.launches:
        yield Evidence(f"It makes {pluralize(own.launches, 'launch', 'launches')}.", "measured")


def break_even(reading: Reading) -> Iterator[Advice]:
    """Report compile time that the calls of this run do not pay back."""
    own, eager = reading.own, reading.eager
    if own is None or eager is None or not own.seconds or not eager.seconds or own.compile_seconds is None:
        return
    gain, calls, made = _faster_by(own, eager), calls_to_pay(own, eager), max(reading.record.calls, 1)
    if gain is None or calls is None or calls <= made:
        return
    found = (
        f"Compiling takes {seconds(own.compile_seconds)} and a call gains {seconds(gain.seconds)}: it has paid for "
        f"itself after {calls:,.0f} calls. This run made {pluralize(made, 'call')}."
    )
    change = Change(
        "Compile where the call is made more often than that. Later processes find the code in the cache on disk "
        "(torch.compiler.save_cache_artifacts takes it to other machines); a smaller region compiles sooner."
    )
    evidence = (Evidence(f"Eager {seconds(eager.seconds)} a call, compiled {seconds(own.seconds)}.", "measured"),)
    yield Advice("break-even", "Not yet paid for", found, evidence, None, change)


def too_small(reading: Reading) -> Iterator[Advice]:
    """Report a graph that is so small that eager may be as fast, unless both were measured."""
    if reading.gpu is None or not reading.kernels or reading.own is not None:
        return
    operators = reading.eager_operators
    eager, compiled = operators * EAGER_SECONDS, host_seconds(reading)
    if not operators or compiled < NO_FASTER * eager or SMALL * reading.floor > compiled:
        return
    found = (
        f"Eager mode runs about {pluralize(operators, 'operator')}, compiled code makes "
        f"{pluralize(reading.launches, 'launch', 'launches')} and checks "
        f"{pluralize(len(reading.guards), 'guard')}: on the CPU that is about as much work, and it is what such "
        "a call waits for. Only a measurement says whether compiling pays."
    )
    told = (
        f"{seconds(EAGER_SECONDS)} an operator in eager mode make {seconds(eager)}; compiled, "
        f"{seconds(LAUNCH_SECONDS)} a launch, "
        f"{seconds(reading.guard_seconds)} of guards and {seconds(CALL_SECONDS)} around them make {seconds(compiled)}."
    )
    evidence = (Evidence(told, "estimate", reading.guard_ids),)
    change = Change("Compile more at once (the training step around it, a larger batch), or leave it to eager mode.")
    yield Advice("too-small", "Small for a GPU", found, evidence, None, change)


def _faster_by(first: Candidate | None, second: Candidate | None) -> Gain | None:
    """Gain of `first` over `second`; None if unknown or within noise."""
    found = saved_seconds(first, second) if first is not None and second is not None else None
    if first is None or second is None or found is None or found.low <= 0 or not first.seconds or not second.seconds:
        return None
    how = f"{first.name} takes {seconds(first.seconds)} a call, {second.name} {seconds(second.seconds)}, timed in turns"
    return Gain(found.middle, "call", how, "measured", found.middle / second.seconds)


def measured_gain(reading: Reading, name: str) -> Gain | None:
    """Measured gain of a candidate over the cell's own; None if unknown or within noise."""
    return _faster_by(reading.candidate(name), reading.own)
