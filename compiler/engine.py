"""explore(): run a user's function under torch.compile and record every stage.

with Exploration(Options()) as exploration:
    loss = exploration.compile(model)(x).sum()
    loss.backward()
exploration.record
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

import compiler.torch_api.all_of_inductor  # noqa: F401 - first, as it takes longest
from compiler.calls.block_masks import add_block_masks
from compiler.calls.call import Call, Surroundings, call_again
from compiler.calls.copies import GIVE_VALUES, NO_VALUES
from compiler.calls.explored import Explored, cannot_repeat
from compiler.calls.kept_graphs import KeptFrame
from compiler.calls.regions import add_regions
from compiler.calls.state import StateBefore, state_before
from compiler.capture.by_design import is_by_design
from compiler.capture.function_names import title_of
from compiler.capture.sources import is_installed
from compiler.distributed.collectives import place_of_process
from compiler.distributed.group import SimulatedGroup
from compiler.distributed.shared_graphs import SharedGraphs
from compiler.process.environment import environment
from compiler.record import MACHINE_STAGES, Check, Problem, Record
from compiler.record.builder import Builder, Event, Listener
from compiler.record.distributed_facts import PipelineSchedule
from compiler.record.options import OptionError, Options
from compiler.recorder import Recorder, tensors_device
from compiler.stopwatch import untimed_observer
from compiler.targets import is_virtual, target
from compiler.targets.destination import DEFAULT_TARGET, WRITERS, builds, destination
from compiler.timing.one_process import NOT_SENT, OTHER_RANKS
from compiler.torch_api import dynamo, fx, inductor
from compiler.torch_api.autograd_nodes import untraced_backwards
from compiler.torch_api.collectives import count_ranks, is_simulated
from compiler.torch_api.compilations import has_modes
from compiler.torch_api.compiled_autograd import call_before_enabling
from compiler.torch_api.dtensor import is_dtensor
from compiler.torch_api.fake_tensors import unset_fake_temporarily
from compiler.torch_api.flex_attention import attend_as_on
from compiler.torch_api.passes_of_ranks import allow_passes_of_ranks
from compiler.torch_api.patching import Function, replace_attribute
from compiler.torch_api.pipelines import decide_without_other_stages, pipeline_schedules
from compiler.torch_api.pytrees import tree_leaves
from compiler.torch_api.released import revert_leftover_fx_patches
from compiler.torch_api.shard_shapes import Sharding, shardings
from compiler.torch_api.supported import warn_of_newer_torch
from compiler.triton_interpreter.user_kernels import interpret_launches
from compiler.virtual_gpu.autocast import begin_on_cpu

__all__ = ["Event", "Exploration", "Explored", "explore", "explore_again"]

MOST_LATER_CALLS = 8
"""Maximum number of later calls that are kept with their arguments; as high as torch's own recompile limit."""
_OWN_FOLDERS = tuple(str(Path(__file__).parent.parent / name) for name in ("compiler", "explorer"))


SHARDED = Problem(
    "timing",
    "the stages were not checked one by one: the call takes DTensors, and AOTAutograd's graphs take their parts on "
    "this rank instead; the call's results on this rank were compared with eager's, without gradients of FSDP's "
    "parameters, which its hooks reduce",
    "to check each stage, explore the model before it is sharded",
)

ON_META = Problem("timing", NO_VALUES, f"the generated code is there; {GIVE_VALUES}")


class Exploration:
    """One exploration, as a context manager. It records every compilation inside the block, also those by the user's
    own `torch.compile`. `compile(fn)` returns the callable to use in place of `fn`.

    `listener` is notified of each stage. Exceptions of the user's code propagate. If torch.compile fails, a `Problem`
    is recorded, and the user's code runs uncompiled. With `build`, code is built regardless of the options. `site` is
    the line that calls are attributed to; by default, the line of the user's code that makes them. `shared` has graphs
    that need not be compiled, as another rank of a simulated job has.
    """

    def __init__(
        self,
        options: Options | None = None,
        *,
        title: str = "",
        listener: Listener | None = None,
        build: bool = False,
        site: tuple[fx.SourceFrame, ...] | None = None,
        shared: SharedGraphs | None = None,
    ) -> None:
        self.options = options or Options()
        self._site = site
        self._builder = Builder(title, self.options, environment(), listener)
        self._recorder = Recorder(self._builder, build=build or builds(self.options), shared=shared)
        self._observation: dynamo.Observation | None = None
        self._calls: list[Call] = []
        self.shardings: tuple[Sharding, ...] = ()
        """How the DTensors of the first call are split; their parameters may be gathered after it."""
        self._stack = ExitStack()
        self._launches = ExitStack()
        """Closed after `_stack`, as measurements after the call run its kernels again."""

    @property
    def record(self) -> Record:
        """The record so far; complete after the end of the block."""
        return self._builder.record()

    @property
    def kept(self) -> Mapping[str, KeptFrame]:
        """Kept graphs and first inputs, by capture id ("0/0"); inputs are copied only if `check` is set."""
        return self._recorder.kept

    @property
    def call(self) -> Call | None:
        """The first call of the compiled function; None if there was none."""
        return replace(self._calls[0], later=tuple(self._calls[1:])) if self._calls else None

    def result(self, value: Any = None) -> Explored:
        """The result so far: the record, `value` (the call's return value), and objects to run the call again."""
        return Explored(self.record, value, self.kept, self.call, self.files(), self.shardings)

    def __enter__(self) -> Exploration:
        warn_of_newer_torch()
        with ExitStack() as launches, ExitStack() as stack:
            launches.enter_context(revert_leftover_fx_patches())
            gpu = self.options.target if is_virtual(self.options.target) else DEFAULT_TARGET
            launches.enter_context(interpret_launches(target(gpu), self._builder.problem))
            on_gpu = destination(self.options, [torch.device("cpu")]).gpu is not None
            launches.enter_context(attend_as_on("cuda" if on_gpu else "cpu"))
            if self.options.backend != "eager":
                launches.enter_context(untraced_backwards(self._recorder.uncompiled))
            if on_gpu and not torch.cuda.is_available():
                launches.enter_context(replace_attribute(torch.autocast, "__init__", begin_on_cpu))
            stack.callback(self._recorder.finish)
            observer = untimed_observer(self._recorder, self._recorder.torch_time)
            self._observation = stack.enter_context(dynamo.observe(observer))
            stack.enter_context(self._recorder.record_phases(self._observation))
            stack.enter_context(call_before_enabling(self._recorder.stop_hearing))
            if self.options.step:
                stack.enter_context(self._recorder.record_steps(self.options.step))
            stack.enter_context(allow_passes_of_ranks(self.options.options))
            self._stack, self._launches = stack.pop_all(), launches.pop_all()
            self._recorder.hooks.prepare(self._stack, self._observation.is_observing)
        return self

    @property
    def has_graphs(self) -> bool:
        """Whether a graph has been captured."""
        return any(frame.graphs for frame in self._builder.frames.values())

    def discard(self) -> None:
        """End the exploration without measuring anything, as another one replaces it."""
        with self._launches:
            self._stack.close()
        self._calls.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._launches:
            self._finish(kind)

    def _finish(self, kind: type[BaseException] | None) -> None:
        self._recorder.hooks.stop()
        with self._stack, _grad_mode(self.options.grad):
            if kind is None:
                self._builder.pipelines.extend(self._pipelines())
                self._mark_first_call_breaks()
                self._measure()
        if not self.has_graphs and all(problem.stage != "captured" for problem in self._builder.problems):
            self._builder.problem(_no_graph_problem(self._recorder))
        for problem in SimulatedGroup.active.problems() if SimulatedGroup.active else ():
            self._builder.problem(problem)
        try:
            if kind is None:
                self._time()
                self._add_what_is_asked()
        finally:
            self._builder.finish()

    def _pipelines(self) -> list[PipelineSchedule]:
        """The schedules that the first call reaches, and those that a simulated rank made."""
        made = SimulatedGroup.active.schedules if SimulatedGroup.active is not None else []
        if not self._calls:
            return pipeline_schedules(None, made)
        call = self._calls[0]
        return pipeline_schedules(call.fn, [*tree_leaves((call.args, call.kwargs)), *made])

    def _time(self) -> None:
        """Time the candidates for the first call, if `time` is set. Results so far are kept after an interrupt."""
        if not self._is_timed:
            return
        # Imported lazily: importing torch.utils.benchmark takes longer than exploring a small function.
        from compiler.timing.candidate_times import time_call

        time_call(self._builder, self.call)
        if self.call is not None and not self._builder.line_times:
            from compiler.timing.profile_again import profile_copy

            profile_copy(self._builder, self.call, explore_again)

    def _add_what_is_asked(self) -> None:
        """Add the stages and checks that the options request. Results so far are kept after an interrupt."""
        builder, asked, first = self._builder, self.options, self._calls[0] if self._calls else None
        stages = set(asked.stages)
        add_block_masks(builder, self._recorder.kept)
        add_regions(builder, self._recorder.kept, first)
        if asked.vs:
            builder.versus = _explore_with_backend(builder, first)
        if "exported" in stages and first is not None:
            from compiler.export.exporting import add_exported

            add_exported(builder, first, self._recorder.book)
            self._recorder.add_sources()
        # If the code is built and run, memory is measured only on request (`run.memory`): recording must not slow
        # down the measured call.
        if builder.memory and not self._recorder.build:
            from compiler.autograd.eager_memory import add_eager_memory

            with unset_fake_temporarily():
                add_eager_memory(builder, self._recorder.kept_here)
        if builder.memory and (tape := self._recorder.hooks.tape()).entries:
            from compiler.distributed.rank_memory import add_rank_memory

            add_rank_memory(builder, tape)
        if "decomposed" in stages:
            from compiler.decompose.graphs import add_levels

            add_levels(builder, self._recorder.kept)
        if asked.check is True and not self._has_no_values:
            self._check_stages(first)
        if {*MACHINE_STAGES, "all"} & stages:
            from compiler.binary.compiling import compile_kernels

            compile_kernels(builder)
        if asked.check == "kernels" and not self._has_no_values:
            from compiler.numerics.kernel_check import check_kernels

            builder.start("timing")
            check_kernels(builder, self.kept)

    def _check_call(self, call: Call) -> None:
        """Compare the results of the first call with eager's."""
        from compiler.numerics.call_check import CallCheck

        pause = self._observation.pause_observing if self._observation is not None else nullcontext
        self._builder.checks.extend(CallCheck(call, self.kept, pause).checks())

    def _check_stages(self, first: Call | None) -> None:
        """Compare each stage with eager and float64; for a GPU that is not present, compare on the CPU."""
        if self._calls_sharded():
            self._builder.problem(SHARDED)
        elif is_virtual(self.options.target):
            if first is not None:
                _check_on_cpu(self._builder, first)
        else:
            from compiler.numerics.stage_check import check_stages

            self._builder.start("timing")
            check_stages(self._builder, self.kept)

    def _measure(self) -> None:
        """Time breaks and check the first call, if requested. A failure becomes a Problem."""
        checks = self.options.check is True and not is_virtual(self.options.target)
        if not self._calls or not (self._is_timed or checks) or self._has_no_values:
            return
        # Imported lazily: importing torch.utils.benchmark takes longer than exploring a small function.
        self._builder.start("timing")
        try:
            if self._is_timed:
                self._time_breaks(self._calls[0])
                if self._recorder.build:
                    from compiler.timing.profile_again import profile_in_place

                    profile_in_place(self._builder, self._calls[0], self.files())
            if checks:
                self._check_call(self._calls[0])
        except Exception as error:  # noqa: BLE001 - the user's call may raise anything when it is repeated
            self._builder.problem(cannot_repeat(error))

    @functools.cached_property
    def _has_no_values(self) -> bool:
        """Whether the first call gives no values: it has meta tensors, or its process group is simulated.

        If so, add a Problem if measurements were requested.
        """
        is_on_meta = bool(self._calls) and "meta" in self._calls[0].devices()
        has_no_values = is_on_meta or is_simulated()
        if has_no_values and (self.options.time or self.options.check):
            self._builder.problem(ON_META if is_on_meta else NOT_SENT)
        return has_no_values

    @functools.cached_property
    def _is_timed(self) -> bool:
        """Whether to time the call. If it was asked for beside other ranks, add a Problem."""
        if not self.options.time or self._has_no_values:
            return False
        if count_ranks() > 1:
            self._builder.problem(OTHER_RANKS)
            return False
        return True

    def _calls_sharded(self) -> bool:
        """Whether the first call uses DTensors, whose graphs can't be run one by one."""
        return bool(self._calls) and any(map(is_dtensor, _tensors_of(self._calls[0])))

    def _mark_first_call_breaks(self) -> None:
        """Mark breaks that occur only in a first call. Do nothing if no break depends on a condition."""
        breaks = self._builder.breaks
        if not (breaks and self._calls and self._observation) or self.options.fullgraph:
            return
        from compiler.calls.first_call import mark_first_call_breaks, may_run_once

        files = {name: file for file, name in self.files().items()}
        if any(may_run_once(found, files) and not is_by_design(found) for found in breaks):
            pause_observing = self._observation.pause_observing
            call, frames = self._calls[0], self._builder.frames
            breaks[:] = mark_first_call_breaks(breaks, call, self.options.dynamic, pause_observing, files, frames)

    def files(self) -> dict[str, str]:
        """Names of source files in the record, by path."""
        book = self._recorder.book
        return {file: book.name(file) for file in book.lines}

    def _time_breaks(self, call: Call) -> None:
        """Time each graph break against a version of the code without it, if there is such a version."""
        if not self._builder.breaks or self._observation is None:
            return
        from compiler.timing.break_cost import BreakTimer

        files = {name: file for file, name in self.files().items()}
        timer = BreakTimer(call, lambda: self._compile(call.fn), self._observation.pause_observing, files)
        first = [frame.id for frame in self._builder.frames.values() if frame.call_number <= 1]
        self._builder.breaks[:] = timer.time_breaks(self._builder.breaks, first)

    def _compile(self, fn: Function) -> Function:
        backend, options = _backend(self.options), self.options
        return dynamo.compile_function(fn, backend, dynamic=options.dynamic, fullgraph=options.fullgraph)

    def compile(self, fn: Function) -> Function:
        """Compile `fn` (a module, function or bound method); return the callable to use in its place in the block."""
        if self._observation is None:
            raise RuntimeError("Exploration.compile is for use inside `with Exploration(...) as exploration:`")
        if not self._builder.title:
            self._builder.title = title_of(fn)
        return dynamo.replace_when_traced(functools.partial(self._call, fn, self._compile(fn)), fn)

    def _call(self, fn: Function, compiled: Function, /, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        self._build_on_gpu(fn, args, kwargs)
        recorder.call_site = _call_site(sys._getframe(1)) if self._site is None else self._site
        recorder.call_number += 1
        recorder.skips.disabled = dynamo.reason_disabled()
        recorder.hooks.begin()
        self._builder.calls = recorder.call_number
        try:
            with _grad_mode(self.options.grad):
                before, number = self._state_before(fn, args, kwargs), recorder.call_number
                around = replace(Surroundings.current(), group=SimulatedGroup.active)
                call = Call(fn, compiled, args, kwargs, around, site=recorder.call_site, before=before, number=number)
                return self._call_and_keep(call)
        except Exception as error:
            if not (self.options.fullgraph and dynamo.is_dynamo_error(error)):
                raise
            return fn(*args, **kwargs)

    def _state_before(self, fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StateBefore | None:
        """Save the state before one of the first calls, for an x-ray; None for later calls, or under torch modes."""
        is_late = self._recorder.call_number > MOST_LATER_CALLS
        return None if is_late or has_modes() else state_before(fn, args, kwargs)

    def _call_and_keep(self, call: Call) -> Any:
        """Make a call; keep it if it is the first, triggered a compilation, or has new arguments after a break."""
        if not self._calls:
            self._calls.append(call)
            self.shardings = shardings(_tensors_of(call))
            self._builder.place = place_of_process(self.shardings)
        known = len(self._builder.frames)
        try:
            with decide_without_other_stages():
                return call.compiled(*call.args, **call.kwargs)
        finally:
            first, *later = self._calls
            is_new = len(self._builder.frames) > known or (bool(self._builder.breaks) and self._has_new_arguments(call))
            if is_new and call is not first and call.fn is first.fn and len(later) < MOST_LATER_CALLS:
                self._calls.append(call)

    def _has_new_arguments(self, call: Call) -> bool:
        """Whether the arguments differ in sizes or plain values from those of all kept calls."""
        from compiler.xray.changing_values import kind_of  # only programs with graph breaks need the x-ray

        of_call = [kind_of((tuple(each.args), dict(each.kwargs))).aspect("value") for each in (*self._calls, call)]
        return of_call[-1] not in of_call[:-1]

    def _build_on_gpu(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Build code if tensors are on a GPU, but not for meta tensors. Raises OptionError for another target."""
        if is_virtual(self.options.target):
            return
        parameters = list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []
        device = tensors_device([*args, *kwargs.values(), *parameters])
        _check_target(self.options.target, device)
        if device is not None and device.type != "cpu":
            self._recorder.build = device.type != "meta"


def explore(
    fn: Function,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    options: Options | None = None,
    listener: Listener | None = None,
    calls: Sequence[Sequence[Any]] = (),
    site: tuple[fx.SourceFrame, ...] | None = None,
    shared: SharedGraphs | None = None,
    copies_inputs: bool = False,
) -> Explored:
    """Call `fn(*args, **kwargs)` under torch.compile and record every stage. Raises what `fn` raises.

    With `calls`, a sequence of argument tuples, `fn` is called once for each, and the value is a list of the results.
    `site` and `shared` are as for `Exploration`. With `copies_inputs`, inputs of graphs are kept as before the call.
    """
    with Exploration(options, listener=listener, site=site, shared=shared) as exploration:
        exploration._recorder.copies_inputs |= copies_inputs
        compiled = exploration.compile(fn)
        values = [compiled(*each, **(kwargs or {})) for each in calls or [args]]
        value = values if calls else values[0]
    return exploration.result(value)


def explore_again(
    call: Call,
    options: Options,
    listener: Listener | None = None,
    *,
    build: bool = False,
    inside: Callable[[Explored], None] | None = None,
) -> Explored:
    """Repeat a call on copies, without side effects, and record every stage. Raises what the call raises.

    With `build`, code is built regardless of the options. `inside` is called before the exploration ends.
    """
    group = call.surroundings.group
    in_group = group.enter() if group is not None else nullcontext()
    with in_group, Exploration(options, listener=listener, build=build, site=call.site or None) as exploration:
        call_again(call, exploration.compile)
        if inside is not None:
            inside(exploration.result())
    return exploration.result()


def _explore_with_backend(builder: Builder, call: Call | None) -> Record | None:
    """Explore the call with the backend that `vs` names. A failure becomes a Problem."""
    asked = builder.options.vs
    if call is None:
        reason = f"there is no call to compile with {asked} too: the cell calls torch.compile itself"
        builder.problem(Problem("kernels", reason, "call the model or function itself, without torch.compile"))
        return None
    builder.start("kernels")
    builder.progress("kernels", f"the same call with backend {asked}")
    try:
        return explore_again(call, _options_of_other(builder.options, builder.target)).record
    except Exception as error:  # noqa: BLE001 - the user's call may raise anything when it is repeated
        builder.problem(cannot_repeat(error, "kernels", f"the call could not be repeated with backend {asked}"))
        return None


def _options_of_other(options: Options, gpu: str) -> Options:
    """Options for exploring with the backend that `vs` names, for the same target.

    `options` are left out, as they belong to the first backend, and so is `time`: the second backend is timed as a
    candidate of the first exploration.
    """
    own = replace(options, backend=options.vs, vs="", options={}, target=gpu, time=False, check=False, step=False)
    return own if options.vs in WRITERS else replace(own, mode="default")


def _check_on_cpu(builder: Builder, call: Call) -> None:
    """Check a compilation for the CPU, for a record whose target GPU is not present. A failure becomes a Problem."""
    builder.start("timing")
    options = builder.options
    try:
        found = explore_again(call, replace(options, target="cpu", stages=(), time=False, step=False)).record
    except Exception as error:  # noqa: BLE001 - the user's call may raise anything when it is repeated
        builder.problem(cannot_repeat(error))
        return
    known = {entity.id for artifact in builder.artifacts.values() for entity in artifact.entities}
    gpu = target(options.target).title
    builder.checks.extend(_say_where_it_ran(check, gpu, known) for check in found.checks)
    for problem in found.problems:
        builder.problem(replace(problem, reason=f"in the check on the CPU: {problem.reason}"))


def _say_where_it_ran(check: Check, gpu: str, known: set[str]) -> Check:
    """A check made on the CPU, adapted to this record: the check of the call notes which code was run; in other checks,
    `node` is dropped if the record does not contain it.
    """
    if check.subject != "the call" or check.stage:
        return check if check.node in known else replace(check, node="")
    label = (
        f"numbers of the code for the CPU, as {gpu} is not here: check='kernels' (--check kernels) runs the kernels "
        "for it in Triton's interpreter"
    )
    return replace(check, note="; ".join(filter(None, [label, check.note])))


def _tensors_of(call: Call) -> list[Any]:
    """Leaves of a call's arguments, and its module's parameters and buffers."""
    module = call.fn if isinstance(call.fn, torch.nn.Module) else getattr(call.fn, "__self__", None)
    own = [*module.parameters(), *module.buffers()] if isinstance(module, torch.nn.Module) else []
    return [*tree_leaves((call.args, call.kwargs)), *own]


def _backend(options: Options) -> Any:
    asked = options.compile_arguments()
    if asked["backend"] == "tcompile":
        from compiler.backend import tcompile

        return functools.partial(tcompile, mode=asked.get("mode"), options=asked.get("options"))
    if asked["backend"] != "inductor":
        return dynamo.named_backend(asked["backend"])
    return inductor.inductor_backend(options.mode, asked.get("options", {}), options.dynamic)


def _check_target(target: str, device: torch.device | None) -> None:
    """Check that the target matches the device of the tensors. Raises OptionError."""
    if (
        not target
        or device is None
        or target.partition(":")[0] == device.type
        or (target.partition(":")[0], device.type) == ("cpu", "meta")
    ):
        return
    if device.type == "meta":
        where = (
            f"the meta device, which nothing runs on: make them with device={target!r}, or name a GPU as target, such "
            "as 'h100', whose code is written without running it"
        )
    else:
        where = f"{device}: move the model and its inputs with .to({target!r}), or leave the target out"
    raise OptionError(f"target={target!r}, but the tensors are on {where}")


def _grad_mode(grad: bool | None) -> Any:
    return ExitStack() if grad is None else torch.set_grad_enabled(grad)


def _call_site(frame: FrameType | None) -> tuple[fx.SourceFrame, ...]:
    """The line of the user's code that made this call, directly or through a package.

    The innermost caller if none is the user's; () if there is no caller.
    """
    callers = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OWN_FOLDERS):
            callers.append(frame)
        frame = frame.f_back
    own = (caller for caller in callers if not is_installed(caller.f_code.co_filename))
    return tuple(
        fx.SourceFrame(caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name, "")
        for caller in [*own, *callers][:1]
    )


_NOTHING_RAN = "call the function inside the cell, on tensors; tcompile.export(f, x) tells what torch.export does"


def _no_graph_problem(recorder: Recorder) -> Problem:
    """The Problem that explains why there is no graph, from Dynamo's reasons."""
    builder = recorder.builder
    if recorder.skips.disabled:
        return Problem("captured", f"nothing was compiled: {recorder.skips.disabled}", "explore without that setting")
    whys = [found.what for found in builder.breaks]
    whys += [f"{frame.function}: {frame.reason}" for frame in builder.frames.values() if frame.reason]
    whys += [f"{skip.code.co_name}: {skip.words}" for skip in recorder.skips.found]
    reason = whys[0].splitlines()[0] if whys else "no frame with tensor operations was seen"
    hint = "the function ran as plain Python" if whys else _NOTHING_RAN
    return Problem("captured", f"nothing was compiled: {reason}", hint)
