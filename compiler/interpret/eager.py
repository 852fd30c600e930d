"""`--check kernels` while an exploration ends: checks come one by one, and what fails is a `Problem`."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.builder import Builder
from compiler.destination import has_triton
from compiler.interpret.check import kernel_checks
from compiler.interpret.kept import KeptFrame
from compiler.interpret.process import Interpreter, InterpreterError
from compiler.record import Problem


def check_kernels(builder: Builder, kept: Mapping[str, KeptFrame]) -> None:
    """Check the Triton kernels that the builder has. An interrupt leaves the checks that are done, and no process."""
    record = builder.record()
    if not any(kernel.language == "triton" for kernel in record.kernels):
        builder.problem(Problem("timing", *_why_none()))
        return
    try:
        with Interpreter() as interpreter:
            for check in kernel_checks(record, kept, interpreter):
                builder.checks.append(check)
    except InterpreterError as error:
        builder.problem(Problem("timing", f"kernels could not be checked: {error}", "see that `import triton` works"))
    except Exception as error:  # noqa: BLE001 - the user's own call has gone well, and its value is still to come
        reason = f"not all kernels could be checked: {type(error).__name__}: {error}"
        builder.problem(Problem("timing", reason, "what was checked before is there; please report this"))


def _why_none() -> tuple[str, str]:
    if not has_triton():
        return "kernels could not be checked: Triton is not installed", "it has packages for Linux: pip install triton"
    return "there is no Triton kernel to check", "explore something that Inductor fuses, for a GPU"
