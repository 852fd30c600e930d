"""Run the user's Triton launches in Triton's interpreter if there is no GPU, to get values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compiler.record import Problem
from compiler.targets import Target
from compiler.torch_api.user_triton import NoGpuError, PlainLaunch, launches_without_gpu
from compiler.triton_interpreter.process import Interpreter, InterpreterError
from compiler.virtual_gpu.gpu import active_driver

_HINT = (
    "if the kernel is not at fault, run it on a machine with a GPU; an operator of torch.library.triton_op can have an "
    "implementation for the CPU: register_kernel('cpu')"
)
_IMPORT_BY_NAME = (
    "torch.compile copies the kernel's source without {name}, the module {module}: import by name what it calls, "
    "with `from {module} import …`"
)
_UNKNOWN_NAME = re.compile(r"NameError: name '(\w+)' is not defined")


@contextmanager
def interpret_launches(gpu: Target, tell: Callable[[Problem], None]) -> Iterator[None]:
    """Without a GPU, capture the launches of users' Triton kernels for `gpu` in the block, and interpret them.

    `tell` is called once for each kernel, with a note that it was interpreted, or why it could not be run.
    """
    with InterpretedLaunches(tell) as interpreted, launches_without_gpu(active_driver(gpu), interpreted.launch):
        yield


class InterpretedLaunches:
    """Runs launches on CPU tensors in a process that the first launch starts; a context manager."""

    def __init__(self, tell: Callable[[Problem], None]) -> None:
        self.tell = tell
        self._told: set[str] = set()
        self._interpreter: Interpreter | None = None

    def __enter__(self) -> InterpretedLaunches:
        return self

    def __exit__(self, *error: object) -> None:
        interpreter, self._interpreter = self._interpreter, None
        if interpreter is not None:
            interpreter.__exit__(*error)

    def launch(self, asked: PlainLaunch) -> None:
        """Run the launch, and change its tensors in place. Raises NoGpuError if the launch fails."""
        if 0 in asked.grid:
            return
        if why := self._failure(asked):
            reason = f"the Triton kernel {asked.name} runs on a GPU, there is none here, and Triton's interpreter"
            hint = _HINT
            if (unknown := _UNKNOWN_NAME.search(why)) and (module := asked.module_named(unknown[1])):
                hint = _IMPORT_BY_NAME.format(name=unknown[1], module=module)
            self._note(asked.name, f"{reason} {why}", hint)
            raise NoGpuError(f"{reason} {why}: {hint}")
        self._note(
            asked.name,
            f"there is no GPU here, so the values that the Triton kernel {asked.name} computes are those of Triton's "
            "interpreter on the CPU",
            "the generated code is as it is on the GPU; run on a GPU to have its own values",
        )

    def _failure(self, asked: PlainLaunch) -> str:
        """Run the launch, and return the reason if it failed, else ""."""
        self._interpreter = self._interpreter or Interpreter()
        try:
            outcome = self._interpreter.run_plain(
                asked.source, asked.name, asked.arguments, asked.types, asked.blocks, asked.grid
            )
        except InterpreterError as error:
            return f"could not run it: {error}"
        if outcome.error is None:
            return ""
        place = asked.place_of(outcome.error.line)
        return f"could not run it: {f'{place}: ' if place else ''}{outcome.error.message}"

    def _note(self, name: str, reason: str, hint: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self.tell(Problem("kernels", reason, hint))
