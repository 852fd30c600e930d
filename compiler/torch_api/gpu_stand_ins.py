"""What programs call of torch.cuda and torch.accelerator, without a GPU: answers about one, streams, events.

torch itself, Triton and tcompile get the answers for this machine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch._dynamo.variables.functions import invoke_and_store_as_constant

from compiler.torch_api.patching import Function, Wrapper, call_instead

_TOP = Path(__file__).parents[2]
_PACKAGES = Path(torch.__path__[0]).parent
_NOT_PROGRAMS = (f"{_PACKAGES}/torch/", f"{_PACKAGES}/triton/", f"{_TOP}/compiler/", f"{_TOP}/explorer/")
_IN_TRACES = invoke_and_store_as_constant.__code__
"""TorchDynamo calls marked functions of the program there, while it traces the program."""
_DEVICE = torch.device("cuda")
_ASKED = (
    "get_device_capability", "get_device_name", "get_device_properties", "get_rng_state", "is_available",
    "is_bf16_supported", "mem_get_info",
)  # fmt: skip
_UNDONE = (
    "init", "reset_accumulated_memory_stats", "reset_peak_memory_stats", "set_per_process_memory_fraction",
    "set_rng_state", "synchronize",
)  # fmt: skip


class Idle:
    """A stream or an event of a GPU that is not here, and the block in which one is used.

    All work is done at once; the time that it took is not known.
    """

    cuda_stream = 0

    def __init__(self, *_: Any, **_named: Any) -> None: ...

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: object) -> None: ...

    def ignore(self, *_: Any) -> None: ...

    record = synchronize = wait = wait_event = wait_stream = ignore

    def record_event(self, event: Idle | None = None) -> Idle:
        return event or Idle()

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: Idle) -> float:
        return math.nan


def stand_ins(local_rank: int, local_size: int, functions: Mapping[str, Function]) -> Iterator[Wrapper]:
    """Replacements for what programs call. `functions` are those of torch.cuda for the GPU that code is written for.

    Without `functions`, the code is for a CPU, and no GPU is said to be there.
    """
    numbers = {"device_count": local_size, "current_device": local_rank}
    for name, function in {name: functions[name] for name in _ASKED if name in functions}.items():
        yield torch.cuda, name, _answer(function)
    for name, number in numbers.items():
        yield torch.cuda, name, _answer(partial(_return, number))
    for owner, names in (
        (torch.cuda, _UNDONE), (torch.cuda.nvtx, ("mark", "range_pop", "range_push")),
        (torch.Tensor, ("record_stream",)), (distributed, ("broadcast_object_list",)),
    ):  # fmt: skip
        for name in names:
            yield owner, name, lambda _: _return
    for name in ("Event", "Stream", "current_stream", "default_stream", "device", "stream"):
        yield torch.cuda, name, lambda _: Idle
    if functions:
        yield distributed, "is_nccl_available", _answer(partial(_return, True))
        yield from _accelerator(local_rank, local_size)


def _accelerator(local_rank: int, local_size: int) -> Iterator[Wrapper]:
    answers = {
        "is_available": True, "current_accelerator": _DEVICE, "device_count": local_size,
        "current_device_index": local_rank, "current_device_idx": local_rank, "set_device_index": None,
        "set_device_idx": None, "synchronize": None,
    }  # fmt: skip
    for name, answer in answers.items():
        if hasattr(torch.accelerator, name):  # torch renamed some
            yield torch.accelerator, name, _answer(partial(_return, answer))


def _return(answer: Any = None, *_: Any, **_named: Any) -> Any:
    return answer


def _answer(function: Function) -> Callable[[Function], Function]:
    """A decorator: a program that calls the function gets the result of `function`, also where it is traced."""

    def make(original: Function) -> Function:
        answer = call_instead(partial(_answer_program, function))(original)
        answer._dynamo_marked_constant = True  # type: ignore[attr-defined]
        return answer

    return make


def _answer_program(function: Function, original: Function, *args: Any, **kwargs: Any) -> Any:
    caller = sys._getframe(2).f_code
    is_program = caller is _IN_TRACES or not caller.co_filename.startswith(_NOT_PROGRAMS)
    return (function if is_program else original)(*args, **kwargs)
