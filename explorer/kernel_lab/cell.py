"""Find a kernel by name, and make the text of a cell in which to edit it. Does not need a notebook."""

from __future__ import annotations

from compiler.kernel_lab.edit import source_of
from compiler.record import Kernel, Record
from compiler.record.plain_text import did_you_mean


class NoSuchKernelError(LookupError):
    """Raised if a name fits no editable kernel, or several; the message suggests other names."""


def find(record: Record, name: str) -> Kernel:
    """The editable kernel with this name or id, or the only one whose id contains it.

    Raises NoSuchKernelError.
    """
    kernels = editable(record)
    if record.versus is not None and name.startswith(f"{record.versus.options.backend}: "):
        backend = record.versus.options.backend
        raise NoSuchKernelError(f"{name} is of the other side: explore the call with --backend {backend} to edit it")
    if not kernels:
        raise NoSuchKernelError(
            "this run has no Triton kernels, and none in C++ of our own backend: explore something for a GPU, such as "
            "--target h100"
        )
    exact = [kernel for kernel in kernels if name in (kernel.id, kernel.name)]
    parts = exact or [kernel for kernel in kernels if name in kernel.id]
    if len(parts) == 1:
        return parts[0]
    if parts:
        listed = "\n".join(f"  {kernel.id}" for kernel in parts)
        raise NoSuchKernelError(
            f"{len(parts)} kernels have {name!r} in their names; say more, or the id in quotes:\n{listed}"
        )
    names = [kernel.name for kernel in kernels]
    raise NoSuchKernelError(f"no kernel {name!r}" + (did_you_mean(name, names) or f"; there are: {', '.join(names)}"))


def editable(record: Record) -> tuple[Kernel, ...]:
    """The editable kernels: those in Triton, and those of our own backend in C++."""
    own = {entity.id for artifact in record.of_stage("kernels") for entity in artifact.entities
           if "launch" in entity.attrs}  # fmt: skip
    return tuple(
        kernel
        for kernel in record.kernels
        if kernel.language == "triton" or (kernel.language, kernel.id in own) == ("cpp", True)
    )


def cell_text(record: Record, kernel_name: str, run_name: str) -> str:
    """Text of a cell with a kernel's source below a `%%tkernel` line. Raises NoSuchKernelError.

    `run_name` is the variable that holds the run.
    """
    kernel = find(record, kernel_name)
    same = [known for known in editable(record) if known.name == kernel.name]
    name = kernel.name if len(same) == 1 else f'"{kernel.id}"'
    return f"%%tkernel {run_name} {name}\n{source_of(record, kernel).removeprefix(chr(10))}"
