"""Tables and actions of a run by subject: `run.timing`, `run.memory`, `run.fusion`. Each prints as text."""

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
    from explorer.findings.sweep.sweep import Sweep
    from explorer.run.run import Run


class Subject:
    """Tables and actions of a run on one subject."""

    stage: ClassVar[str]
    absent: ClassVar[str]

    def __init__(self, run: Run) -> None:
        self._run = run

    def __str__(self) -> str:
        try:
            return self._run[self.stage].text
        except KeyError:
            return self.absent

    __repr__ = __str__


class Timing(Subject):
    """Times of a run: measured ones (`--time`, `run.timing.measure()`), and estimates for a GPU that is not here."""

    stage, absent = "timing", "nothing was timed: run.timing.measure() does it"

    @property
    def candidates(self) -> pd.DataFrame:
        """One row per way to run the call: eager, and each backend and mode; times, memory, break-even calls."""
        from explorer.findings.timing.tables import timings

        return timings(self._run.record)

    @property
    def kernels(self) -> pd.DataFrame:
        """One row per kernel and half of the call: measured time, bandwidth, rate, lines."""
        from explorer.findings.timing.tables import kernel_times

        return kernel_times(self._run.record)

    @property
    def lines(self) -> pd.DataFrame:
        """One row per line of Python and half of the call: measured time, with and without what it calls."""
        from explorer.findings.timing.tables import line_times

        return line_times(self._run.record)

    @property
    def stages(self) -> pd.DataFrame:
        """One row per artifact: how many seconds torch.compile took to make it."""
        from explorer.run.tables import stage_times

        return stage_times(self._run.record)

    @property
    def phases(self) -> pd.DataFrame:
        """One row per phase of torch's compilations, by its own events: its seconds, with and without inner phases.

        What tcompile spends on recording is not counted; g++ and Triton run where code is built (`--time`, a GPU).
        """
        from explorer.findings.timing.phases import phases

        return phases(self._run.record)

    @property
    def estimates(self) -> pd.DataFrame:
        """One row per kernel for a GPU that is not here: the least time that its bytes and operations take there.

        `.attrs` has the sums and the cost of launches. Empty where the code is for a device that is here.
        """
        from explorer.findings.timing.estimates import estimates

        return estimates(self._run.record)

    def plot(self) -> Figure:
        """Each candidate's time of a call with its quartiles, as a bar chart.

        Raises ValueError where nothing was timed.
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
        """Time the run's call in several ways, on fresh copies with equal weights; returns `candidates`.

        `candidates` are names of Inductor's modes and of backends ("default,reduce-overhead" or a list), "all", or
        backends that are functions; eager is always among them. By default those that make sense on the device. One
        call is the user's own, with its backward where it gives something that has a gradient (`backward=False`: the
        forward alone), and with a step of `optimizer`: a name of torch.optim, or a function of the parameters.
        `rounds` is how often each is timed in turns; `flush=False` leaves a GPU's L2 cache as the last call left it.

        Interrupted, it keeps what is finished (`run.record.measurement.interrupted`). A candidate that fails has its
        problem in the table, and the others stay. Raises OptionError for what can't be asked, ValueError for a run that
        was loaded, and what the call raises in eager.
        """
        from compiler.timing.candidate_times import Plan
        from explorer.findings.timing.again import listen_for_progress, time_candidates

        run, plan = self._run, Plan(candidates, backward, optimizer, rounds, flush)
        with listen_for_progress(run._widget) as listeners:
            run.compiler.grow(lambda record: time_candidates(record, run.call, plan, listeners))
        return self.candidates

    def profile(self, optimizer: str | MakeOptimizer | None = None) -> pd.DataFrame:
        """Profile the run's call, eager and compiled, on a copy, for `kernels` (returned) and `lines`.

        One call is as in `measure`. Code is built for where the call's tensors are. Raises OptionError, ValueError for
        a run that was loaded, CannotCopyError, and what the call raises.
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
        """Time the run's call at other sizes, in other number formats and modes: where does compiling begin to pay?

        `batch` are sizes of dimension 0 of the first tensor that is passed, and of all others that have its size there;
        `dims={"x": 0, "mask": (2, 3)}` names other dimensions, by argument. Inputs are cut, or repeat their own rows;
        `inputs=lambda size: (x, y)` makes them instead. `dtype` casts modules and floating inputs. `mode` names
        candidates as `measure` does, by default the run's own; `backward`, `optimizer` and `rounds` are as there.

        Returns a table, words and a plot in one. Interrupted, it has the points that are finished; one that fails has
        its reason. Raises OptionError for what can't be asked, ValueError for a run that was loaded.
        """
        from compiler.timing.candidate_times import Plan
        from explorer.findings.sweep.asked import axes_of, candidates_of
        from explorer.findings.sweep.sweep import sweep

        axes = axes_of(batch, dtype, dims, inputs)
        plan = Plan(candidates_of(mode, self._run.record.options), backward, optimizer, rounds)
        return sweep(self._run.record, self._run.call, plan, axes)


class Memory(Subject):
    """The bytes in use over a call, step by step, eager next to the generated code."""

    stage, absent = "memory", "nothing is known of memory: no code was generated"

    @property
    def steps(self) -> pd.DataFrame:
        """One row per step, eager and compiled: what is allocated, reused and freed, and the bytes in use."""
        from explorer.findings.memory.table import memory

        return memory(self._record())

    @property
    def peak(self) -> pd.DataFrame:
        """One row per tensor in memory at the peak, eager and compiled: bytes, the line it comes from."""
        from explorer.findings.memory.table import peak_memory

        return peak_memory(self._record())

    def plot(self) -> Figure:
        """The bytes in use over forward and backward, as a chart. Raises ValueError where no code was generated."""
        from explorer.findings.memory.chart import memory_chart

        return memory_chart(self._record())

    def trace(self, call: Callable[[], object]) -> pd.DataFrame:
        """Run `call` and record what it really allocates and frees, on the GPU where there is one, else on the CPU.

        `run.memory.trace(lambda: compiled(x).sum().backward())` adds it to `steps` (returned), the chart and the live
        view. Call it once before: the first call compiles. Raises what `call` raises, and RecordingError (a
        RuntimeError) where torch.cuda.memory's history is being recorded already.
        """
        from compiler.timing.memory_trace import with_measured_memory

        self._run.compiler.grow(lambda record: with_measured_memory(record, call))
        return self.steps

    def _record(self) -> Record:
        return self._run._with_eager_memory()


class Fusion(Subject):
    """Which loops became one kernel, which did not, and what that costs."""

    stage, absent = "fusion", "nothing is known of fusion: no code was generated"

    @property
    def kernels(self) -> pd.DataFrame:
        """One row per kernel: the nodes fused in it, in how many rounds; the bytes it moves, before, and at least."""
        from explorer.findings.fusion.table import fusion

        return fusion(self._run.record)

    @property
    def unfused(self) -> pd.DataFrame:
        """One row per pair of kernels that was not fused: why, in plain words and torch's; what that costs."""
        from explorer.findings.fusion.table import unfused_pairs

        return unfused_pairs(self._run.record)
