"""Observe collectives outside of graphs: those of FSDP's and DDP's hooks, of the user's Python, and of eager DTensors.

Methods of `ProcessGroup` are replaced, because torch skips compiling under a TorchDispatchMode. The collectives of a
graph don't come through here: their operators call the process group in C++. So do those of DTensor, which are seen
where it redistributes a tensor in eager code, and functional collectives, which a simulated rank's function mode sees.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (  # type: ignore[attr-defined]
    GradBucket,
    ProcessGroup,
    ReduceOp,
    _create_work_from_future,
)
from torch._guards import TracingContext
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.parallel import DistributedDataParallel

from compiler.record import CollectiveKind
from compiler.record.break_facts import Place
from compiler.torch_api import fx
from compiler.torch_api.collectives import Message, OperatorCalls, group_facts, message_of_call, rank_numbered
from compiler.torch_api.dtensor import placement_names, redistribution_callers
from compiler.torch_api.fsdp_units import FsdpUnit, is_of_fsdp, outer_frames, unit_of_frames, wrapped_module
from compiler.torch_api.missing_gpus import observe_operators
from compiler.torch_api.patching import (
    Function,
    call_hidden,
    hide_frame,
    replace_attribute,
    stack_height,
)

_BOTH, _OUTPUT_FIRST, _SENT, _RECEIVED, _NONE = "both", "output first", "sent", "received", "none"
METHODS: dict[str, tuple[CollectiveKind, str]] = {
    "allreduce": ("all_reduce", _BOTH),
    "allreduce_coalesced": ("all_reduce", _BOTH),
    "allgather": ("all_gather", _OUTPUT_FIRST),
    "_allgather_base": ("all_gather", _OUTPUT_FIRST),
    "all_gather_single": ("all_gather", _OUTPUT_FIRST),
    "allgather_coalesced": ("all_gather", _OUTPUT_FIRST),
    "all_gather_single_coalesced": ("all_gather", _OUTPUT_FIRST),
    "allgather_into_tensor_coalesced": ("all_gather", _OUTPUT_FIRST),
    "reduce_scatter": ("reduce_scatter", _OUTPUT_FIRST),
    "_reduce_scatter_base": ("reduce_scatter", _OUTPUT_FIRST),
    "reduce_scatter_single": ("reduce_scatter", _OUTPUT_FIRST),
    "reduce_scatter_single_coalesced": ("reduce_scatter", _OUTPUT_FIRST),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", _OUTPUT_FIRST),
    "alltoall": ("all_to_all", _OUTPUT_FIRST),
    "alltoall_base": ("all_to_all", _OUTPUT_FIRST),
    "all_to_all_single": ("all_to_all", _OUTPUT_FIRST),
    "broadcast": ("broadcast", _BOTH),
    "reduce": ("reduce", _BOTH),
    "gather": ("gather", _OUTPUT_FIRST),
    "scatter": ("scatter", _OUTPUT_FIRST),
    "send": ("send", _SENT),
    "recv": ("recv", _RECEIVED),
    "recv_anysource": ("recv", _RECEIVED),
    "barrier": ("barrier", _NONE),
}
"""Methods of ProcessGroup, and which of their arguments are tensors. Versions of torch have some under two names."""
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM")
_WAIT_LATER, _OWN_FRAMES = ("irecv", "batch_isend_irecv"), 8
"""Functions of torch.distributed that receive without waiting, and how many frames above a method they are at most."""
_JOIN = "torch.distributed.algorithms.join"
_TORCH = f"{torch.__path__[0]}/"
_TOP = Path(__file__).parents[2]
_NOT_USERS = (_TORCH, f"{_TOP}/compiler/", f"{_TOP}/explorer/", "<")


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall(Message):
    """A collective that Python code calls outside of graphs.

    `unit` is set if FSDP calls it, `bucket` is the number of DDP's bucket, from 1, if its communication hook does.
    `is_prefetch` is whether FSDP gathers the unit ahead of its turn. `places` are the
    callers outside of torch, innermost first.
    """

    in_backward: bool
    unit: FsdpUnit | None
    is_prefetch: bool
    is_of_ddp: bool
    places: tuple[Place, ...]
    bucket: int = 0
    of_dtensor: str = ""
    """What DTensor calls it for, as a clause; "" if it does not."""
    is_of_join: bool = False
    """Whether torch.distributed.algorithms.Join calls it, or a hook that it runs."""


@contextmanager
def watch_collectives(observe: Callable[[HookCall], None], base: int = 0) -> Iterator[HookWatch]:
    """Report each collective that Python code calls in the block.

    Frames of this thread below the height `base` are left out: they call the exploration, and are not the program's.
    """
    watch = HookWatch(observe, base)
    with watch.stack:
        for name in filter(ProcessGroup.__dict__.__contains__, METHODS):
            observed = partial(watch.observe_method, name)
            watch.stack.enter_context(replace_attribute(ProcessGroup, name, observed))
        if "torch.distributed.tensor" in sys.modules:  # else, no DTensor exists
            for owner in redistribution_callers():
                change = watch.report_inside(_words_of_redistribution)
                watch.stack.enter_context(replace_attribute(owner, "redistribute_local_tensor", change))
        if loss := sys.modules.get("torch.distributed.tensor.parallel.loss"):
            for name in ("_log_softmax", "_nll_loss_forward"):
                watch.stack.enter_context(replace_attribute(loss, name, watch.report_inside(_words_of_loss)))
        watch.stack.enter_context(observe_operators(watch.observe_operator))
        yield watch


class HookWatch:
    """The replaced methods during one `watch_collectives`."""

    def __init__(self, observe: Callable[[HookCall], None], base: int) -> None:
        self.observe = observe
        self._base, self._thread = base, get_ident()
        self.stack = ExitStack()
        self._reducing: dict[int, _Reducing] = {}
        """The groups that reducers have now, by their id; C++ doesn't keep the Python part of one alive."""
        self._leaves_out = 0

    @contextmanager
    def leave_out_redistributions(self) -> Iterator[None]:
        """Report no collectives of operators in the block."""
        self._leaves_out += 1
        try:
            yield
        finally:
            self._leaves_out -= 1

    def report_inside(self, words: Function) -> Callable[[Function], Function]:
        """A decorator: report the collectives that a function's operators call; `words` say what for.

        TorchDynamo traces none of our frames, and the function as without us. A function that is traced into a graph is
        left out, and so is a backward: where graphs are run by eager code, it can't be told from that of a graph.
        """

        def make(original: Function) -> Function:
            @hide_frame
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                reporting = call_hidden(self._start_reporting, words, args)
                if reporting is None:
                    return original(*args, **kwargs)
                try:
                    return original(*args, **kwargs)
                finally:
                    call_hidden(reporting.close)

            return wrapper

        return make

    def _start_reporting(self, words: Function, args: Sequence[Any]) -> ExitStack | None:
        """Report operators of collectives until the stack is closed; None if they are not to be reported."""
        is_traced = get_proxy_mode() is not None or TracingContext.try_get() is not None
        if self._leaves_out or is_traced or torch._C._current_graph_task_id() != -1:
            return None
        places = self._user_places(list(outer_frames(sys._getframe(1))))
        with ExitStack() as stack:
            stack.enter_context(OperatorCalls(partial(self._report_operator, places, words(*args))))
            stack.enter_context(self.leave_out_redistributions())
            return stack.pop_all()

    def observe_operator(self, *call: Any) -> None:
        """Report a functional collective that eager code of the program calls."""
        is_traced = get_proxy_mode() is not None or TracingContext.try_get() is not None
        if not (self._leaves_out or is_traced):
            self._report_operator(self._user_places(list(outer_frames(sys._getframe(2)))), "", *call)

    def _report_operator(self, places: tuple[Place, ...], why: str, *call: Any) -> None:
        message = message_of_call(*call)
        if message is not None:
            shared = {each.name: getattr(message, each.name) for each in fields(Message)}
            in_backward = torch._C._current_graph_task_id() != -1
            self.observe(HookCall(**shared, in_backward=in_backward, unit=None, is_prefetch=False, is_of_ddp=False,
                                  places=places, of_dtensor=why))  # fmt: skip

    def observe_method(self, name: str, call: Function) -> Function:
        """The replacement of one method of ProcessGroup."""

        def report(group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            work = call(group, *args, **kwargs)
            frames = list(outer_frames(sys._getframe(3)))
            found = _hook_call(name, group, (*args, *kwargs.values()), frames, self._user_places(frames))
            self.observe(found)
            return finished_work(args[0]) if found.kind == "all_reduce" and _backend(group) == "fake" else work

        # In a Python subclass, pybind11 takes our method for an override, and calls it again unless it is the caller.
        report.__code__ = report.__code__.replace(co_name=name)

        @hide_frame  # some of FSDP's hooks run where TorchDynamo would trace ours
        def call_and_report(group: Any, *args: Any, **kwargs: Any) -> Any:
            return call_hidden(report, group, args, kwargs)

        return call_and_report

    def _user_places(self, frames: list[FrameType]) -> tuple[Place, ...]:
        """The places of the user's program among frames, innermost first."""
        if get_ident() == self._thread:
            frames = frames[: max(stack_height(frames[0]) - self._base + 1, 0)]
        return tuple(_place(each) for each in frames if _is_of_user(each.f_code.co_filename))

    def watch_active_ddp(self) -> Any:
        """Return the DDP module whose forward runs now, if any; let its reducer call all_reduce through Python.

        A reducer calls its process group in C++, and fails on the empty result of a fake group. It has its own group
        again after the block.
        """
        module: Any = DistributedDataParallel._get_active_ddp_module()
        if (
            module is not None
            and _backend(module.process_group) in ("fake", "gloo")
            and id(module.reducer) not in self._reducing
        ):
            group = self._reducing[id(module.reducer)] = _Reducing(module.process_group)
            module.reducer._update_process_group(group)
            self.stack.callback(module.reducer._update_process_group, module.process_group)
        return module


def _words_of_redistribution(_tensor: Any, source: Any, target: Any, *_: Any) -> str:
    return f"DTensor redistributes {' → '.join(', '.join(placement_names(spec)) for spec in (source, target))}"


def _words_of_loss(*_: Any) -> str:
    return "cross entropy under loss_parallel() combines what all ranks have"


class _Reducing(ProcessGroup):
    """A process group for DDP's reducer that calls another group in Python."""

    def __init__(self, group: Any) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._group = group

    @hide_frame
    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return call_hidden(_backend, self._group)


def _delegate(name: str) -> Function:
    @hide_frame  # DDP's reducer calls its group in a forward, too, where TorchDynamo would trace it
    def call(self: Any, *args: Any) -> Any:
        return call_hidden(getattr(self._group, name), *args)

    return call


for _name in filter(ProcessGroup.__dict__.__contains__, METHODS):
    setattr(_Reducing, _name, _delegate(_name))


def finished_work(tensors: Any) -> Any:
    """A Work that is done, with these tensors as its result; that of a fake group has none."""
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    return _create_work_from_future(future)


def _backend(group: Any) -> str:
    """The name of a process group's backend, "" if it is not registered."""
    try:
        return str(dist.get_backend(group))
    except ValueError:
        return ""


def current_unit_module() -> int:
    """The id of the innermost module on the stack that FSDP wraps; 0 if there is none."""
    for frame in outer_frames(sys._getframe(1)):
        if (module := wrapped_module(frame)) is not None:
            return id(module)
    return 0


def _hook_call(
    name: str, group: Any, values: Sequence[Any], frames: Sequence[FrameType], places: tuple[Place, ...]
) -> HookCall:
    kind, order = METHODS[name]
    first, second = (_tensors(value) for value in (*values[:2], None, None)[:2])
    inputs = [] if order in (_RECEIVED, _NONE) else second if order == _OUTPUT_FIRST else first
    outputs = [] if order in (_SENT, _NONE) else first
    functions = {each.f_code.co_name for each in frames[:_OWN_FRAMES]}
    waits_later = kind == "recv" and "recv" not in functions and not functions.isdisjoint(_WAIT_LATER)
    of_fsdp = [each for each in frames if is_of_fsdp(each)]
    given, over = inputs or outputs, group_facts(group)
    in_backward = torch._C._current_graph_task_id() != -1
    is_of_ddp = any(isinstance(each.f_locals.get("self"), _Reducing) for each in frames[:3] if _is_own(each))
    return HookCall(
        kind=kind,
        operator=f"i{name}" if waits_later else name,
        group=over,
        peer=rank_numbered(values[1], over) if order in (_SENT, _RECEIVED) and len(values) > 1 else -1,
        root=next((rank_numbered(each.rootRank, over) for each in values if hasattr(each, "rootRank")), -1),
        reduction=_reduction(values) if "reduce" in kind else "",
        dtype=", ".join(dict.fromkeys(fx.dtype_name(each.dtype) for each in given)),
        tensors=len(given),
        input_bytes=_bytes(inputs),
        output_bytes=_bytes(outputs),
        in_backward=in_backward,
        unit=unit_of_frames(of_fsdp),
        is_prefetch=any("prefetch" in each.f_code.co_name for each in of_fsdp),
        is_of_ddp=is_of_ddp,
        places=places,
        bucket=_bucket_of_hook(frames[:_OWN_FRAMES]) if in_backward and not (of_fsdp or is_of_ddp) else 0,
        is_of_join=any(each.f_globals.get("__name__") == _JOIN for each in frames),
    )


def _bucket_of_hook(frames: Iterable[FrameType]) -> int:
    """The number of the bucket that a communication hook of DDP was called with, from 1; 0 if none is running."""
    values = (value for frame in frames for value in frame.f_locals.values())
    return next((value.index() + 1 for value in values if isinstance(value, GradBucket)), 0)


def _is_of_user(file: str) -> bool:
    """Whether a file is the user's; IPython names a cell in angle brackets where no kernel runs it."""
    return file.startswith("<ipython-input") or not file.startswith(_NOT_USERS)


def _place(frame: FrameType) -> Place:
    return Place(frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno)


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename == __file__


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in _tensors(each)] if isinstance(value, list | tuple) else []


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(fx.tensor_bytes(tensor) for tensor in tensors)


def _reduction(values: Sequence[Any]) -> str:
    """Name of the reduction among a call's arguments, or in its options: "sum", "avg"."""
    found = next((getattr(value, "reduceOp", value) for value in reversed(values) if _has_reduction(value)), None)
    return next((name.lower() for name in _REDUCTIONS if found is not None and found == getattr(ReduceOp, name)), "sum")


def _has_reduction(value: Any) -> bool:
    return hasattr(value, "reduceOp") or isinstance(value, ReduceOp | ReduceOp.RedOpType)
