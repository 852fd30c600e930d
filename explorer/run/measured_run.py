"""What a run tells of time, measured or estimated: timings, sweeps, profiles, advice. `Run` has all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compiler.record import Record
from explorer.run.compiling import KernelCompiler

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure

    from compiler.calls.call import Call
    from compiler.timing.candidates import Asked
    from compiler.timing.work import MakeOptimizer
    from explorer.findings.advice.adviser import AdviceList, Tried
    from explorer.findings.sweep.sweep import Sweep


class MeasuredRun:
    """A record that grows by measuring the call it was made from, again and in other ways."""

    compiler: KernelCompiler
    call: Call | None
    _widget: Any

    @property
    def record(self) -> Record:
        """All that is known by now."""
        return self.compiler.record

    @property
    def timings(self) -> pd.DataFrame:
        """One row a way to run the call (`--time`): eager, and each backend and mode; times, memory, what it comes to.

        `print(run["timing"])` says the same in words, `run.plot_timings()` draws it.
        """
        from explorer.findings.timing.tables import timings

        return timings(self.record)

    @property
    def stage_times(self) -> pd.DataFrame:
        """One row an artifact: how long torch.compile took to make it, in seconds."""
        from explorer.run import tables

        return tables.stage_times(self.record)

    def plot_timings(self) -> Figure:
        """Each candidate's time of a call with its quartiles, as a bar chart.

        Raises ValueError where nothing was timed.
        """
        from explorer.findings.timing.chart import timing_chart

        return timing_chart(self.record)

    @property
    def estimates(self) -> pd.DataFrame:
        """One row a kernel of code for a GPU that is not here: the least time that its bytes and operations take there.

        These are estimates, and stand apart from what was measured (`run.timings`); `run.estimates.attrs` has the sums
        and the cost of launches. Empty where the code is for a device that is here.
        """
        from explorer.findings.timing.estimates import estimates

        return estimates(self.record)

    def time(
        self,
        candidates: Asked = None,
        *,
        backward: bool | None = None,
        optimizer: str | MakeOptimizer | None = None,
        rounds: int | None = None,
        flush: bool = True,
    ) -> pd.DataFrame:
        """Time the run's call in several ways, on fresh copies with equal weights; returns `run.timings`.

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

        plan = Plan(candidates, backward, optimizer, rounds, flush)
        with listen_for_progress(self._widget) as listeners:
            self.compiler.grow(lambda record: time_candidates(record, self.call, plan, listeners))
        return self.timings

    @property
    def advice(self) -> AdviceList:
        """What would make the call faster, or its compilation, in order of expected gain, with evidence.

        Prints as text; `run.advice.table` is a DataFrame, `run.advice[0]` the first finding as plain data. Numbers are
        measured where the run was timed (`--time`), and estimates that say so elsewhere.
        """
        from explorer.findings.advice.adviser import AdviceList

        return AdviceList(self.record)

    def try_advice(self, number: int) -> Tried:
        """Make the change of `run.advice[number]` to the run's own call, on fresh copies, and measure what it gains.

        The call as it is and with the change are compiled anew, their results compared, and both timed in turns. The
        result is in `run.advice` and in the live view from then on. Nothing of the process changes. Raises IndexError
        for a number that there is not, ValueError for what is to be done by hand, and for a run without a call.
        """
        from explorer.findings.advice.adviser import AdviceList, Tried, with_trial
        from explorer.findings.timing.again import progress_line

        advice = AdviceList(self.record)[number] if number >= 0 else None
        with progress_line() as line:
            record = self.compiler.grow(lambda record: with_trial(record, self.call, number, line))
        assert advice is not None  # with_trial has raised
        return Tried(advice, next(trial for trial in record.trials if trial.advice == advice.id))

    @property
    def phases(self) -> pd.DataFrame:
        """One row a phase of torch's compilations, as its own events tell: all its seconds, and those of its own.

        What tcompile spends on recording is not counted; g++ and Triton run where code is built (`--time`, a GPU).
        """
        from explorer.findings.timing.phases import phases

        return phases(self.record)

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
        candidates as `run.time` does, by default the run's own; `backward`, `optimizer` and `rounds` are as there.

        Returns a table, words and a plot in one. Interrupted, it has the points that are finished; one that fails has
        its reason. Raises OptionError for what can't be asked, ValueError for a run that was loaded.
        """
        from compiler.timing.candidate_times import Plan
        from explorer.findings.sweep.asked import axes_of, candidates_of
        from explorer.findings.sweep.sweep import sweep

        axes = axes_of(batch, dtype, dims, inputs)
        plan = Plan(candidates_of(mode, self.record.options), backward, optimizer, rounds)
        return sweep(self.record, self.call, plan, axes)

    def profile(self, optimizer: str | MakeOptimizer | None = None) -> pd.DataFrame:
        """Profile the run's call, eager and compiled, on a copy: `run.kernel_times` (returned) and `run.line_times`.

        One call is the user's own, with its backward where it gives something that has a gradient, and with a step of
        `optimizer`: a name of torch.optim, or a function of the parameters. Code is built for where the call's tensors
        are. Raises OptionError, ValueError for a run that was loaded, CannotCopyError, and what the call raises.
        """
        from explorer.findings.timing.again import profile_call

        self.compiler.grow(lambda record: profile_call(record, self.call, optimizer))
        return self.kernel_times

    @property
    def kernel_times(self) -> pd.DataFrame:
        """One row a kernel and half of the call: measured time, bandwidth, rate, lines (`--time`, `run.profile`)."""
        from explorer.findings.timing.tables import kernel_times

        return kernel_times(self.record)

    @property
    def line_times(self) -> pd.DataFrame:
        """One row a line of Python and half of the call: measured time (`--time`, `run.profile`)."""
        from explorer.findings.timing.tables import line_times

        return line_times(self.record)
