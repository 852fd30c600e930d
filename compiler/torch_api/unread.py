"""Skip TorchDynamo's work that only feeds unread logs and metrics.

For each compiled frame TorchDynamo checks the guards once with cold CPU caches (20 ms), for a log and a metric. It
reads whole files to find function names, for a log. It imports torch.distributed.tensor.experimental (0.1 s per
process) to check whether a value is a function of that module, which matters only if local_map support is enabled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch._dynamo
import torch._dynamo.config as dynamo_config
import torch._dynamo.guards as guards
import torch._dynamo.output_graph as output_graph
import torch._dynamo.symbolic_convert as symbolic_convert
from torch._C._dynamo.guards import profile_guard_manager
from torch._dynamo.callback import callback_handler
from torch._dynamo.variables.higher_order_ops import LocalMapWrappedHigherOrderVariable
from torch._guards import CompileContext

from compiler.torch_api.patching import Function, Wrapper, call_instead, replace_attributes

_NAMING_LOGS = (symbolic_convert.trace_source_log, symbolic_convert.trace_call_log, output_graph.trace_call_log)
_TRACE = logging.getLogger("torch.__trace")
_inside: list[bool] = []


@contextmanager
def skip_unread_work() -> Iterator[None]:
    """Skip work of TorchDynamo in the block that only serves logs and traces, if these are off.

    The compilation metric `guard_latency_us` is then 0.
    """
    wrappers: list[Wrapper] = [
        (guards, "profile_guard_manager", lambda time: check_once if time is profile_guard_manager else time),
        (LocalMapWrappedHigherOrderVariable, "should_wrap_in_hop", call_instead(_ask_if_enabled)),
    ]
    if not _is_on(*_NAMING_LOGS):
        wrappers.append((symbolic_convert, "get_funcname", lambda _: lambda *_: None))
    _inside.append(True)
    try:
        with replace_attributes(wrappers):
            yield
    finally:
        _inside.clear()


def check_once(root: Any, f_locals: dict[str, Any], *args: Any) -> float:
    """Time of one guard check in microseconds, measured by torch; 0.0 inside `skip_unread_work` if no log shows it."""
    if _inside and not _is_on(guards.guards_log) and not _TRACE.handlers:
        return 0.0
    return float(profile_guard_manager(root, f_locals, *args))


def _is_on(*logs: logging.Logger) -> bool:
    return any(log.isEnabledFor(logging.DEBUG) for log in logs)


def _ask_if_enabled(ask: Function, value: Any) -> bool:
    return LocalMapWrappedHigherOrderVariable._enabled and ask(value)


def without_marks() -> None:
    """Omit profiler marks from the code that TorchDynamo generates for the current frame.

    The marks (torch._dynamo.config.record_runtime_overhead) add two function calls, a fifth of a small call's time.
    """
    if not dynamo_config.record_runtime_overhead or CompileContext.try_get() is None:
        return
    dynamo_config.record_runtime_overhead = False
    _unmarked.append(True)
    if _with_marks not in callback_handler.end_callbacks:  # torch._dynamo.reset drops them
        callback_handler.register_end_callback(_with_marks)


_unmarked: list[bool] = []


@torch._dynamo.disable  # type: ignore[untyped-decorator]
def _with_marks(_: Any) -> None:
    """Restore the setting. Not traced, because torch calls this function while it holds the lock of its callbacks.

    TorchDynamo would deadlock if it compiled this frame, for example when a backward is compiled inside a compiled
    function.
    """
    if _unmarked:
        _unmarked.clear()
        dynamo_config.record_runtime_overhead = True
