"""One kernel as text: its facts and its source."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.binary.sources import CannotCompileError, kernel_source
from compiler.record import Binary, Kernel, Record
from compiler.record.plain_text import did_you_mean, pluralize, size_text
from explorer.reading.kernel_table import binaries_of, config_text, half, occupancy_percent
from explorer.reading.plain_text import text_lines
from explorer.reading.shapes import seconds_text


@dataclass(frozen=True, slots=True, repr=False)
class KernelCode:
    """The source and facts of one kernel. Prints as both.

    `source` is the kernel's code: for Triton, a string in the generated code. `binary` is None before compilation.
    """

    kernel: Kernel
    binary: Binary | None
    source: str

    def __str__(self) -> str:
        facts = "\n".join(f"# {line}" for line in fact_lines(self.kernel, self.binary))
        return f"{facts}\n\n{self.source}" if self.source else facts

    def __repr__(self) -> str:
        return str(self)


def kernel_code(record: Record, name: str) -> KernelCode:
    """The kernel with this name or id. Raises KeyError with a similar name, or the known names."""
    known = {kernel.name: kernel for kernel in reversed(record.kernels)}
    known |= {kernel.id: kernel for kernel in record.kernels}
    if name not in known:
        names = [kernel.name for kernel in record.kernels]
        raise KeyError(f"no kernel {name!r}" + (did_you_mean(name, names) or f"; there are: {', '.join(names)}"))
    kernel = known[name]
    try:
        return KernelCode(kernel, binaries_of(record).get(kernel.id), source_of(record, kernel))
    except CannotCompileError as error:
        raise KeyError(str(error)) from None


def source_of(record: Record, kernel: Kernel) -> str:
    """The kernel's code: for Triton a string in the generated code, for other languages lines of the generated code."""
    artifact = record[kernel.artifact]
    if kernel.language == "triton":
        _, source = kernel_source(artifact, kernel)
        return source.strip("\n") + "\n"
    first, last = kernel.lines
    return "\n".join(text_lines(artifact.text)[first - 1 : last]) + "\n"


def fact_lines(kernel: Kernel, binary: Binary | None) -> list[str]:
    """Facts of a kernel, a few per line."""
    calls = [
        kernel.category,
        pluralize(kernel.calls, "call"),
        f"{size_text(kernel.bytes)} a call" if kernel.bytes else "",
    ]
    lines = [f"{kernel.name}  ({half(kernel)})", ", ".join(filter(None, calls))]
    return lines + (_binary_lines(binary) if binary else [])


def _binary_lines(binary: Binary) -> list[str]:
    facts = [
        "" if binary.registers is None else pluralize(binary.registers, "register"),
        "" if binary.spill_bytes is None else f"{size_text(binary.spill_bytes)} spilled",
        "" if binary.shared_memory is None else f"{size_text(binary.shared_memory)} shared memory",
        _occupancy(binary),
        ""
        if binary.bound_seconds is None
        else f"at least {seconds_text(binary.bound_seconds)}, an estimate ({binary.bound}-bound)",
    ]
    return [f"{binary.target}: {config_text(binary.config)}", ", ".join(filter(None, facts))]


def _occupancy(binary: Binary) -> str:
    percent = occupancy_percent(binary)
    return (
        ""
        if percent is None
        else f"occupancy {percent:g} %" + (f" (limit: {binary.limiter})" if binary.limiter else "")
    )
