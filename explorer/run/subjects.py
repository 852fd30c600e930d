"""Tables and methods of a run by subject: `run.timing`, `run.memory`, `run.fusion`. Each prints as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from compiler.record import Record

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure

    from compiler.timing.candidates import Asked
    from compiler.timing.work import MakeOptimizer
    from explorer.findings.memory.curve import MemoryCurve
    from explorer.findings.sweep.sweep import Sweep
    from explorer.run.run import Run


class Subject:
    """Base class for a run's view of one subject.

    Prints the text of its `stage`, or `absent` if the run has no such stage.
    """

    stage: ClassVar[str]
    absent: ClassVar[str]

    def __init__(self, run: Run) -> None:
        self._run = run

    def __str__(self) -> str:
        try:
            return self._run[self.stage].text
        except KeyError:
            return self.absent if self._run.record.origin != "log" else f"a log holds nothing about {self.stage}"

    __repr__ = __str__


class Timing(Subject):
    """Times of a run: measured ones (`--time`, `run.timing.measure()`), and estimates for an absent GPU."""

    stage, absent = "timing", "nothing was timed: run.timing.measure() does it"

    @property
    def candidates(self) -> pd.DataFrame:
        """One row per candidate (eager, and each backend and mode): times, memory, break-even number of calls."""
        from explorer.findings.timing.tables import timings

        return timings(self._run.record)

    @property
    def kernels(self) -> pd.DataFrame:
        """One row per kernel in forward or backward: measured time, bandwidth, rate, lines."""
        from explorer.findings.timing.tables import kernel_times

        return kernel_times(self._run.record)

    @property
    def lines(self) -> pd.DataFrame:
        """One row per Python line in forward or backward: measured time, with and without its callees."""
        from explorer.findings.timing.tables import line_times

        return line_times(self._run.record)

    @property
    def stages(self) -> pd.DataFrame:
        """One row per artifact: the seconds that torch.compile took to make it."""
        from explorer.run.tables import stage_times

        return stage_times(self._run.record)

    @property
    def phases(self) -> pd.DataFrame:
        """One row per phase of torch's compilations, from torch's own events: seconds with and without inner phases.

        The time of tcompile's recording is not included. g++ and Triton run only if code is built (`--time`, a GPU).
        """
        from explorer.findings.timing.phases import phases

        return phases(self._run.record)

    @property
    def estimates(self) -> pd.DataFrame:
        """One row per kernel for an absent GPU: the minimum time that its bytes and FLOPs take on the GPU.

        `.attrs` has the totals and the cost of launches. Empty if the code's device is present.
        """
        from explorer.findings.timing.estimates import estimates

        return estimates(self._run.record)

    def plot(self) -> Figure:
        """Plot the candidates' times per call with quartiles as a bar chart.

        Raises ValueError if nothing was timed.
        """
        from explorer.findings.timing.chart import timing_chart

        return timing_chart(self._run.record)

    def measure(
        self,
        candidates: Asked = None,
        *,
        backward: bool | None = None,
        optimizer: str | MakeOptimizer | None = None,
        rounds: int | None = None,
        flush: bool = True,
    ) -> pd.DataFrame:
        """Time the run's call with several candidates, on fresh copies with equal weights; returns `candidates`.

        `candidates` are names of Inductor's modes and of backends ("default,reduce-overhead" or a list), "all", or
        backend functions; eager is always included. The default depends on the device. The timed step is the user's
        call, its backward if a result requires grad (`backward=False`: only the forward), and a step of `optimizer`,
        which is a name of torch.optim or a function of the parameters. `rounds` is the number of interleaved rounds;
        `flush=False` does not flush a GPU's L2 cache between calls.

        After an interrupt, finished results are kept (`run.record.measurement.interrupted`). A failed candidate has its
        problem in the table. Raises OptionError for an invalid argument, ValueError for a loaded run, and any exception
        of the call in eager mode.
        """
        from compiler.timing.candidate_times import Plan
        from explorer.findings.timing.again import listen_for_progress, time_candidates

        run, plan = self._run, Plan(candidates, backward, optimizer, rounds, flush)
        with listen_for_progress(run._widget) as listeners:
            run.compiler.grow(lambda record: time_candidates(record, run.call, plan, listeners))
        return self.candidates

    def profile(self, optimizer: str | MakeOptimizer | None = None) -> pd.DataFrame:
        """Profile a copy of the run's call, eager and compiled, for `kernels` (returned) and `lines`.

        The profiled step is that of `measure`. Code is built for the device of the call's tensors. Raises OptionError,
        ValueError for a loaded run, CannotCopyError, and any exception of the call.
        """
        from explorer.findings.timing.again import profile_call

        self._run.compiler.grow(lambda record: profile_call(record, self._run.call, optimizer))
        return self.kernels

    def sweep(
        self,
        batch: int | Iterable[int] = (),
        dtype: torch.dtype | str | Iterable[torch.dtype | str] = (),
        mode: str | Iterable[str] = (),
        *,
        dims: Mapping[str, int | Sequence[int]] | None = None,
        inputs: Callable[[int], Any] | None = None,
        backward: bool | None = None,
        optimizer: str | MakeOptimizer | None = None,
        rounds: int | None = None,
    ) -> Sweep:
        """Time the run's call at other sizes, dtypes and modes, to find out when compiling pays off.

        `batch` has sizes for dimension 0 of the first tensor argument, and of all other tensors whose dimension 0 has
        the same size; `dims={"x": 0, "mask": (2, 3)}` names other dimensions by argument. Inputs are truncated, or
        their rows repeated; `inputs=lambda size: (x, y)` makes them instead. `dtype` casts modules and floating-point
        inputs. `mode` names candidates as in `measure`, by default the run's own; `backward`, `optimizer` and `rounds`
        are those of `measure`.

        Returns a `Sweep` with a table, text and a plot. After an interrupt it has the finished points; a failed point
        has its reason. Raises OptionError for an invalid argument, ValueError for a loaded run.
        """
        from compiler.timing.candidate_times import Plan
        from explorer.findings.sweep.asked import axes_of, candidates_of
        from explorer.findings.sweep.sweep import sweep

        axes = axes_of(batch, dtype, dims, inputs)
        plan = Plan(candidates_of(mode, self._run.record.options), backward, optimizer, rounds)
        return sweep(self._run.record, self._run.call, plan, axes)


class Memory(Subject):
    """Memory use over a call, step by step, of eager mode and of the generated code."""

    stage, absent = "memory", "nothing is known of memory: no code was generated"

    @property
    def steps(self) -> pd.DataFrame:
        """One row per step, eager and compiled: allocated, reused and freed memory, and the bytes in use."""
        from explorer.findings.memory.table import memory

        return memory(self._record())

    @property
    def peak(self) -> pd.DataFrame:
        """One row per tensor in memory at the peak, eager and compiled: bytes, source line."""
        from explorer.findings.memory.table import peak_memory

        return peak_memory(self._record())

    @property
    def rank(self) -> pd.DataFrame:
        """One row per kind of memory of a rank (shards, gathered weights, …): bytes before the step and at the peak."""
        from explorer.findings.memory.table import rank_memory

        return rank_memory(self._record())

    def curve(
        self, explore_at: Callable[[int], Run], ranks: Iterable[int] = (2, 8, 64), check: int = 512
    ) -> MemoryCurve:
        """Peak memory of a rank against the number of ranks: simulated at a few numbers, with a formula for the others.

        `run.memory.curve(lambda n: tcompile.explore(make_model, x, ranks=n))` explores a rank of each of `ranks` and
        of `check`, which the formula is not fitted to; this run is one of the points. Raises ValueError for a run of
        one process, and any exception of `explore_at`.
        """
        from explorer.findings.memory.curve import memory_curve

        own = self._record()
        if own.place is None:
            raise ValueError("this run is not of a rank: explore it with ranks= (--ranks 8)")
        world = own.place.world
        return memory_curve(lambda n: own if n == world else explore_at(n).record, (*ranks, world), check)

    def plot(self) -> Figure:
        """Plot the bytes in use over forward and backward. Raises ValueError if no code was generated."""
        from explorer.findings.memory.chart import memory_chart

        return memory_chart(self._record())

    def trace(self, call: Callable[[], object]) -> pd.DataFrame:
        """Run `call` and record its actual allocations and frees, on the GPU if it allocates there, else on the CPU.

        `run.memory.trace(lambda: compiled(x).sum().backward())` adds them to `steps` (returned), the chart and the live
        view. Call the compiled function once before, because the first call compiles. Raises any exception of `call`,
        and RecordingError (a RuntimeError) if torch.cuda.memory's history is already being recorded.
        """
        from compiler.timing.memory_trace import with_measured_memory

        self._run.compiler.grow(lambda record: with_measured_memory(record, call))
        return self.steps

    def _record(self) -> Record:
        return self._run._with_eager_memory()


class Fusion(Subject):
    """Fused and unfused kernels, with the cost of not fusing."""

    stage, absent = "fusion", "nothing is known of fusion: no code was generated"

    @property
    def kernels(self) -> pd.DataFrame:
        """One row per kernel: fused nodes, rounds of fusion, and bytes moved (now, before fusion, and the minimum)."""
        from explorer.findings.fusion.table import fusion

        return fusion(self._run.record)

    @property
    def unfused(self) -> pd.DataFrame:
        """One row per pair of unfused kernels: the reason in plain words and in torch's, and the cost."""
        from explorer.findings.fusion.table import unfused_pairs

        return unfused_pairs(self._run.record)
