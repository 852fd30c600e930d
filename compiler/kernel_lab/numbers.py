"""Compare an edited kernel with the original on equal arguments: results and times."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from compiler.binary.sources import constants_of, grid_of
from compiler.calls.kept_graphs import KeptFrame
from compiler.kernel_lab.edit import check_executable
from compiler.numerics.policy.judge import AS_NEAR, judge, plain
from compiler.record import Check, Kernel, Record, Timing
from compiler.record.plain_text import pluralize
from compiler.timing.spread import Spread
from compiler.triton_interpreter import wrapper
from compiler.triton_interpreter.kernel_inputs import RANDOM, KernelInputs, kernel_inputs, own_copies
from compiler.triton_interpreter.launch import KernelError, Outcome
from compiler.triton_interpreter.process import Interpreter, InterpreterError
from compiler.triton_interpreter.program import Launch, ProgramError
from compiler.triton_interpreter.signature import signature

if TYPE_CHECKING:
    from compiler.kernel_lab.native import Native

MOST_PRINTED = 1000
"""Characters of a kernel's output that are shown."""
READ_ONLY = "the original does not change it"
LATER = "in a later call with the same arguments"
MOST_PROGRAMS = 2000
"""The most programs of an Inductor kernel's launch to interpret. A larger launch is run in part, with a note."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Comparison of two kernels: a check of each tensor that they store to, their times, an error, and notes."""

    checks: tuple[Check, ...] = ()
    timings: tuple[Timing, ...] = ()
    error: KernelError | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tried:
    """A version of a kernel in one configuration.

    `launch` is empty for a kernel of Inductor's. `prelude` is the code before a C++ function.
    """

    function: str
    source: str
    config: int
    launch: Mapping[str, Any]
    prelude: str = ""

    def interpret(self, interpreter: Interpreter, arguments: Sequence[Any], most: int) -> Outcome:
        """Run the kernel in the interpreter on CPU tensors, in place; at most `most` programs of an Inductor kernel."""
        if not self.launch:
            return interpreter.run(self.source, self.function, arguments, self.config, most)
        blocks, grid = constants_of(self.launch, self.config), grid_of(self.launch, self.config)
        return interpreter.run_plain(self.source, self.function, arguments, self.launch["types"], blocks, grid)

    def load(self) -> Any:
        """Load the kernel on this machine's GPU. Raises KernelSourceError."""
        from compiler.torch_api import triton_kernels

        if not self.launch:
            return triton_kernels.load_kernel(self.function, self.source, self.config)
        chosen, grid = self.launch["configs"][self.config], grid_of(self.launch, self.config)
        return triton_kernels.Plain(self.function, self.source, chosen, grid)


def numbers(record: Record, kernel: Kernel, kept: Mapping[str, KeptFrame], original: Tried, edited: Tried) -> Numbers:
    """Compare the original and the edited kernel, on the explored call's arguments if they were kept.

    Raises UntrustedError and RefusedSourceError for code of a loaded record that may not be executed.
    """
    for version in (original, edited):
        check_executable(record, kernel, version.source)
    try:
        if kernel.language == "cpp":
            given = _inputs_of_ours(kernel, kept, original)
            found = _run_native(given, original, edited)
        else:
            with Interpreter() as interpreter:
                given = _kernel_inputs(record, kernel, kept, original, interpreter)
                has_gpu = torch.cuda.is_available()
                found = (_run_on_gpu(given, original, edited) if has_gpu
                         else _interpret(given, original, edited, interpreter))  # fmt: skip
    except (ProgramError, InterpreterError) as error:
        return Numbers(notes=(f"its numbers could not be checked: {error}",))
    return replace(found, notes=(*filter(None, (given.note,)), *found.notes))


def _kernel_inputs(
    record: Record, kernel: Kernel, kept: Mapping[str, KeptFrame], original: Tried, interpreter: Interpreter
) -> KernelInputs:
    """Arguments of the kernel's first launch, with the names of the function's parameters."""
    if not original.launch:
        given = kernel_inputs(record, kernel, kept, interpreter)
        names = signature(original.function, original.source).arguments
        return replace(given, launch=replace(given.launch, names=names))
    return _inputs_of_ours(kernel, kept, original)


def _inputs_of_ours(kernel: Kernel, kept: Mapping[str, KeptFrame], original: Tried) -> KernelInputs:
    from compiler.backend_record.rerun import find_launch

    kind: Any = kernel.half
    how, note = original.launch, RANDOM
    if kernel.graph in kept and kind in kept[kernel.graph].programs:
        found = find_launch(kept[kernel.graph], kind, original.function)
        given, note = own_copies(found.arguments), found.note
    elif "arguments" in how:
        given = [_random(*value) if isinstance(value, list) else value for value in how["arguments"]]
    else:
        raise ProgramError("an earlier version saved it, without its arguments: explore it again")
    written: dict[int, Tensor | None] = dict.fromkeys(how["written"])
    names = [*how["types"]] if "types" in how else parameters(original.source, original.function)
    launch = Launch(kernel.name, original.function, original.source, given, names, written, lambda _: [])
    return KernelInputs(launch, note)


def _random(dtype: str, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    made = torch.empty_strided(tuple(shape), tuple(strides), dtype=getattr(torch, dtype))
    return made.copy_(wrapper.random_values(made.shape, made.dtype))


def parameters(source: str, function: str) -> list[str]:
    """Names of a C++ function's parameters."""
    found = re.search(rf"\b{function}\(([^)]*)\) {{", source)
    return [parameter.split()[-1] for parameter in found[1].split(",")] if found else []


def _run_native(given: KernelInputs, original: Tried, edited: Tried) -> Numbers:
    """Build, run and time C++ kernels on the CPU."""
    from compiler.kernel_lab.native import BuildError, Native, build_library

    launch = given.launch
    with tempfile.TemporaryDirectory(prefix="tcompile-", ignore_cleanup_errors=True) as folder:
        libraries = [Path(folder, f"{name}.so") for name in ("original", "edited")]
        try:
            for version, library in zip((original, edited), libraries, strict=True):
                build_library(version.prelude, version.source, library)
        except BuildError as error:
            return Numbers(error=KernelError("error", str(error), error.line))
        native = Native(Path(folder), original.function, launch.names, launch.arguments)
        return _compare_calls(native, libraries, launch)


def _compare_calls(native: Native, libraries: Sequence[Path], launch: Launch) -> Numbers:
    """Compare the first calls of both libraries, and a call of the edited one after both were timed."""
    from compiler.kernel_lab.native import TIMED_SECONDS, TOO_SLOW

    original, edited = libraries
    theirs = native.run(original)
    if theirs.error is not None:
        return Numbers(notes=(f"the original does not run: {theirs.error.message}",))
    mine = native.run(edited)
    printed = _printed_notes(native.printed_text(MOST_PRINTED))
    if mine.error is not None:
        return Numbers(error=mine.error, notes=printed)
    later = native.run(*libraries, seconds=TIMED_SECONDS)
    checks = _checks(launch, theirs.after, mine.after)
    if later.error == TOO_SLOW:
        return Numbers(checks, notes=("numbers on this CPU; calls are too slow to be timed", *printed))
    if later.error is not None:
        return Numbers(checks, error=replace(later.error, message=f"{LATER}, {later.error.message}"), notes=printed)
    timings = tuple(
        _timing(name, "kernel call", taken) for name, taken in zip(("original", "edited"), later.seconds, strict=True)
    )
    note = f"numbers and times on this CPU, {pluralize(torch.get_num_threads(), 'thread')}"
    return Numbers(
        _add_later_checks(checks, _checks(launch, theirs.after, later.after)), timings, notes=(note, *printed)
    )


def _add_later_checks(checks: Sequence[Check], later: Sequence[Check]) -> tuple[Check, ...]:
    """The checks of a first call, and in their place those of a later call that only then differ."""
    differing = {check.subject for check in checks if check.verdict == "differs"}
    broken = {
        check.subject: replace(check, note="; ".join(filter(None, (LATER, check.note))))
        for check in later
        if check.verdict == "differs" and check.subject not in differing
    }
    return tuple(({check.subject: check for check in checks} | broken).values())


def _printed_notes(printed: str) -> tuple[str, ...]:
    """A note with the start of what a kernel printed, if anything."""
    lines = [*printed[:MOST_PRINTED].splitlines(), *(["…"] if len(printed) >= MOST_PRINTED else [])]
    return ("\n    ".join(["it printed:", *lines]),) if lines else ()


def _interpret(given: KernelInputs, original: Tried, edited: Tried, interpreter: Interpreter) -> Numbers:
    mine, theirs = own_copies(given.launch.arguments), own_copies(given.launch.arguments)
    first = original.interpret(interpreter, theirs, MOST_PROGRAMS)
    if first.error is not None:
        return Numbers(notes=(f"the original does not run in the interpreter: {first.error.message}",))
    # With other block sizes, programs write other elements: partial runs can't be compared.
    second = edited.interpret(interpreter, mine, MOST_PROGRAMS if first.is_whole else first.ran)
    printed = _printed_notes(second.printed)
    if second.error is not None:
        is_missing = second.error.kind == "missing"
        return Numbers(notes=(second.error.message,)) if is_missing else Numbers(error=second.error, notes=printed)
    note = "numbers by Triton's interpreter, on the CPU"
    if not (first.is_whole and second.is_whole):
        ran = f"only {second.ran:,} of {second.programs:,} programs were run; what they left is not compared"
        return Numbers(notes=(note, ran, *printed))
    return Numbers(_checks(given.launch, theirs, mine), notes=(note, *printed))


def _run_on_gpu(given: KernelInputs, original: Tried, edited: Tried) -> Numbers:
    from compiler.torch_api import triton_kernels

    theirs, again, mine = ([_to_device(value) for value in own_copies(given.launch.arguments)] for _ in range(3))
    try:
        first = original.load()
        triton_kernels.launch(first, theirs)
        triton_kernels.launch(first, again)
        second = edited.load()
        triton_kernels.launch(second, mine)
    except Exception as error:  # noqa: BLE001 - Triton and CUDA fail in many ways
        return Numbers(error=KernelError("error", f"{type(error).__name__}: {error}"))
    checks = _allow_own_spread(_checks(given.launch, theirs, mine), _checks(given.launch, theirs, again))
    timings = tuple(
        _timing(name, "kernel launch", triton_kernels.launch_seconds(kernel, arguments))
        for name, kernel, arguments in (("original", first, theirs), ("edited", second, mine))
    )
    return Numbers(checks, timings, notes=(f"numbers and times on {torch.cuda.get_device_name()}",))


def _timing(name: str, what: str, seconds: Sequence[float]) -> Timing:
    spread = Spread.of_numbers(seconds)
    return Timing(name, what, spread.middle, spread.low, spread.high, runs=len(seconds))


def _to_device(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    return made.copy_(value)


def _checks(launch: Launch, theirs: Sequence[Any], mine: Sequence[Any]) -> tuple[Check, ...]:
    """Compare the tensors that the kernels store to, and those that only the edited one changes.

    A user's kernel does not declare its outputs. New memory that neither wrote is NaN, and counts as equal.
    """
    changed, broken = _changed_tensors(launch, theirs), _changed_tensors(launch, mine)
    written = sorted(launch.written or changed | broken)
    read_only = sorted(broken - changed - {*written})

    def check(index: int) -> Check:
        return judge(launch.names[index], mine[index], theirs[index])

    return (*map(check, written), *(replace(check(index), verdict="differs", note=READ_ONLY) for index in read_only))


def _allow_own_spread(checks: Sequence[Check], own: Sequence[Check]) -> tuple[Check, ...]:
    """Accept a difference of at most `AS_NEAR` times that between two runs of the original (`own`) as rounding.

    Atomic additions come in any order, and a sum of millions of terms, one by one, differs from run to run.
    """
    spread = {check.subject: check.max_absolute or 0.0 for check in own}

    def allow(check: Check) -> Check:
        most = spread.get(check.subject, 0.0)
        if check.verdict != "differs" or check.max_absolute is None or not check.max_absolute <= AS_NEAR * most:
            return check
        return replace(check, verdict="close", note=f"the original's own runs differ by {most:.2g}")

    return tuple(map(allow, checks))


def _changed_tensors(launch: Launch, result: Sequence[Any]) -> set[int]:
    """The tensors that a run changed."""

    def is_changed(mine: Tensor, given: Tensor) -> bool:
        if torch.equal(plain(mine), plain(given)):  # needs no memory, but is False for NaN
            return False
        return judge("", mine, given).verdict != "equal"

    given = [(index, value) for index, value in enumerate(launch.arguments) if isinstance(value, Tensor)]
    return {index for index, value in given if is_changed(result[index], value)}
