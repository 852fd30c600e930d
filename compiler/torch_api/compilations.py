"""Follow TorchDynamo's compilations for one backend, from before a frame is traced."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch._dynamo.callback import callback_handler
from torch._guards import CompileContext, CompileId
from torch.utils import _python_dispatch

CompileKey = tuple[int, int]
"""(frame id, compilation id within the frame), as torch numbers them in this process."""
NO_COMPILATION: CompileKey = (-1, -1)


def key_of(compile_id: CompileId) -> CompileKey:
    return (compile_id.frame_id or 0, compile_id.frame_compile_id or 0)


def current_key() -> CompileKey:
    """The key of the running compilation; NO_COMPILATION outside of one."""
    found = CompileContext.current_compile_id()
    return key_of(found) if found is not None else NO_COMPILATION


class Around:
    """Enters `block()` when TorchDynamo starts a compilation for `backend`, and leaves it when the compilation ends."""

    def __init__(self, backend: Callable[..., Any], block: Callable[[], AbstractContextManager[None]]) -> None:
        self.backend, self.block, self.entered = backend, block, ExitStack()
        self.begin, self.end = (torch._dynamo.disable(function) for function in (self._begin, self._end))

    def listen(self) -> None:
        """Register the callbacks now, and again after each `torch._dynamo.reset`, which drops all callbacks.

        After a reset they are registered at once, so that the next compilation is observed.
        """
        clear = callback_handler.clear

        def clear_and_register() -> None:
            try:
                clear()
            finally:
                self._register()

        callback_handler.clear = clear_and_register  # type: ignore[method-assign]
        self._register()

    def _register(self) -> None:
        callback_handler.register_start_callback(self.begin)
        callback_handler.register_end_callback(self.end)

    def _begin(self, _: Any) -> None:
        if backend_of_compilation() is self.backend:
            self.entered.enter_context(restore_dispatch_modes())
            self.entered.enter_context(self.block())

    def _end(self, _: Any) -> None:
        self.entered.close()


def backend_of_compilation() -> Any:
    """The backend, as given to torch.compile, of the compilation that runs now, or None.

    Callbacks do not receive the backend, so it is read from the frame of `torch._dynamo.convert_frame._compile`.
    """
    file = sys.modules["torch._dynamo.convert_frame"].__file__
    frame: FrameType | None = sys._getframe()
    while frame is not None and (frame.f_code.co_name, frame.f_code.co_filename) != ("_compile", file):
        frame = frame.f_back
    found = frame.f_locals.get("compiler_fn") if frame is not None else None
    found = getattr(found, "_torchdynamo_orig_backend", found)
    return getattr(found, "compiler_fn", found)


def has_modes() -> bool:
    """Whether dispatch or function modes are active, which would also see operations that aren't the user's."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


@contextmanager
def restore_dispatch_modes() -> Iterator[None]:
    """Restore the active dispatch modes after the block.

    An interrupt can hit torch just after it entered a FakeTensorMode, before the `try` block that leaves it. The mode
    then stays active, and every later call in the process fails.
    """
    before = _python_dispatch._get_current_dispatch_mode_stack()
    lifts = torch._C._only_lift_cpu_tensors()
    try:
        yield
    finally:
        if _python_dispatch._get_current_dispatch_mode_stack() != before:
            while torch._C._len_torch_dispatch_stack():
                _python_dispatch._pop_mode()
            for mode in before:
                _python_dispatch._push_mode(mode)
            torch._C._set_only_lift_cpu_tensors(lifts)
