"""Time eager against compiled on the user's own call: seconds, memory, launches, compile time.

Each candidate runs a fresh copy of the model with equal weights. It is compiled with empty caches in its own folder,
warmed up until its calls no longer get faster, and timed alone. Then all candidates are timed in interleaved rounds,
and these times are the result. The user's modules, gradients, RNG state, settings and compiled code do not change.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from compiler.calls.call import Call, without_output
from compiler.calls.copies import copy_call, main_device
from compiler.calls.explored import cannot_repeat
from compiler.process.environment import environment
from compiler.record import Problem, Record
from compiler.record.builder import Builder
from compiler.record.measure_facts import Candidate, Measurement
from compiler.record.options import OptionError, Options
from compiler.record.plain_text import pluralize
from compiler.timing import noise
from compiler.timing.candidates import EAGER, OURS, Asked, Spec, specs
from compiler.timing.cold import ColdCompiler, FirstCall
from compiler.timing.one_process import check_one_process
from compiler.timing.resource_use import Pool, graph_pool_bytes, with_note, with_resource_use
from compiler.timing.rounds import GpuClock, Settled, calls_a_round, clock_for, settle, turns, warm_up
from compiler.timing.spread import Spread
from compiler.timing.work import Job, MakeOptimizer, Work, job, mark_steps, optimizer_named, work
from compiler.torch_api.dynamo_caches import separate_caches

ALONE_ROUNDS = 5
ROUNDS = (7, 101)
"""Minimum and maximum number of rounds, if the user gives no number."""
IN_TURNS_SECONDS = 6.0
"""Approximate duration of the interleaved rounds: a machine's speed changes within seconds."""
LEAST_CALLS = {"cpu": 1, "cuda": 5}
"""Minimum number of calls per round; on a GPU each call is timed, and the median is used."""
IN_TURNS = "all in turns"
"""Value of `Progress.candidate` during the interleaved rounds."""
ALONE = "timed by itself, not in turns with the others: the measurement was stopped"
NO_CALL = Problem(
    "timing",
    "there is no call to time: what the cell compiles with torch.compile itself can't be compiled in other ways here",
    "call the model or function itself, without torch.compile, in the cell",
)
LEAST_ROUNDS = 3
"""Minimum number of interleaved rounds to use if the user interrupts; with fewer, the times measured alone are used."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a measurement. `asked` are the requested candidates (see `candidates.specs`).

    `backward` is None to run a backward if there is one, True to require it, False for only the forward. `rounds` is
    None for as many as time allows. `flush` says whether to flush the GPU's L2 cache before each call.
    """

    asked: Asked = None
    backward: bool | None = None
    optimizer: str | MakeOptimizer | None = None
    rounds: int | None = None
    flush: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a measurement: step `done` of `total`, on `candidate`."""

    candidate: str
    doing: str
    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.candidate}: {self.doing} ({self.done} of {self.total})"


Tell = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured candidates, including failed ones with their problem, and the method of measurement."""

    candidates: tuple[Candidate, ...]
    measurement: Measurement


def measure(call: Call, options: Options, plan: Plan, tell: Tell | None = None) -> Measured:
    """Time the candidates for a call. A KeyboardInterrupt ends the measurement and keeps finished results.

    Raises OptionError for an invalid plan (such as an unknown candidate, or a missing backward) and in a job of ranks,
    CannotCopyError if the call can't be copied, and any exception of the call in eager mode.
    """
    check_one_process(call)
    if plan.rounds is not None and plan.rounds < 1:
        raise OptionError(f"rounds={plan.rounds!r}: at least 1.")
    optimizer = optimizer_named(plan.optimizer)
    first = copy_call(call)
    device = main_device(first)
    chosen, left_out = specs(plan.asked, options, gpu=device.type == "cuda")
    bench = _Bench(call, options, plan, _ProgressReporter(tell, len(chosen)), device)
    bench.run(chosen, optimizer)
    return Measured(tuple(bench.candidates()), bench.measurement(left_out))


@dataclass
class _Entry:
    """A candidate under measurement."""

    spec: Spec
    candidate: Candidate
    work: Work | None = None
    first: FirstCall = field(default_factory=FirstCall)
    calls: int = 1
    alone: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    pool_bytes: int = 0


@dataclass
class _ProgressReporter:
    """Reports progress to the user's own stdout and stderr."""

    tell: Tell | None
    total: int
    stdout: Any = field(default_factory=lambda: sys.stdout)
    stderr: Any = field(default_factory=lambda: sys.stderr)

    def __call__(self, candidate: str, doing: str, done: int, total: int = 0) -> None:
        if self.tell is not None:
            with redirect_stdout(self.stdout), redirect_stderr(self.stderr):
                self.tell(Progress(candidate, doing, done, total or self.total))


class _Bench:
    """Runs one measurement of all candidates."""

    def __init__(self, call: Call, options: Options, plan: Plan, tell: _ProgressReporter, device: torch.device) -> None:
        self.call, self.options, self.plan, self.tell, self.device = call, options, plan, tell, device
        self.clock = clock_for(device, flush=plan.flush)
        self.entries: list[_Entry] = []
        self.clocks: list[float] = []
        self.load = noise.load()
        self.pool_bytes = graph_pool_bytes(device)
        self.compiler = ColdCompiler(options, self.clock)
        self.random = [torch.get_rng_state()]
        if device.type == "cuda":
            self.random.append(torch.cuda.get_rng_state(device))
        self.job: Job | None = None
        self.interrupted = False

    def run(self, chosen: Sequence[Spec], optimizer: MakeOptimizer | None) -> None:
        try:
            with self._isolate(), self.compiler.isolate():
                self.job = job(copy_call(self.call), self.call.surroundings, self.plan.backward, optimizer)
                if self.device.type == "cuda" and any(spec.backend == "inductor" for spec in chosen):
                    self.tell("the compiler", "starting", 1)
                    self.compiler.start(self.device, ours=any(spec.backend == OURS for spec in chosen))
                for number, spec in enumerate(chosen, 1):
                    self._prepare(spec, self.job, number)
                self._in_turns()
                for number, entry in enumerate(self._running_entries(), 1):
                    self.tell(entry.spec.name, "memory and launches", number)
                    self._look_inside(entry)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            for entry in self.entries:
                entry.work = None
            gc.collect()  # compiled code is in reference cycles, which keep the copies alive

    @contextmanager
    def _isolate(self) -> Iterator[None]:
        """Run a block in the user's grad mode, discard its output and restore the RNG state."""
        with self._same_random_numbers(), without_output(), replace(self.call.surroundings, autocast=()).restore():
            yield

    @contextmanager
    def _same_random_numbers(self) -> Iterator[None]:
        """Run a block from the user's RNG state and restore the state afterwards."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.set_rng_state(self.random[0])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(self.random[1], self.device)
            yield

    def _prepare(self, spec: Spec, job: Job, number: int) -> None:
        """Compile a candidate, warm it up and time it alone; a failure is recorded as its problem."""
        entry = _Entry(spec, Candidate(spec.name, spec.backend_name, spec.mode, job.what, self.device.type))
        self.entries.append(entry)
        try:
            self.tell(spec.name, "the first call" if spec.name == EAGER else "compiling", number)
            with separate_caches():
                self._compile(entry, job)
                self.tell(spec.name, "warming up", number)
                self._warm_up(entry)
            entry.pool_bytes = graph_pool_bytes(self.device) - self.pool_bytes if spec.replays else 0
        except Exception as error:  # noqa: BLE001 - whatever a backend raises
            self._drop(entry, error)

    def _compile(self, entry: _Entry, job: Job) -> None:
        """Make the first call, with the same random numbers for every candidate."""
        copy, spec = copy_call(self.call), entry.spec
        with self._same_random_numbers():
            run = copy.fn if spec.name == EAGER else spec.compile(copy.fn, self.options, self.compiler.count_graph)
            entry.work = mark_steps(work(copy, run, job)) if spec.replays else work(copy, run, job)
            entry.first = first = self.compiler.first_call(entry.work.step)
        if spec.name != EAGER:
            entry.candidate = replace(
                entry.candidate, compile_seconds=first.seconds, graphs=first.graphs, kernels=first.kernels
            )

    def _warm_up(self, entry: _Entry) -> None:
        assert entry.work is not None
        settled = settle(entry.work.step, lambda: self.compiler.graphs, self.compiler.recompile_limit)
        entry.work = replace(entry.work, step=settled.step)
        if settled.graphs:
            entry.candidate = with_note(entry.candidate, _settling_note(settled))
        warm = warm_up(entry.work.step, self.clock)
        entry.calls = calls_a_round(warm.seconds, LEAST_CALLS[self.device.type])
        entry.candidate = replace(entry.candidate, calls_a_round=entry.calls)
        entry.alone = [self.clock.seconds(entry.work.step, entry.calls) for _ in range(ALONE_ROUNDS)]
        if not warm.is_stable:
            note = f"its calls were still getting faster after {warm.calls} calls of warming up"
            entry.candidate = with_note(entry.candidate, note)

    def _drop(self, entry: _Entry, error: Exception) -> None:
        entry.work = None
        entry.alone, entry.rounds = [], []
        entry.candidate = replace(entry.candidate, problem=_words(error))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _running_entries(self) -> list[_Entry]:
        return [entry for entry in self.entries if entry.work is not None]

    def _rounds(self) -> int:
        """Number of rounds: the user's number, or as many as fit into the time budget."""
        if self.plan.rounds is not None:
            return self.plan.rounds
        a_round = sum(entry.calls * Spread.of_numbers(entry.alone).middle for entry in self._running_entries())
        least, most = ROUNDS
        return min(most, max(least, int(IN_TURNS_SECONDS / max(a_round, 1e-9))))

    def _in_turns(self) -> None:
        entries = {entry.spec.name: entry for entry in self._running_entries()}
        if not entries:
            return
        rounds = self._rounds()
        functions = {name: self._guarded_step(entry) for name, entry in entries.items()}
        counts = {name: entry.calls for name, entry in entries.items()}
        self.tell(IN_TURNS, "rounds", 0, rounds)
        self._note_clock()
        for name, seconds in turns(functions, counts, rounds, self.clock):
            entry = entries[name]
            if entry.work is not None:
                entry.rounds.append(seconds)
            if name == next(iter(entries)):
                self.tell(IN_TURNS, "rounds", len(entry.rounds), rounds)
        self._note_clock()

    def _guarded_step(self, entry: _Entry) -> Callable[[], None]:
        """The entry's step, which does nothing after its first failure."""

        def step() -> None:
            if entry.work is not None:
                try:
                    entry.work.step()
                except Exception as error:  # noqa: BLE001 - whatever a backend raises
                    self._drop(entry, error)

        return step

    def _note_clock(self) -> None:
        if self.device.type == "cuda":
            rate = noise.clock_rate(self.device)
            self.clocks += [rate] if rate is not None else []

    def _look_inside(self, entry: _Entry) -> None:
        """Measure memory, launches and host time; a failure is only a note, because the times are already known."""
        assert entry.work is not None
        first = next((other.spec.name for other in self.entries if other.pool_bytes), "")
        pool = Pool(entry.spec.replays, entry.pool_bytes, first if first != entry.spec.name else "")
        try:
            entry.candidate = with_resource_use(entry.candidate, entry.work, entry.first, self.clock, pool)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises
            note = f"memory and launches are not known: {_words(error)}"
            entry.candidate = with_note(entry.candidate, note)

    def candidates(self) -> Iterator[Candidate]:
        """Results of each candidate, at the end or after an interrupt."""
        for entry in self.entries:
            enough = len(entry.rounds) >= min(LEAST_ROUNDS, self.plan.rounds or LEAST_ROUNDS)
            rounds = entry.rounds if enough else entry.alone
            if rounds and not entry.candidate.problem:
                yield _with_times(entry, rounds, alone=not enough)
            elif entry.candidate.problem:
                yield entry.candidate

    def measurement(self, left_out: str) -> Measurement:
        found = list(self.candidates())
        here = environment()
        is_gpu = self.device.type == "cuda"
        return Measurement(
            device=self.device.type,
            device_name=torch.cuda.get_device_name(self.device) if is_gpu else here.processor,
            threads=torch.get_num_threads(),
            method=self._method(found),
            noise=tuple(noise.notes(found, self.clocks, self.load)),
            left_out=left_out,
            interrupted=self.interrupted,
        )

    def _method(self, found: Sequence[Candidate]) -> str:
        rounds = max((len(candidate.rounds) for candidate in found), default=0)
        told = (
            "fresh copies with equal weights, each warmed up until its calls got no faster; median and quartiles of "
            f"{rounds} rounds in turns, each of calls for about 20 ms; "
        )
        if isinstance(self.clock, GpuClock):
            cache = "emptied" if self.clock.flush_bytes else "as the last call left it"
            told += f"CUDA events; before each call the GPU is idle and its L2 cache {cache}"
        else:
            told += f"torch.utils.benchmark, {torch.get_num_threads()} threads"
        if self.job is not None and self.job.what != "forward" and self.job.seeds:
            told += "; the backward starts from gradients of 1"
        if self.job is not None and self.job.optimizer is not None:
            told += "; the optimizer's step is eager in all"
        return told


def _settling_note(found: Settled) -> str:
    until = ", up to torch's recompile limit, from which on it runs as plain Python" if found.has_limit else ""
    return (
        f"the same call, repeated, compiled {pluralize(found.graphs, 'graph')} more{until}; the times are of calls "
        "after that. tcompile.explore(f, calls=[(x,), (x,)]) shows why"
    )


def _with_times(entry: _Entry, rounds: list[float], *, alone: bool) -> Candidate:
    spread = Spread.of_numbers(rounds)
    timed = replace(
        entry.candidate,
        seconds=spread.middle,
        low=spread.low,
        high=spread.high,
        rounds=tuple(rounds),
    )
    return with_note(timed, ALONE) if alone else timed


def _words(error: Exception) -> str:
    """The error as one line of text."""
    lines = str(error).strip().splitlines() or [""]
    text = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
    told = f"{type(error).__name__}: {text}".removesuffix(": ")
    return f"out of memory: {told}" if isinstance(error, torch.OutOfMemoryError) else told


# Times in a record


def time_call(builder: Builder, call: Call | None) -> None:
    """Time the candidates that the options name. A failure is added to the record as a problem; the cell continues."""
    builder.start("timing")
    if call is None:
        builder.problem(NO_CALL)
        return

    def tell(progress: Progress) -> None:
        builder.progress("timing", str(progress))

    try:
        found = measure(call, builder.options, Plan(builder.options.time), tell)
    except Exception as error:  # noqa: BLE001 - whatever the user's call raises when it is repeated
        builder.problem(cannot_repeat(error))
        return
    builder.candidates[:] = found.candidates
    builder.measurement = found.measurement
    for problem in problems(found.candidates):
        builder.problem(problem)


def problems(candidates: Iterable[Candidate]) -> Iterator[Problem]:
    """A problem for each candidate without times, with the reason."""
    for candidate in candidates:
        if candidate.problem:
            reason = f"{candidate.name} was not timed: {candidate.problem}"
            yield Problem("timing", reason, "the other candidates are not touched by this; leave it out of time=")


def with_times(record: Record, found: Measured) -> Record:
    """The record with these candidates and this measurement in place of its own."""
    kept = [problem for problem in record.problems if problem.stage != "timing"]
    return record.with_fields(
        candidates=found.candidates,
        measurement=found.measurement,
        problems=(*kept, *problems(found.candidates)),
    )
